/* Which share of accesses returns and misses in LRU caches: the sums of models/statstack.py. */
#include "core.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ROUNDING 1e-9  /* relative; sums of products of ratios must not turn a hit into a miss */
#define SEEN_FROM 0.25 /* of the horizon: from there on it is seen how the curve falls */

/* A function at ascending places, linear in between. */
struct course {
    const int64_t *at;
    const double *value;
    size_t count;
};

/* As numpy's interp. */
static double
value_at(const struct course *c, double x)
{
    size_t low = 0, high = c->count;

    while (low < high) { /* the first place beyond x */
        const size_t middle = (low + high) / 2;
        if ((double)c->at[middle] <= x)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return c->value[0];
    const size_t i = low - 1;
    if (low == c->count || (double)c->at[i] == x)
        return c->value[i];
    const double slope = (c->value[low] - c->value[i]) / (double)(c->at[low] - c->at[i]);
    return slope * (x - (double)c->at[i]) + c->value[i];
}

/* Expected stack distances at the edges of a survival function. */
static void
add_up(const struct course *survival, double *stack)
{
    stack[0] = 0.0;
    for (size_t i = 0; i + 1 < survival->count; i++) {
        const double width = (double)(survival->at[i + 1] - survival->at[i]);
        const double start = survival->value[i], end = survival->value[i + 1];
        /* The sum of a linear S over the integers of a bin, its end excluded. */
        stack[i + 1] = stack[i] + (width * start + (end - start) * (width - 1) / 2);
    }
}

/* The smallest distance at which a cache of some lines misses; the horizon where that lies beyond. */
static double
missing_from(const struct course *survival, const double *stack, int64_t lines, bool *is_known)
{
    const double wanted = (double)lines * (1 - ROUNDING);
    size_t low = 0, high = survival->count;

    while (low < high) { /* the first edge that is enough */
        const size_t middle = (low + high) / 2;
        if (stack[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    *is_known = low < survival->count;
    if (!*is_known)
        return (double)survival->at[survival->count - 1];
    const size_t i = low - 1;
    const double width = (double)(survival->at[low] - survival->at[i]), start = survival->value[i];
    const double slope = (survival->value[low] - start) / width;
    /* Inside the bin ES grows by x * S(start) + slope * x * (x - 1) / 2: the first x that is enough. */
    const double missing = wanted - stack[i], linear = start - slope / 2;
    const double square = linear * linear + 2 * slope * missing;
    const double root = sqrt(square > 0 ? square : 0.0);
    const double steps = ceil(2 * missing / (linear + root) - ROUNDING);
    return (double)survival->at[i] + fmin(fmax(steps, 1.0), width);
}

/* Reuses whose stack distances are known, ascending by reuse distance, in groups of like ones. */
struct samples {
    const int64_t *edges; /* of the groups; of the first one none are known */
    size_t groups;
    const int64_t *reuse, *stack;
    size_t count;
};

/* How many samples of a group have a stack distance of so many lines or more, by size; returns how many
 * there are. `*next` is the first of the group, and then of the one behind it. */
static size_t
count_reaching(const struct samples *s, int64_t end, size_t *next, const int64_t *lines, size_t sizes,
               double *reaching)
{
    const size_t first = *next;

    memset(reaching, 0, sizes * sizeof *reaching);
    for (; *next < s->count && s->reuse[*next] < end; ++*next)
        for (size_t i = 0; i < sizes && lines[i] <= s->stack[*next]; i++)
            reaching[i] += 1.0;
    return *next - first;
}

/* Replace shares that return and miss: each group of reuses tells by its samples what it does, as if one
 * more had the expected stack distance. */
static void
tell_by_samples(const struct course *survival, const struct samples *s, const int64_t *lines,
                const double *distance, size_t sizes, double *reaching, double *returned)
{
    const int64_t horizon = survival->at[survival->count - 1];
    const double never = survival->value[survival->count - 1];
    double *at_distance = reaching + sizes;
    size_t next = 0;

    while (next < s->count && s->reuse[next] < s->edges[1])
        next++;
    for (size_t i = 0; i < sizes; i++) {
        at_distance[i] = value_at(survival, distance[i]);
        returned[i] = 0.0;
    }
    double start = value_at(survival, 0.0);
    for (size_t group = 0; group < s->groups && s->edges[group] < horizon; group++) {
        const int64_t edge = s->edges[group + 1];
        const double end = value_at(survival, (double)(edge < horizon ? edge : horizon));
        const size_t seen =
            count_reaching(s, group > 0 ? edge : 0, &next, lines, sizes, reaching);
        for (size_t i = 0; i < sizes; i++) {
            /* S at the place in the group that is next to the distance. */
            const double nearest = fmax(fmin(at_distance[i], start), end);
            const double missing = reaching[i] * (start - end) + (nearest - end);
            returned[i] += missing / (double)(seen + 1);
        }
        start = end;
    }
    const int64_t last = s->edges[s->groups];
    const double until = (double)(last < horizon ? last : horizon);
    for (size_t i = 0; i < sizes; i++)
        returned[i] += value_at(survival, fmax(distance[i], until)) - never;
}

/* Ask for all sizes; `room` holds three times as many numbers, and one for each edge. */
static void
tell_all(const struct course *survival, const struct samples *s, bool has_samples,
         const int64_t *lines, size_t sizes, double *room, double *returned, char *known)
{
    double *distance = room, *reaching = room + sizes, *stack = room + 3 * sizes;
    const double never = survival->value[survival->count - 1];

    add_up(survival, stack);
    for (size_t i = 0; i < sizes; i++) {
        bool is_known;
        distance[i] = missing_from(survival, stack, lines[i], &is_known);
        known[i] = (char)is_known;
        returned[i] = fmax(value_at(survival, distance[i]) - never, 0.0);
    }
    if (has_samples)
        tell_by_samples(survival, s, lines, distance, sizes, reaching, returned);
}

/* How it fell lately: expected stack distances and S a quarter of the horizon from 0, and there. */
static PyObject *
fall_of(const struct course *survival, const double *stack)
{
    const struct course stacks = {survival->at, stack, survival->count};
    const double last = (double)survival->at[survival->count - 1], first = last * SEEN_FROM;

    return Py_BuildValue("(dddd)", value_at(&stacks, first), value_at(&stacks, last),
                         value_at(survival, first), value_at(survival, last));
}

PyDoc_STRVAR(lru_returns_doc,
             "lru_returns(edges, survival, lines, groups, reuse, stack)\n--\n\n"
             "Shares (float64) of accesses that return within the horizon and miss, for each size, whether "
             "it is within what the horizon tells (bool), and how the function fell over the last two "
             "octaves: expected stack distances and S a quarter of the horizon from 0 and there.\n\n"
             "A survival function by edges (int64) and values (float64), sizes in lines (int64), edges of "
             "groups of like reuses, and reuse and stack distances of some, ascending, or None (int64).");

static PyObject *
lru_returns(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer edges, values, lines, groups, reuse, stack;
    if (!PyArg_ParseTuple(args, "y*y*y*y*z*z*:lru_returns", &edges, &values, &lines, &groups, &reuse,
                          &stack))
        return NULL;
    const struct course survival = {edges.buf, values.buf, (size_t)edges.len / sizeof(int64_t)};
    const struct samples samples = {groups.buf, (size_t)groups.len / sizeof(int64_t) - 1, reuse.buf,
                                    stack.buf, (size_t)reuse.len / sizeof(int64_t)};
    const size_t sizes = (size_t)lines.len / sizeof(int64_t);
    double *room = PyMem_Malloc((3 * sizes + survival.count) * sizeof *room);
    PyObject *returned = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizes * sizeof(double)));
    PyObject *known = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes);
    PyObject *told = NULL;

    if (edges.len != values.len || survival.count == 0 || groups.len == 0 || reuse.len != stack.len)
        PyErr_SetString(PyExc_ValueError, "places and values differ in number, or there are none");
    else if (room != NULL && returned != NULL && known != NULL) {
        tell_all(&survival, &samples, reuse.buf != NULL, lines.buf, sizes, room,
                 (double *)PyBytes_AsString(returned), PyBytes_AsString(known));
        told = Py_BuildValue("(OON)", returned, known, fall_of(&survival, room + 3 * sizes));
    } else if (room == NULL)
        PyErr_NoMemory();
    Py_XDECREF(returned);
    Py_XDECREF(known);
    PyMem_Free(room);
    PyBuffer_Release(&edges);
    PyBuffer_Release(&values);
    PyBuffer_Release(&lines);
    PyBuffer_Release(&groups);
    PyBuffer_Release(&reuse);
    PyBuffer_Release(&stack);
    return told;
}

PyMethodDef memsampd_lru_returns[] = {
    {"lru_returns", lru_returns, METH_VARARGS, lru_returns_doc},
    {NULL, NULL, 0, NULL},
};
