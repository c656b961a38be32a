/* Miss ratios of caches that replace at random: the equations of models/statcache.py. */
#include "core.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define SHARP 64.0 /* distances below this are kept apart, and so many an octave above */
#define STEPS_MOST 200
#define TOLERANCE 1e-10
#define ROUNDING 1e-9 /* who begins at a root stays there: bounds that meet are equal to the last bit */
#define GONE 45.0 /* exp(-45) of a share is nothing */

/* Shares of accesses by reuse distance, ascending. */
struct reuses {
    double *share, *distance;
    size_t count;
};

/* Each bin's in its middle, neighbours that are less than 1 % apart together. */
static void
collect(const int64_t *edges, const double *survival, size_t count, struct reuses *found)
{
    double last_group = -1.0, moment = 0.0;

    found->count = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        const double share = survival[i] - survival[i + 1];
        if (!(share > 0))
            continue;
        const double middle = (double)(edges[i] + edges[i + 1] - 1) / 2;
        const double group =
            floor(middle < SHARP ? middle : SHARP * (1 + log2(middle / SHARP)));
        if (group != last_group || found->count == 0) {
            found->share[found->count++] = 0.0;
            moment = 0.0;
        }
        last_group = group;
        const size_t at = found->count - 1;
        found->share[at] += share;
        moment += share * middle;
        found->distance[at] = moment / found->share[at];
    }
}

/* The largest root of f(R) = total - sum of share * exp(-pace * R * distance) - R, from an upper bound of it.
 *
 * f is concave and not above 0 there. To the right of its largest root it falls, so that Newton's steps
 * come down to that root and never pass it: no bracket is needed. */
static double
root_below(double ratio, const struct reuses *r, double total, double pace)
{
    for (unsigned step = 0; step < STEPS_MOST; step++) {
        double staying = 0.0, leaving = 0.0;
        for (size_t i = 0; i < r->count; i++) {
            const double replaced = pace * ratio * r->distance[i];
            if (replaced > GONE)
                break;
            const double stays = r->share[i] * exp(-replaced);
            staying += stays;
            leaving += stays * r->distance[i];
        }
        const double value = total - staying - ratio, slope = pace * leaving - 1.0;
        if (!(slope < 0 && value < 0)) /* rounding: the root is reached */
            break;
        const double down = value / slope;
        if (step == 0 && down < ROUNDING)
            break;
        ratio = fmax(ratio - down, 0.0);
        if (down < TOLERANCE)
            break;
    }
    return ratio < TOLERANCE ? 0.0 : ratio;
}

/* Solve for all sizes: the larger one misses no more. */
static void
solve(const struct reuses *r, double never, const int64_t *lines, size_t sizes, const double *bound,
      double *ratio)
{
    double total = never;

    for (size_t i = 0; i < r->count; i++)
        total += r->share[i];
    for (size_t i = 0; i < sizes; i++) {
        /* A cache of one line keeps it only over d = 0: a rate beyond every other stands for infinity. */
        const double pace = lines[i] > 1 ? -log1p(-1.0 / (double)lines[i]) : 1e30;
        double most = bound != NULL ? bound[i] : 1.0;
        most = i > 0 ? fmin(most, ratio[i - 1]) : most;
        ratio[i] = fmin(root_below(most, r, total, pace), most);
    }
}

PyDoc_STRVAR(random_ratios_doc,
             "random_ratios(edges, survival, lines)\n--\n\n"
             "Miss ratios (float64) by size: if what did not return never does, and if it does at the "
             "horizon. A survival function by edges (int64) and values (float64), sizes in lines, "
             "ascending (int64).");

static PyObject *
random_ratios(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer edges, survival, lines;
    if (!PyArg_ParseTuple(args, "y*y*y*:random_ratios", &edges, &survival, &lines))
        return NULL;
    const size_t count = (size_t)edges.len / sizeof(int64_t);
    const size_t sizes = (size_t)lines.len / sizeof(int64_t);
    double *room = PyMem_Malloc(2 * (count + 1) * sizeof *room);
    PyObject *high = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizes * sizeof(double)));
    PyObject *low = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizes * sizeof(double)));
    PyObject *told = NULL;

    if (edges.len != survival.len || count == 0)
        PyErr_SetString(PyExc_ValueError, "edges and values differ in number, or there are none");
    else if (room == NULL)
        PyErr_NoMemory();
    else if (high != NULL && low != NULL) {
        struct reuses r = {room, room + count + 1, 0};
        const double never = ((const double *)survival.buf)[count - 1];
        double *highest = (double *)PyBytes_AsString(high), *lowest = (double *)PyBytes_AsString(low);
        collect(edges.buf, survival.buf, count, &r);
        solve(&r, never, lines.buf, sizes, NULL, highest);
        r.share[r.count] = never;
        r.distance[r.count] = (double)((const int64_t *)edges.buf)[count - 1];
        r.count += never > 0;
        solve(&r, 0.0, lines.buf, sizes, highest, lowest);
        told = Py_BuildValue("(OO)", high, low);
    }
    Py_XDECREF(high);
    Py_XDECREF(low);
    PyMem_Free(room);
    PyBuffer_Release(&edges);
    PyBuffer_Release(&survival);
    PyBuffer_Release(&lines);
    return told;
}

PyMethodDef memsampd_random_ratios[] = {
    {"random_ratios", random_ratios, METH_VARARGS, random_ratios_doc},
    {NULL, NULL, 0, NULL},
};
