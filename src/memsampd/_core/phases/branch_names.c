/* From sampled addresses to names of branches that are known, and from these to bins of branch vectors. */
#include "core.h"
#include "splitmix64.h"

#include <stdint.h>

/* What is known of one address: (name, mapped, anonymous). A new reference. */
static PyObject *
known_of(PyObject *known, PyObject *find, uint64_t ip)
{
    PyObject *address = PyLong_FromUnsignedLongLong(ip);
    if (address == NULL)
        return NULL;
    PyObject *found = PyDict_GetItemWithError(known, address);
    if (found != NULL)
        Py_INCREF(found);
    else if (!PyErr_Occurred())
        found = PyObject_CallFunctionObjArgs(find, address, NULL);
    Py_DECREF(address);
    return found;
}

struct named {
    uint64_t name;
    int is_mapped, is_anonymous;
};

/* -1 with an exception set on failure. */
static int
name_of(PyObject *known, PyObject *find, uint64_t ip, struct named *named)
{
    PyObject *found = known_of(known, find, ip);
    if (found == NULL)
        return -1;
    int parsed = PyArg_ParseTuple(found, "Kpp", (unsigned long long *)&named->name, &named->is_mapped,
                                  &named->is_anonymous);
    Py_DECREF(found);
    return parsed ? 0 : -1;
}

PyDoc_STRVAR(look_up_doc,
             "look_up(known, ips, find)\n--\n\n"
             "Names of addresses (both uint64), and how many of these are not mapped, and anonymous. "
             "Known is (name, mapped, anonymous) by address; where that lacks, find(address) tells it.");

static PyObject *
look_up(PyObject *module, PyObject *args)
{
    PyObject *known, *find;
    Py_buffer ips;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!y*O:look_up", &PyDict_Type, &known, &ips, &find))
        return NULL;
    const uint64_t *ip = ips.buf;
    const size_t count = (size_t)ips.len / sizeof *ip;
    size_t unmapped = 0, anonymous = 0;
    PyObject *names = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof *ip));
    uint64_t *name = names != NULL ? (uint64_t *)PyBytes_AsString(names) : NULL;
    struct named now = {0};

    for (size_t i = 0; names != NULL && i < count; i++) {
        /* Of a burst the same address comes many times in a row. */
        if ((i == 0 || ip[i] != ip[i - 1]) && name_of(known, find, ip[i], &now) < 0)
            Py_CLEAR(names);
        else
            name[i] = now.name;
        unmapped += !now.is_mapped;
        anonymous += now.is_anonymous;
    }
    PyBuffer_Release(&ips);
    return names != NULL ? Py_BuildValue("(Nnn)", names, (Py_ssize_t)unmapped, (Py_ssize_t)anonymous)
                         : NULL;
}

PyDoc_STRVAR(hash_names_doc,
             "hash_names(names, bins, start)\n--\n\n"
             "A bin (int64) of each name (uint64): what splitmix64 makes of it and a start.");

static PyObject *
hash_names(PyObject *module, PyObject *args)
{
    unsigned long long bins, start;
    Py_buffer names;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*KK:hash_names", &names, &bins, &start))
        return NULL;
    const uint64_t *name = names.buf;
    const size_t count = bins != 0 ? (size_t)names.len / sizeof *name : 0;
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof *name));
    int64_t *bin = found != NULL ? (int64_t *)PyBytes_AsString(found) : NULL;

    for (size_t i = 0; found != NULL && i < count; i++)
        bin[i] = (int64_t)(splitmix64_mix(name[i] + start) % bins);
    PyBuffer_Release(&names);
    return found;
}

static PyMethodDef phases_functions[] = {
    {"look_up", look_up, METH_VARARGS, look_up_doc},
    {"hash_names", hash_names, METH_VARARGS, hash_names_doc},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_phases(PyObject *module)
{
    return PyModule_AddFunctions(module, phases_functions);
}
