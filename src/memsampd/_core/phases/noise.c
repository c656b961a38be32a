/* How far two vectors of hits lie apart, and how far by chance alone: see phases/noise.py. */
#include "core.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static double
lgamma_of(double x)
{
    int sign;
    return lgamma_r(x, &sign); /* lgamma writes to a variable that all threads share */
}

/* E|x - mu| of hypergeometric x: `hits` drawn out of `total`, `pooled` of them special; `ways` is the
 * logarithm of 1 / C(total, hits). Counts that are not whole (aged centroids) are interpolated through the
 * gamma function. */
static double
mean_absolute_deviation(double pooled, double total, double hits, double ways)
{
    const double v = floor(pooled * (hits / total)) + 1;
    const double rest = total - pooled - hits + v;

    if (v > pooled || v > hits || rest < 0) /* v lies beyond the support: no deviation is possible */
        return 0.0;
    /* P(x = v) = C(pooled, v) * C(total - pooled, hits - v) / C(total, hits) */
    double log_p = ways + lgamma_of(pooled + 1) + lgamma_of(total - pooled + 1);
    log_p -= lgamma_of(v + 1) + lgamma_of(pooled - v + 1) + lgamma_of(hits - v + 1) +
             lgamma_of(rest + 1);
    return 2 * v * rest / total * exp(log_p < 0.0 ? log_p : 0.0);
}

static double
sum_of(const double *values, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

struct comparison {
    double distance, expected, spread;
};

static struct comparison
compare(const double *mine, const double *theirs, size_t bins)
{
    const double hits = sum_of(mine, bins), others = sum_of(theirs, bins), total = hits + others;
    const double factor =
        hits * others / (total * total) * (total / (total - 1 > 1.0 ? total - 1 : 1.0));
    const double ways = lgamma_of(hits + 1) + lgamma_of(others + 1) - lgamma_of(total + 1);
    double distance = 0.0, deviations = 0.0, own = 0.0, odds_sum = 0.0, odds_squares = 0.0;

    for (size_t i = 0; i < bins; i++) {
        const double pooled = mine[i] + theirs[i], share = pooled / total;
        if (!(pooled > 0))
            continue;
        distance += fabs(mine[i] / hits - theirs[i] / others);
        const double deviation = mean_absolute_deviation(pooled, total, hits, ways);
        const double variance = pooled * factor * (1 - share);
        /* Bins share one total, so they are correlated by -sqrt(odds_b * odds_c). */
        const double odds = sqrt(variance) * share / (1 - share > 1e-12 ? 1 - share : 1e-12);
        deviations += deviation;
        own += variance > deviation * deviation ? variance - deviation * deviation : 0.0;
        odds_sum += odds;
        odds_squares += odds * odds;
    }
    const double scale = total / (hits * others);
    const double covariances = (odds_sum * odds_sum - odds_squares) / M_PI;
    /* Rounding may carry the distance of disjoint vectors past 2. */
    return (struct comparison){distance < 2.0 ? distance : 2.0, scale * deviations,
                               scale * sqrt(fmax(own + covariances, 0.0))};
}

PyDoc_STRVAR(compare_hits_doc,
             "compare_hits(counts, others)\n--\n\n"
             "Distance of two vectors of hits (both float64), its mean by chance, and its deviation.");

static PyObject *
compare_hits(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer counts, others;
    if (!PyArg_ParseTuple(args, "y*y*:compare_hits", &counts, &others))
        return NULL;
    const bool is_alike = counts.len == others.len;
    struct comparison found = {0};
    if (is_alike)
        found = compare(counts.buf, others.buf, (size_t)counts.len / sizeof(double));
    else
        PyErr_SetString(PyExc_ValueError, "vectors of one length are compared");
    PyBuffer_Release(&counts);
    PyBuffer_Release(&others);
    return is_alike ? Py_BuildValue("(ddd)", found.distance, found.expected, found.spread) : NULL;
}

PyMethodDef memsampd_noise[] = {
    {"compare_hits", compare_hits, METH_VARARGS, compare_hits_doc},
    {NULL, NULL, 0, NULL},
};
