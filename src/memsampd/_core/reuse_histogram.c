/* Histogram of reuse distances of one burst, and the layout of its bins.
 *
 * The layout (memsampd.models.bins is built from the constants exported here): exact integers
 * below 2^EXACT_BITS, then 2^OCTAVE_BITS bins of equal width an octave, up to 2^LIMIT_BITS.
 */
#include "line_table.h"

#define EXACT_BITS 12
#define OCTAVE_BITS 4
#define LIMIT_BITS 40
#define BINS ((1 << EXACT_BITS) + ((LIMIT_BITS - EXACT_BITS) << OCTAVE_BITS))

#define BATCH 64

ALWAYS_INLINE unsigned
bin_of(uint64_t distance)
{
    if (distance < (uint64_t)1 << EXACT_BITS)
        return (unsigned)distance;
    if (distance >= (uint64_t)1 << LIMIT_BITS)
        return BINS - 1;
    unsigned octave = 63 - (unsigned)__builtin_clzll(distance);
    unsigned part = (unsigned)(distance >> (octave - OCTAVE_BITS)) & ((1 << OCTAVE_BITS) - 1);
    return (1 << EXACT_BITS) + ((octave - EXACT_BITS) << OCTAVE_BITS) + part;
}

/* An access that was seen to return counts as a reuse only if the whole of its distance's bin
 * could be seen from it; else it is censored, like one that did not return. So censoring depends
 * on the position in the burst alone, and bins need no guess of what happened inside them. */
ALWAYS_INLINE void
count_reuse(uint64_t distance, uint64_t sight, uint64_t *reuses, uint64_t *censored)
{
    unsigned bin = bin_of(distance);
    unsigned last = bin_of(sight);
    uint64_t *histogram = bin < last ? reuses : censored;
    histogram[bin]++;
}

/* Values in the table are 1 + the time of the last access. */
static int
fill(const line_buffer *lines, uint64_t *reuses, uint64_t *censored)
{
    line_table table;
    uint64_t count = lines->count;
    table_entry *entries[BATCH];
    if (table_init(&table, 12))
        return -1;
    for (uint64_t start = 0; start < count; start += BATCH) {
        unsigned batch = count - start < BATCH ? (unsigned)(count - start) : BATCH;
        const unsigned char *bytes = lines->bytes + 8 * start;
        if (table_reserve(&table, BATCH)) {
            table_free(&table);
            return -1;
        }
        for (unsigned i = 0; i < batch; i++) {
            entries[i] = table_home(&table, line_at(bytes, i));
            __builtin_prefetch(entries[i], 1);
        }
        for (unsigned i = 0; i < batch; i++) {
            uint64_t now = start + i + 1;
            table_entry *entry = table_find_or_add(&table, line_at(bytes, i), now);
            if (entry->value != now) {
                count_reuse(now - entry->value - 1, count - entry->value, reuses, censored);
                entry->value = now;
            }
        }
    }
    for (uint64_t i = 0; i < table_entries(&table); i++)
        if (table.entries[i].value)
            censored[bin_of(count - table.entries[i].value)]++;
    table_free(&table);
    return 0;
}

PyDoc_STRVAR(reuse_histogram_doc,
             "reuse_histogram(lines, /)\n--\n\n"
             "Return (reuses, censored) of a burst as bytes of int64, REUSE_BINS each.");

static PyObject *
reuse_histogram(PyObject *module, PyObject *object)
{
    line_buffer lines;
    int failed = -1;
    (void)module;
    if (memsampd_get_lines(object, &lines) < 0)
        return NULL;
    uint64_t *histograms = calloc(2 * BINS, sizeof *histograms);
    if (histograms) {
        Py_BEGIN_ALLOW_THREADS
        failed = fill(&lines, histograms, histograms + BINS);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&lines.view);
    PyObject *result =
        failed ? PyErr_NoMemory()
               : Py_BuildValue("y#y#", (char *)histograms, (Py_ssize_t)(BINS * sizeof *histograms),
                               (char *)(histograms + BINS),
                               (Py_ssize_t)(BINS * sizeof *histograms));
    free(histograms);
    return result;
}

static PyMethodDef functions[] = {
    {"reuse_histogram", reuse_histogram, METH_O, reuse_histogram_doc},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_reuse_histogram(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "REUSE_BINS", BINS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_EXACT_BITS", EXACT_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_OCTAVE_BITS", OCTAVE_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_LIMIT_BITS", LIMIT_BITS) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
