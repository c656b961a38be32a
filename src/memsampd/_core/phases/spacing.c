/* How far apart data lie: see sampler/spacing.py. */
#include "core.h"
#include "ascending.h"
#include "data_address.h"
#include "records.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define LEAST_ADDRESSES 8
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

/* Of how far each line is from the nearest other, one more, the median and its standard error, in octaves;
 * room is for as many lines and numbers. False of fewer than eight. */
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
        octave[i] = log2(1 + fmin(before, behind));
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

/* Addresses of those samples that tell one, and how many; false if these are no operands of so many. */
static bool
collect(struct operands operands, const uint64_t *registers, size_t count, uint64_t *address, size_t *found)
{
    *found = 0;
    for (size_t i = 0; i < count; i++) {
        const enum address_told told =
            data_address(&operands, registers + i * REGISTERS, &address[*found]);
        if (told == ADDRESS_MALFORMED)
            return false;
        *found += told == ADDRESS_TOLD;
    }
    return operands.left == 0;
}

PyDoc_STRVAR(spacing_of_doc,
             "spacing_of(operands, registers)\n--\n\n"
             "How far apart, in octaves, the data of samples lie, and its standard error; None if too few tell "
             "that, or where it changes.\n\n"
             "Operands are those of the samples, as struct data_operand has them; registers are 16 (uint64) "
             "of each.");

static PyObject *
spacing_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer operands, registers;
    if (!PyArg_ParseTuple(args, "y*y*:spacing_of", &operands, &registers))
        return NULL;
    const size_t count = (size_t)registers.len / (REGISTERS * sizeof(uint64_t));
    uint64_t *address = PyMem_Malloc((2 * count + 1) * sizeof *address);
    double *octave = PyMem_Malloc((count + 1) * sizeof *octave);
    PyObject *told = NULL;
    struct spacing found;
    size_t many;

    if (address == NULL || octave == NULL)
        PyErr_NoMemory();
    else if (!collect((struct operands){operands.buf, (size_t)operands.len}, registers.buf, count, address, &many))
        PyErr_SetString(PyExc_ValueError, "not the operands of so many samples");
    else {
        uint64_t *line = address + count;
        if (!changes(address, many, line, octave) && space(address, many, line, octave, &found))
            told = Py_BuildValue("(dd)", found.octaves, found.error);
        else
            told = Py_NewRef(Py_None);
    }
    PyMem_Free(address);
    PyMem_Free(octave);
    PyBuffer_Release(&operands);
    PyBuffer_Release(&registers);
    return told;
}

PyMethodDef memsampd_spacing[] = {
    {"spacing_of", spacing_of, METH_VARARGS, spacing_of_doc},
    {NULL, NULL, 0, NULL},
};
