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

/* The arguments of what follows: operands of samples, and their registers. */
struct samples {
    Py_buffer operands, registers;
    size_t count;
    uint64_t *address; /* of each, 0 where none is told */
};

static void
release(struct samples *s)
{
    PyMem_Free(s->address);
    PyBuffer_Release(&s->operands);
    PyBuffer_Release(&s->registers);
}

/* Read them, and work out their addresses; false with an exception set. */
static bool
take_samples(PyObject *args, struct samples *s)
{
    if (!PyArg_ParseTuple(args, "y*y*", &s->operands, &s->registers))
        return false;
    const uint64_t *registers = s->registers.buf;
    struct operands operands = {s->operands.buf, (size_t)s->operands.len};
    bool is_sound = true;

    s->count = (size_t)s->registers.len / (REGISTERS * sizeof *registers);
    s->address = PyMem_Calloc(s->count + 1, sizeof *s->address);
    if (s->address == NULL)
        PyErr_NoMemory();
    for (size_t i = 0; s->address != NULL && i < s->count && is_sound; i++)
        is_sound = data_address(&operands, registers + i * REGISTERS, &s->address[i]);
    if (s->address != NULL && is_sound && operands.left == 0)
        return true;
    if (s->address != NULL)
        PyErr_SetString(PyExc_ValueError, "not the operands of so many samples");
    release(s);
    return false;
}

PyDoc_STRVAR(data_addresses_doc,
             "data_addresses(operands, registers)\n--\n\n"
             "The address of each sample's data (uint64), 0 where none is told.\n\n"
             "Operands are those of the samples, as struct data_operand has them; registers are 16 of each "
             "(uint64).");

static PyObject *
data_addresses(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct samples samples;

    if (!take_samples(args, &samples))
        return NULL;
    PyObject *told = PyBytes_FromStringAndSize((const char *)samples.address,
                                               (Py_ssize_t)(samples.count * sizeof *samples.address));
    release(&samples);
    return told;
}

PyDoc_STRVAR(spacing_of_doc,
             "spacing_of(operands, registers)\n--\n\n"
             "How far apart, in octaves, the data of samples lie, and its standard error; None if too few tell "
             "that, or where it changes. Arguments are those of data_addresses().");

static PyObject *
spacing_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct samples samples;

    if (!take_samples(args, &samples))
        return NULL;
    uint64_t *line = PyMem_Malloc((samples.count + 1) * sizeof *line);
    double *octave = PyMem_Malloc((samples.count + 1) * sizeof *octave);
    PyObject *told = NULL;
    struct spacing found;
    size_t many = 0;

    for (size_t i = 0; i < samples.count; i++)
        if (samples.address[i] != 0)
            samples.address[many++] = samples.address[i];
    if (line == NULL || octave == NULL)
        PyErr_NoMemory();
    else if (!changes(samples.address, many, line, octave) &&
             space(samples.address, many, line, octave, &found))
        told = Py_BuildValue("(dd)", found.octaves, found.error);
    else
        told = Py_NewRef(Py_None);
    PyMem_Free(line);
    PyMem_Free(octave);
    release(&samples);
    return told;
}

PyMethodDef memsampd_spacing[] = {
    {"data_addresses", data_addresses, METH_VARARGS, data_addresses_doc},
    {"spacing_of", spacing_of, METH_VARARGS, spacing_of_doc},
    {NULL, NULL, 0, NULL},
};
