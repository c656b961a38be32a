/* Kaplan and Meier's product limit of a reuse histogram: see models/survival.py. */
#include "core.h"

#include <math.h>
#include <stdint.h>

#define OBSERVABLE_PER_DISTANCE 0.25 /* what happens at distance k is known from k / 4 accesses */

/* S at the edges of bins, as far as at least so many accesses could see; returns how many edges. */
static size_t
fill_survival(const int64_t *reuses, const int64_t *censored, const int64_t *edges, size_t bins,
              double least, double *survival)
{
    int64_t left = 0; /* from the bin on */

    for (size_t i = 0; i < bins; i++)
        left += reuses[i] + censored[i];
    survival[0] = 1.0;
    for (size_t i = 0; i < bins; i++) {
        /* From the bin on for reuses, beyond it for what was censored in it: see ReuseHistogram. */
        const double at_risk = (double)(left - censored[i]), start = survival[i];
        const double needed = fmax(least, OBSERVABLE_PER_DISTANCE * (double)edges[i + 1]);
        if ((start > 0 ? at_risk / start : 0.0) < fmax(needed, 1.0))
            return i + 1;
        survival[i + 1] = start * (1.0 - (at_risk > 0 ? (double)reuses[i] / at_risk : 0.0));
        left -= reuses[i] + censored[i];
    }
    return bins + 1;
}

PyDoc_STRVAR(product_limit_doc,
             "product_limit(reuses, censored, edges, least)\n--\n\n"
             "S (float64) at the edges of bins, up to where fewer accesses than `least`, or than a quarter of "
             "the distance, could see on: accesses that returned and that did not by bin, and edges (int64).");

static PyObject *
product_limit(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer reuses, censored, edges;
    double least;
    if (!PyArg_ParseTuple(args, "y*y*y*d:product_limit", &reuses, &censored, &edges, &least))
        return NULL;
    const size_t bins = (size_t)reuses.len / sizeof(int64_t);
    double *survival = PyMem_Malloc((bins + 1) * sizeof *survival);
    PyObject *told = NULL;

    if (reuses.len != censored.len || (size_t)edges.len != (bins + 1) * sizeof(int64_t))
        PyErr_SetString(PyExc_ValueError, "bins differ in number");
    else if (survival == NULL)
        PyErr_NoMemory();
    else {
        const size_t count =
            fill_survival(reuses.buf, censored.buf, edges.buf, bins, least, survival);
        told = PyBytes_FromStringAndSize((char *)survival, (Py_ssize_t)(count * sizeof *survival));
    }
    PyMem_Free(survival);
    PyBuffer_Release(&reuses);
    PyBuffer_Release(&censored);
    PyBuffer_Release(&edges);
    return told;
}

PyMethodDef memsampd_product_limit[] = {
    {"product_limit", product_limit, METH_VARARGS, product_limit_doc},
    {NULL, NULL, 0, NULL},
};
