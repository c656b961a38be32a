/* From names of branches to bins of branch vectors. */
#include "core.h"
#include "splitmix64.h"

#include <stdint.h>

PyDoc_STRVAR(hash_names_doc,
             "hash_names(names, bins, start)\n--\n\n"
             "A bin (int64) of each name (uint64): what splitmix64 makes of it and a start.");

static PyObject *
hash_names(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long bins, start;
    Py_buffer names;
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

PyMethodDef memsampd_phases[] = {
    {"hash_names", hash_names, METH_VARARGS, hash_names_doc},
    {NULL, NULL, 0, NULL},
};
