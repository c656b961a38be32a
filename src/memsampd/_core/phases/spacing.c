/* How far apart data lie: see sampler/spacing.py. */
#include "core.h"
#include "ascending.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define LEAST_ADDRESSES 8
#define USUAL_ADDRESSES 50.0
#define LINE_SHIFT 6
#define CHANGE 2.0 /* octaves, besides what both halves of a window are known to */

struct spacing {
    double octaves, error;
};

/* A value between two of some, by its rank. */
static double
at_rank(const double *values, size_t count, double rank)
{
    const size_t i = (size_t)rank;
    return i + 1 < count ? values[i] + (values[i + 1] - values[i]) * (rank - (double)i)
                         : values[count - 1];
}

/* Of how far each line is from the nearest other, one more, the median and its standard error, in octaves,
 * as of fifty lines: twice as many are half as far apart. Room is for as many lines and numbers. False of
 * fewer than eight. */
static bool
space(const uint64_t *address, size_t count, uint64_t *line, double *octave, struct spacing *told)
{
    if (count < LEAST_ADDRESSES)
        return false;
    for (size_t i = 0; i < count; i++)
        line[i] = address[i] >> LINE_SHIFT;
    qsort(line, count, sizeof *line, ascending_uint64);
    for (size_t i = 0; i < count; i++) {
        const double before = i > 0 ? (double)(line[i] - line[i - 1]) : INFINITY;
        const double behind = i + 1 < count ? (double)(line[i + 1] - line[i]) : INFINITY;
        octave[i] = log2(1 + fmin(before, behind) * (double)count / USUAL_ADDRESSES);
    }
    qsort(octave, count, sizeof *octave, ascending_double);
    /* The median's rank has a standard deviation of half the root of n. */
    const double middle = (double)(count - 1) / 2, apart = 0.5 * sqrt((double)count);
    told->octaves = at_rank(octave, count, middle);
    told->error =
        (at_rank(octave, count, middle + apart) - at_rank(octave, count, middle - apart)) / 2;
    return true;
}

/* Whether the first half of some addresses, in order, is spaced quite otherwise than the other. A window in
 * which the code went on to other data is like neither. */
static bool
changes(const uint64_t *address, size_t count, uint64_t *line, double *octave)
{
    const size_t middle = count / 2;
    struct spacing first, second;

    if (!space(address, middle, line, octave, &first) ||
        !space(address + middle, count - middle, line, octave, &second))
        return false;
    return fabs(first.octaves - second.octaves) > CHANGE + first.error + second.error;
}

PyDoc_STRVAR(spacing_of_doc,
             "spacing_of(addresses)\n--\n\n"
             "How far apart, in octaves, the data of samples lie, and its standard error; None if too few tell "
             "that, or where it changes. Addresses are those of data_addresses().");

static PyObject *
spacing_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer addresses;

    if (!PyArg_ParseTuple(args, "y*:spacing_of", &addresses))
        return NULL;
    const uint64_t *told_of = addresses.buf;
    const size_t count = (size_t)addresses.len / sizeof *told_of;
    uint64_t *address = PyMem_Malloc((2 * count + 1) * sizeof *address);
    double *octave = PyMem_Malloc((count + 1) * sizeof *octave);
    PyObject *told = NULL;
    struct spacing found;

    if (address == NULL || octave == NULL)
        PyErr_NoMemory();
    else {
        uint64_t *line = address + count;
        size_t many = 0;
        for (size_t i = 0; i < count; i++)
            if (told_of[i] != 0)
                address[many++] = told_of[i];
        if (!changes(address, many, line, octave) && space(address, many, line, octave, &found))
            told = Py_BuildValue("(dd)", found.octaves, found.error);
        else
            told = Py_NewRef(Py_None);
    }
    PyMem_Free(address);
    PyMem_Free(octave);
    PyBuffer_Release(&addresses);
    return told;
}

PyMethodDef memsampd_spacing[] = {
    {"spacing_of", spacing_of, METH_VARARGS, spacing_of_doc},
    {NULL, NULL, 0, NULL},
};
