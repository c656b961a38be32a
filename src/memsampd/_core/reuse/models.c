#include "models.h"

int
memsampd_get_lines(PyObject *object, line_buffer *lines)
{
    if (PyObject_GetBuffer(object, &lines->view, PyBUF_SIMPLE) < 0)
        return -1;
    if (lines->view.len % 8) {
        PyBuffer_Release(&lines->view);
        PyErr_SetString(PyExc_ValueError, "lines must be a buffer of uint64");
        return -1;
    }
    lines->bytes = lines->view.buf;
    lines->count = (size_t)lines->view.len / 8;
    return 0;
}

int
memsampd_get_ascending(PyObject *sequence, uint64_t *values, unsigned most, uint64_t limit,
                       const char *what, unsigned *count)
{
    Py_ssize_t length = PySequence_Size(sequence);
    if (length < 0)
        return -1;
    bool valid = length >= 1 && length <= (Py_ssize_t)most;
    for (Py_ssize_t i = 0; valid && i < length; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        unsigned long long value = item ? PyLong_AsUnsignedLongLong(item) : 0;
        Py_XDECREF(item);
        if (PyErr_Occurred())
            return -1;
        valid = value >= 1 && value < limit && (i == 0 || value > values[i - 1]);
        values[i] = value;
    }
    if (!valid) {
        PyErr_Format(PyExc_ValueError, "%s must be 1 to %u ascending numbers, each 1 to %llu", what,
                     most, (unsigned long long)limit - 1);
        return -1;
    }
    *count = (unsigned)length;
    return 0;
}

int
memsampd_get_sizes(PyObject *sequence, uint64_t *sizes_lines, unsigned most, unsigned *count)
{
    return memsampd_get_ascending(sequence, sizes_lines, most, UINT32_MAX, "sizes_lines", count);
}

PyObject *
memsampd_misses(uint64_t accesses, const uint64_t *misses, unsigned count)
{
    return Py_BuildValue("Ky#", (unsigned long long)accesses, (const char *)misses,
                         (Py_ssize_t)(count * sizeof *misses));
}

int
memsampd_check_usable(const char *name, bool is_busy, bool is_broken)
{
    if (is_busy)
        PyErr_Format(PyExc_RuntimeError, "%s is in use by another thread", name);
    else if (is_broken)
        PyErr_Format(PyExc_RuntimeError, "%s ran out of memory before", name);
    return is_busy || is_broken ? -1 : 0;
}
