/* Code looked at backwards: the instruction that ends it. */
#include "core.h"
#include "decoder.h"

#define BEFORE_MOST_BYTES 256

/* Where the instruction begins that ends with some code which is decoded from a place on. */
enum last { NONE_ENDS = -1, FAILED = -2, NOT_TRIED = -3 };

/* The same of the place `at`, as `enum last` where there is none; what is found is kept of all on the way,
 * for decodings meet. */
static int
last_of(const struct decoder *d, const uint8_t *code, size_t size, size_t at, int *kept)
{
    size_t passed[BEFORE_MOST_BYTES], count = 0;
    int found = NONE_ENDS;
    struct decoded now;

    for (; at < size; at += now.length) {
        if (kept[at] != NOT_TRIED) {
            found = kept[at];
            break;
        }
        passed[count++] = at;
        if (decode_one(d, code + at, size - at, at, &now) < 0)
            return FAILED;
        if (now.going != IS_INVALID && at + now.length == size) {
            found = (int)at;
            break;
        }
        if (now.length == 0)
            break;
    }
    while (count > 0)
        kept[passed[--count]] = found;
    return found;
}

PyDoc_STRVAR(last_instruction_doc,
             "last_instruction(code, begins, forms, decode)\n--\n\n"
             "Where the instruction begins that most likely ends some code, or -1: instructions have no "
             "marks at their ends, so it is decoded from so many places on, which meet nearly always.");

static PyObject *
last_instruction(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct decoder d;
    const uint8_t *code;
    Py_ssize_t size, begins;
    unsigned votes[BEFORE_MOST_BYTES] = {0};
    int best = -1;
    if (!PyArg_ParseTuple(args, "y#nO!O:last_instruction", (const char **)&code, &size, &begins,
                          &PyDict_Type, &d.forms, &d.decode))
        return NULL;
    if (size > BEFORE_MOST_BYTES) {
        PyErr_SetString(PyExc_ValueError, "too much code");
        return NULL;
    }
    int last[BEFORE_MOST_BYTES];
    for (Py_ssize_t i = 0; i < size; i++)
        last[i] = NOT_TRIED;
    begins = begins < size ? begins : size;
    for (Py_ssize_t i = 0; i < begins; i++) {
        const int found = last_of(&d, code, (size_t)size, (size_t)i, last);
        if (found == FAILED)
            return NULL;
        if (found >= 0)
            votes[found]++;
    }
    for (Py_ssize_t i = 0; i < begins; i++)
        if (last[i] >= 0 && (best < 0 || votes[last[i]] > votes[best]))
            best = last[i];
    return PyLong_FromLong(best);
}

PyMethodDef memsampd_last_instruction[] = {
    {"last_instruction", last_instruction, METH_VARARGS, last_instruction_doc},
    {NULL, NULL, 0, NULL},
};
