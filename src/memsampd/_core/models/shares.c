/* Which bursts speak for which windows: the sums of estimate/sharing.py, and branch vectors by column. */
#include "core.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Of a burst's time in any bin besides those in which it was seen: what 1024 samples of it may miss. */
#define BACKGROUND (1.0 / 16384)

/* Windows, shape (w,), and bursts, shape (m,), by bins, shape (b,). */
struct shared {
    size_t windows, bursts, bins;
    const int64_t *window, *burst_window;
    const double *hits;       /* of windows, (w, b) */
    const double *preference; /* (w, m) */
    const double *weight;     /* how many bursts each stands for, (w, m) */
    const double *kinds;      /* share of each in code that none ran, (m,); all 0: as other code */
    double kinds_total;
    double *ran;              /* how much bursts speak for bins, (b, m) */
    bool *is_run;             /* whether any burst ran code of a bin, (b,) */
    double *nearness;         /* room for (m,) */
};

static void
fill_ran(struct shared *s, const double *code)
{
    for (size_t m = 0; m < s->bursts; m++) {
        const double *row = code + m * s->bins;
        double total = 0.0;
        for (size_t b = 0; b < s->bins; b++)
            total += row[b];
        for (size_t b = 0; b < s->bins; b++) {
            const double share = total > 0 ? row[b] / total : 1.0 / (double)s->bins;
            s->ran[b * s->bursts + m] = (share + BACKGROUND) * (share + BACKGROUND);
            s->is_run[b] = s->is_run[b] || row[b] != 0;
        }
    }
}

/* How near bursts are to a window: against the nearest one of those that are preferred. */
static void
fill_nearness(struct shared *s, size_t w)
{
    const double *preference = s->preference + w * s->bursts, *weight = s->weight + w * s->bursts;
    double most = -INFINITY, least = INFINITY;

    for (size_t m = 0; m < s->bursts; m++)
        most = fmax(most, preference[m]);
    for (size_t m = 0; m < s->bursts; m++) {
        s->nearness[m] = fabs((double)(s->window[w] - s->burst_window[m]));
        if (preference[m] == most)
            least = fmin(least, s->nearness[m]);
    }
    for (size_t m = 0; m < s->bursts; m++) {
        const double far = s->nearness[m] / (least + 1);
        s->nearness[m] = preference[m] * weight[m] / (1 + far * far);
    }
}

/* Share out a part of a window's time that was spent in one bin. */
static void
add_bin(const struct shared *s, size_t b, double time, double *shares)
{
    const double *ran = s->ran + b * s->bursts;
    double offered = 0.0;

    for (size_t m = 0; m < s->bursts; m++)
        offered += s->nearness[m] * ran[m];
    const double part = time / offered;
    for (size_t m = 0; m < s->bursts; m++)
        shares[m] += part * ran[m];
}

static void
share_window(struct shared *s, size_t w, double *shares)
{
    const double *hits = s->hits + w * s->bins;
    double total = 0.0, unseen = 0.0;

    fill_nearness(s, w);
    for (size_t b = 0; b < s->bins; b++)
        total += hits[b];
    for (size_t b = 0; b < s->bins; b++) {
        const double time = total > 0 ? hits[b] / total : 1.0 / (double)s->bins;
        if (s->kinds_total > 0 && hits[b] > 0 && !s->is_run[b])
            unseen += time;
        else if (time > 0)
            add_bin(s, b, time, shares);
    }
    for (size_t m = 0; m < s->bursts; m++) {
        shares[m] *= s->nearness[m];
        if (s->kinds_total > 0)
            shares[m] += unseen * (s->kinds[m] / s->kinds_total);
    }
}

static bool
fits(const struct shared *s, const Py_buffer *buffers)
{
    const size_t pairs = s->windows * s->bursts * sizeof(double), row = s->bins * sizeof(double);

    return s->bursts != 0 && s->bins != 0 && (size_t)buffers[1].len == s->windows * row &&
           (size_t)buffers[3].len == s->bursts * row && (size_t)buffers[4].len == pairs &&
           (size_t)buffers[5].len == pairs && (size_t)buffers[6].len == s->bursts * sizeof(double);
}

