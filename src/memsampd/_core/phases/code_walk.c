/* Code followed from an address on, instruction by instruction: where it leads to. */
#include "core.h"
#include "decoder.h"
#include "page.h"

#define CHUNK_BYTES 128

/* What ends a straight line. */
enum ending { AT_END, AT_KNOWN, AT_UNREADABLE, AT_LIMIT };

/* ---- Along a straight line ---- */

struct line {
    struct decoder decoder;
    PyObject *known, *pages, *read;
    PyObject *chunk;   /* what was read across the end of a page; owned */
    const uint8_t *at; /* code at `ip` is at[ip - begin] */
    uint64_t begin, until, end; /* instructions are whole that begin before `until` */
};

/* The bytes of a page, read once: a borrowed reference; NULL with an exception set on failure. */
static PyObject *
page_at(struct line *l, uint64_t address)
{
    PyObject *key = PyLong_FromUnsignedLongLong(address);
    if (key == NULL)
        return NULL;
    PyObject *page = PyDict_GetItemWithError(l->pages, key);
    if (page == NULL && !PyErr_Occurred()) {
        PyObject *fresh = PyObject_CallFunction(l->read, "OI", key, PAGE_BYTES);
        if (fresh != NULL && PyDict_SetItem(l->pages, key, fresh) == 0)
            page = fresh; /* the dictionary holds it */
        Py_XDECREF(fresh);
    }
    Py_DECREF(key);
    return page;
}

static int
use_bytes(struct line *l, PyObject *bytes, uint64_t begin)
{
    char *code;
    Py_ssize_t size;

    if (PyBytes_AsStringAndSize(bytes, &code, &size) < 0)
        return -1;
    l->at = (const uint8_t *)code;
    l->begin = begin;
    l->end = begin + (uint64_t)size;
    return 0;
}

/* Have code at `ip`: pages are read whole, as reading costs more than decoding. */
static int
move_to(struct line *l, uint64_t ip)
{
    const uint64_t page = page_of(ip);
    PyObject *bytes = page_at(l, page);

    if (bytes == NULL || use_bytes(l, bytes, page) < 0)
        return -1;
    if (ip - page + INSTRUCTION_MAXIMUM_BYTES <= l->end - page) {
        l->until = l->end - INSTRUCTION_MAXIMUM_BYTES + 1;
        return 0;
    }
    Py_XDECREF(l->chunk);
    l->chunk = PyObject_CallFunction(l->read, "KI", (unsigned long long)ip, CHUNK_BYTES);
    if (l->chunk == NULL || use_bytes(l, l->chunk, ip) < 0)
        return -1;
    const uint64_t size = l->end - ip;
    l->until = ip + (size > INSTRUCTION_MAXIMUM_BYTES ? size - INSTRUCTION_MAXIMUM_BYTES : 0) + 1;
    return 0;
}

