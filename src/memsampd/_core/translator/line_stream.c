/* The lines that references touch, in program order: memsampd.models.lines. */
#include "line_stream.h"
#include "expansion.h"
#include "models.h"

/* How many there are: a reference that crosses into other lines touches each, lowest first. */
static size_t
lines_count(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift)
{
    size_t count = n;
    for (size_t i = 0; i < n; i++)
        count += further_lines(address[i], size_bytes[i], shift);
    return count;
}

/* Their numbers, address >> shift, into room for so many. */
static void
lines_write(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift,
            uint64_t *lines)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t further = further_lines(address[i], size_bytes[i], shift);
        uint64_t first = address[i] >> shift;
        *lines++ = first;
        for (uint64_t k = 1; k <= further; k++)
            *lines++ = first + k;
    }
}

PyDoc_STRVAR(line_stream_doc,
             "line_stream(address, size_bytes, shift, /)\n--\n\n"
             "Return the line numbers touched by references, as bytes of uint64.");

static PyObject *
line_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer address, size_bytes;
    unsigned shift;
    PyObject *result = NULL;

    if (!PyArg_ParseTuple(args, "y*y*I:line_stream", &address, &size_bytes, &shift))
        return NULL;
    size_t n = (size_t)address.len / sizeof(uint64_t), count = 0;
    if ((size_t)size_bytes.len != n * sizeof(uint16_t) || shift > 32 ||
        (uintptr_t)address.buf % sizeof(uint64_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "aligned uint64 addresses, as many uint16 sizes");
        goto out;
    }
    Py_BEGIN_ALLOW_THREADS
    count = lines_count(address.buf, size_bytes.buf, n, shift);
    Py_END_ALLOW_THREADS
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));
    if (result != NULL) {
        uint64_t *lines = (uint64_t *)(void *)PyBytes_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        lines_write(address.buf, size_bytes.buf, n, shift, lines);
        Py_END_ALLOW_THREADS
    }
out:
    PyBuffer_Release(&address);
    PyBuffer_Release(&size_bytes);
    return result;
}

PyDoc_STRVAR(use_vectors_doc,
             "use_vectors(wanted, /)\n--\n\n"
             "Expand records by vectors, as is done where the CPU can, or not; for tests.\n\n"
             "Returns whether they are used.");

static PyObject *
use_vectors(PyObject *Py_UNUSED(module), PyObject *wanted)
{
    int is_wanted = PyObject_IsTrue(wanted);
    return is_wanted < 0 ? NULL : PyBool_FromLong(plain_lines_use_vectors(is_wanted != 0));
}

static PyMethodDef functions[] = {
    {"use_vectors", use_vectors, METH_O, use_vectors_doc},
    {"line_stream", line_stream, METH_VARARGS, line_stream_doc},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_line_stream(PyObject *module)
{
    plain_lines_use_vectors(true);
    return PyModule_AddFunctions(module, functions);
}