static PyObject *
shares_of(struct shared *s, const double *code)
{
    PyObject *told =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(s->windows * s->bursts * sizeof(double)));
    s->ran = PyMem_Malloc((s->bins + 1) * s->bursts * sizeof *s->ran);
    s->is_run = PyMem_Calloc(s->bins, sizeof *s->is_run);
    if (told != NULL && s->ran != NULL && s->is_run != NULL) {
        double *shares = (double *)PyBytes_AsString(told);
        s->nearness = s->ran + s->bins * s->bursts;
        memset(shares, 0, s->windows * s->bursts * sizeof *shares);
        fill_ran(s, code);
        for (size_t w = 0; w < s->windows; w++)
            share_window(s, w, shares + w * s->bursts);
    } else if (told != NULL) {
        Py_CLEAR(told);
        PyErr_NoMemory();
    }
    PyMem_Free(s->ran);
    PyMem_Free(s->is_run);
    return told;
}

PyDoc_STRVAR(share_windows_doc,
             "share_windows(windows, hits, burst_windows, code, preference, weights, kinds)\n--\n\n"
             "Shares (float64) of bursts in windows, see estimate/sharing.py: indices of windows (int64), "
             "branch vectors (float64) of these and of bursts, factors of nearness and weights of each burst "
             "for each window, and shares in code that no burst ran, or zeros (float64).");

static PyObject *
share_windows(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer b[7];
    PyObject *told = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*:share_windows", &b[0], &b[1], &b[2], &b[3], &b[4],
                          &b[5], &b[6]))
        return NULL;
    struct shared s = {
        .windows = (size_t)b[0].len / sizeof(int64_t),
        .bursts = (size_t)b[2].len / sizeof(int64_t),
        .window = b[0].buf,
        .hits = b[1].buf,
        .burst_window = b[2].buf,
        .preference = b[4].buf,
        .weight = b[5].buf,
        .kinds = b[6].buf,
    };
    s.bins = s.bursts != 0 ? (size_t)b[3].len / sizeof(double) / s.bursts : 0;
    if (!fits(&s, b))
        PyErr_SetString(PyExc_ValueError, "shapes that do not fit together, or no burst");
    else {
        for (size_t m = 0; m < s.bursts; m++)
            s.kinds_total += s.kinds[m];
        told = shares_of(&s, b[3].buf);
    }
    for (size_t i = 0; i < sizeof b / sizeof *b; i++)
        PyBuffer_Release(&b[i]);
    return told;
}

/* Hits in columns, those in bins without one in the last; nothing if there are more or fewer bins. */
static void
add_hits(const uint16_t *hits, const int64_t *column, size_t bins, size_t columns, double *row)
{
    for (size_t bin = 0; bin < bins; bin++)
        if (hits[bin] != 0)
            row[column[bin] >= 0 ? (size_t)column[bin] : columns] += hits[bin];
}

PyDoc_STRVAR(hits_by_column_doc,
             "hits_by_column(vectors, columns, count)\n--\n\n"
             "Hits (float64), a row for each of a list of branch vectors (uint16): of each column, and one "
             "more for bins without any. The column of each bin is below `count`, or -1 (int64). A vector of "
             "another length has none.");

static PyObject *
hits_by_column(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *vectors;
    Py_buffer columns;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "O!y*n:hits_by_column", &PyList_Type, &vectors, &columns, &count))
        return NULL;
    const Py_ssize_t rows = PyList_Size(vectors), size = (count + 1) * (Py_ssize_t)sizeof(double);
    const size_t bins = (size_t)columns.len / sizeof(int64_t);
    PyObject *told = PyBytes_FromStringAndSize(NULL, rows * size);
    char *row = told != NULL ? PyBytes_AsString(told) : NULL;

    if (told != NULL)
        memset(row, 0, (size_t)(rows * size));
    for (Py_ssize_t i = 0; told != NULL && i < rows; i++, row += size) {
        Py_buffer hits;
        if (PyObject_GetBuffer(PyList_GetItem(vectors, i), &hits, PyBUF_SIMPLE) < 0) {
            Py_CLEAR(told);
            break;
        }
        if ((size_t)hits.len == bins * sizeof(uint16_t))
            add_hits(hits.buf, columns.buf, bins, (size_t)count, (double *)row);
        PyBuffer_Release(&hits);
    }
    PyBuffer_Release(&columns);
    return told;
}

PyMethodDef memsampd_shares[] = {
    {"share_windows", share_windows, METH_VARARGS, share_windows_doc},
    {"hits_by_column", hits_by_column, METH_VARARGS, hits_by_column_doc},
    {NULL, NULL, 0, NULL},
};