/* Whether it is known where the code at `ip` leads to; -1 with an exception set on failure. */
static int
is_known(const struct line *l, PyObject *ip)
{
    PyObject *known = PyDict_GetItemWithError(l->known, ip);
    if (known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *is_mapped = PyTuple_GetItem(known, 1);
    return is_mapped != NULL ? PyObject_IsTrue(is_mapped) : -1;
}

/* Go to another instruction: 1 if it is known, else it counts as passed; -1 on failure. */
static int
pass(struct line *l, PyObject *passed, uint64_t ip)
{
    PyObject *address = PyLong_FromUnsignedLongLong(ip);
    if (address == NULL)
        return -1;
    int result = is_known(l, address);
    if (result == 0)
        result = PyList_Append(passed, address);
    Py_DECREF(address);
    return result;
}

/* The jump that goes where one went before: the lowest target of all from there on. */
static bool
closes_loop(const uint64_t *targets, size_t count, uint64_t *lowest)
{
    const uint64_t target = targets[count - 1];
    size_t i = 0;

    while (targets[i] != target)
        i++;
    *lowest = target;
    for (size_t k = i; k < count; k++)
        *lowest = targets[k] < *lowest ? targets[k] : *lowest;
    return i + 1 < count;
}

/* Follow the code at `*ip` to what ends it, where `*ip` is left; -1 with an exception set on failure. */
static int
follow(struct line *l, uint64_t *ip, size_t most, uint64_t *targets, PyObject *passed)
{
    uint64_t lowest, now_at = *ip;
    size_t jumps = 0;
    struct decoded now;
    int found;

    for (size_t i = 0; i < most; i++) {
        *ip = now_at;
        if ((now_at < l->begin || now_at >= l->until) && move_to(l, now_at) < 0)
            return -1;
        if (decode_one(&l->decoder, l->at + (now_at - l->begin), l->end - now_at, now_at, &now) < 0)
            return -1;
        switch (now.going) {
        case GOES_ON:
            now_at += now.length;
            break;
        case JUMPS:
            now_at = targets[jumps++] = now.target;
            if (closes_loop(targets, jumps, &lowest)) {
                *ip = lowest;
                return AT_END;
            }
            l->begin = l->until = 0;
            break;
        case ENDS:
            return AT_END;
        default:
            return AT_UNREADABLE;
        }
        if ((found = pass(l, passed, now_at)) != 0) {
            *ip = now_at;
            return found < 0 ? -1 : AT_KNOWN;
        }
    }
    return AT_LIMIT;
}

/* ---- Names of addresses ---- */

struct names {
    struct line line;
    PyObject *named, *forget;
    Py_ssize_t most_known;
    size_t most; /* instructions of a line */
    uint64_t *targets;
};

/* Note of all instructions on the way what is to be known of them; takes over the reference to that. */
static PyObject *
note(struct names *n, PyObject *passed, Py_ssize_t count, PyObject *found)
{
    for (Py_ssize_t i = 0; found != NULL && i < count; i++)
        if (PyDict_SetItem(n->line.known, PyList_GetItem(passed, i), found) < 0)
            Py_CLEAR(found);
    if (found != NULL && PyDict_Size(n->line.known) > n->most_known) {
        PyObject *done = PyObject_CallNoArgs(n->forget);
        if (done == NULL)
            Py_CLEAR(found);
        Py_XDECREF(done);
    }
    return found;
}

/* What is to be known where a straight line ends: a new reference. */
static PyObject *
end_of(struct names *n, uint64_t begin, uint64_t at, int ending)
{
    if (ending == AT_KNOWN) {
        PyObject *address = PyLong_FromUnsignedLongLong(at);
        PyObject *found = address != NULL ? PyDict_GetItemWithError(n->line.known, address) : NULL;
        Py_XINCREF(found);
        Py_XDECREF(address);
        return found;
    }
    const uint64_t named = ending == AT_UNREADABLE ? page_of(begin) : at;
    return PyObject_CallFunction(n->named, "Ki", (unsigned long long)named, ending != AT_UNREADABLE);
}

/* Follow the code at an address: what is to be known of it, a new reference. */
static PyObject *
find(struct names *n, uint64_t begin)
{
    uint64_t at = begin;
    PyObject *passed = Py_BuildValue("[K]", (unsigned long long)begin);
    if (passed == NULL)
        return NULL;
    n->line.begin = n->line.until = 0;
    const int ending = follow(&n->line, &at, n->most, n->targets, passed);
    PyObject *found = ending < 0 ? NULL : end_of(n, begin, at, ending);
    const bool holds_of_all = ending == AT_END || ending == AT_KNOWN;
    found = note(n, passed, holds_of_all ? PyList_Size(passed) : 1, found);
    Py_DECREF(passed);
    return found;
}

/* What is known of one address, or found now: a new reference. */
static PyObject *
known_of(struct names *n, uint64_t ip)
{
    PyObject *address = PyLong_FromUnsignedLongLong(ip);
    if (address == NULL)
        return NULL;
    PyObject *found = PyDict_GetItemWithError(n->line.known, address);
    Py_DECREF(address);
    if (found != NULL)
        return Py_NewRef(found);
    return PyErr_Occurred() ? NULL : find(n, ip);
}

struct named {
    unsigned long long name;
    int is_mapped, is_anonymous;
};

/* Names of addresses, with how many are anonymous. */
static PyObject *
name_all(struct names *n, const uint64_t *ip, size_t count)
{
    Py_ssize_t anonymous = 0;
    PyObject *names = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof *ip));
    uint64_t *name = names != NULL ? (uint64_t *)PyBytes_AsString(names) : NULL;
    struct named now = {0};

    for (size_t i = 0; names != NULL && i < count; i++) {
        /* Of a burst the same address comes many times in a row. */
        if (i == 0 || ip[i] != ip[i - 1]) {
            PyObject *found = known_of(n, ip[i]);
            const int parsed = found != NULL && PyArg_ParseTuple(found, "Kpp", &now.name, &now.is_mapped,
                                                                 &now.is_anonymous);
            Py_XDECREF(found);
            if (!parsed) {
                Py_CLEAR(names);
                break;
            }
        }
        name[i] = now.name;
        anonymous += now.is_anonymous;
    }
    return names != NULL ? Py_BuildValue("(Nn)", names, anonymous) : NULL;
}

PyDoc_STRVAR(look_up_doc,
             "look_up(known, ips, most, pages, forms, read, decode, named, most_known, forget)\n--\n\n"
             "Names of addresses (both uint64), and how many of these are anonymous.\n\n"
             "Known is (name, mapped, anonymous) by address. Where that lacks, the straight line from there on "
             "is followed, for so many instructions at most, to what ends it or is known: named(address, "
             "mapped) tells that of the end, or of the page if it cannot be read. Pages that read(address, "
             "size) gave, and what decode(code, ip) told of forms of instructions (length, how it goes on, "
             "target), are kept in dictionaries. forget() is called where more is known than is to be.");

static PyObject *
look_up(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct names n = {0};
    struct line *l = &n.line;
    Py_buffer ips;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "O!y*nO!O!OOOnO:look_up", &PyDict_Type, &l->known, &ips, &most,
                          &PyDict_Type, &l->pages, &PyDict_Type, &l->decoder.forms, &l->read,
                          &l->decoder.decode, &n.named, &n.most_known, &n.forget))
        return NULL;
    n.most = most > 0 ? (size_t)most : 1;
    n.targets = PyMem_Malloc(n.most * sizeof *n.targets);
    PyObject *told = n.targets != NULL ? name_all(&n, ips.buf, (size_t)ips.len / sizeof(uint64_t))
                                       : PyErr_NoMemory();
    PyMem_Free(n.targets);
    Py_XDECREF(l->chunk);
    PyBuffer_Release(&ips);
    return told;
}

PyMethodDef memsampd_code_walk[] = {
    {"look_up", look_up, METH_VARARGS, look_up_doc},
    {NULL, NULL, 0, NULL},
};
