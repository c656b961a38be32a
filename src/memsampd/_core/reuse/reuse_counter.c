/* Counting the reuse distances of one burst while it comes in, and the layout of the bins.
 *
 * The layout (memsampd.models.bins is built from the constants exported here): exact integers
 * below 2^EXACT_BITS, then 2^OCTAVE_BITS bins of equal width an octave, up to 2^LIMIT_BITS.
 */
#include "group_table.h"

#define EXACT_BITS 12
#define OCTAVE_BITS 4
#define LIMIT_BITS 40
#define EXACT (1u << EXACT_BITS)
#define BINS (EXACT + ((LIMIT_BITS - EXACT_BITS) << OCTAVE_BITS))

#define BATCH 64
/* Of the first access: one that was never made is then never within EXACT of the present. */
#define FIRST_TIME (EXACT + 1)
#define MAX_ACCESSES (UINT32_MAX - FIRST_TIME)
#define FIRST_DISTANT 4096

ALWAYS_INLINE unsigned
bin_of(uint64_t distance)
{
    if (distance < EXACT)
        return (unsigned)distance;
    if (distance >= (uint64_t)1 << LIMIT_BITS)
        return BINS - 1;
    unsigned octave = 63 - (unsigned)__builtin_clzll(distance);
    unsigned part = (unsigned)(distance >> (octave - OCTAVE_BITS)) & ((1 << OCTAVE_BITS) - 1);
    return EXACT + ((octave - EXACT_BITS) << OCTAVE_BITS) + part;
}

/* Two accesses to a line with none between: when they were. */
typedef struct {
    uint32_t before, now;
} reuse;

typedef struct {
    group_table last;      /* when each line was last touched */
    uint32_t now;          /* of the next access */
    uint32_t starts_end;   /* accesses from then on tell only whether earlier ones return */
    uint32_t exact[EXACT]; /* reuses by distance */
    reuse *distant;        /* those of larger distances, and first touches */
    size_t distants, distant_capacity;
} counter;

static int
reserve_distant(counter *self)
{
    if (self->distants + BATCH <= self->distant_capacity)
        return 0;
    size_t capacity = 2 * (self->distants + FIRST_DISTANT);
    reuse *distant = realloc(self->distant, capacity * sizeof *distant);
    if (!distant)
        return -1;
    self->distant = distant;
    self->distant_capacity = capacity;
    return 0;
}

/* The entry of a group that may be new, of a table given by value: what the caller knows of it then
 * stays in registers. */
static __attribute__((noinline)) line_group *
find_or_add(group_table table, uint64_t tag, uint64_t *used)
{
    line_group *entry = group_find(&table, tag);
    *used += entry->tag == 0;
    entry->tag = tag;
    return entry;
}

/* Room for them is there. `all` of them, and what was before, is followed. */
ALWAYS_INLINE void
count_batch(counter *self, const unsigned char *lines, unsigned batch, bool all)
{
    const group_table table = self->last;
    reuse *distant = self->distant + self->distants;
    uint32_t now = self->now;
    for (unsigned i = 0; i < batch; i++, now++) {
        uint64_t line = line_at(lines, i), tag = group_tag(line);
        line_group *group = group_home(&table, tag);
        if (__builtin_expect(group->tag != tag, 0))
            group = find_or_add(table, tag, &self->last.used);
        uint32_t *time = &group->time[line % GROUP_LINES];
        uint32_t before = *time, distance = now - before - 1;
        *time = now;
        if (distance < EXACT)
            self->exact[distance] += all || before < self->starts_end;
        else
            *distant++ = (reuse){before, now};
    }
    self->now = now;
    self->distants = (size_t)(distant - self->distant);
}

ALWAYS_INLINE void
prefetch_batch(const counter *self, const unsigned char *lines, unsigned batch)
{
    for (unsigned i = 0; i < batch; i++)
        __builtin_prefetch(group_home(&self->last, group_tag(line_at(lines, i))), 1);
}

static int
count_lines(counter *self, const line_buffer *lines, size_t start, size_t end, bool all)
{
    for (; start < end; start += BATCH) {
        size_t left = end - start;
        unsigned batch = left < BATCH ? (unsigned)left : BATCH;
        if (groups_reserve(&self->last, batch) < 0 || reserve_distant(self) < 0)
            return -1;
        if (groups_entries(&self->last) * sizeof(line_group) > FARTHEST_CACHE_BYTES)
            prefetch_batch(self, lines->bytes + 8 * start, batch);
        if (all)
            count_batch(self, lines->bytes + 8 * start, batch, true);
        else
            count_batch(self, lines->bytes + 8 * start, batch, false);
    }
    return 0;
}

/* The first `starts` of them are followed from. */
static int
count(counter *self, const line_buffer *lines, size_t starts)
{
    if (count_lines(self, lines, 0, starts, true) < 0)
        return -1;
    if (starts == lines->count)
        return 0;
    if (self->starts_end == UINT32_MAX)
        self->starts_end = self->now;
    return count_lines(self, lines, starts, lines->count, false);
}

/* An access that was seen to return counts as a reuse only if the whole of its distance's bin
 * could be seen from it; else it is censored, like one that did not return. So censoring depends
 * on the position in the burst alone, and bins need no guess of what happened inside them.
 *
 * A bin that is one integer could be seen. Of wider ones it is known only now, at the end. */
static void
sum_up(const counter *self, uint64_t *reuses, uint64_t *censored)
{
    const uint32_t end = self->now - 1;
    for (unsigned distance = 0; distance < EXACT; distance++)
        reuses[distance] = self->exact[distance];
    for (size_t i = 0; i < self->distants; i++) {
        const reuse each = self->distant[i];
        unsigned bin = bin_of(each.now - each.before - 1);
        if (each.before != 0 && each.before < self->starts_end)
            (bin < bin_of(end - each.before) ? reuses : censored)[bin]++;
    }
    for (uint64_t i = 0; i < groups_entries(&self->last); i++)
        for (unsigned line = 0; line < GROUP_LINES; line++)
            if (self->last.entries[i].time[line] &&
                self->last.entries[i].time[line] < self->starts_end)
                censored[bin_of(end - self->last.entries[i].time[line])]++;
}

static int
begin(counter *self)
{
    memset(self->exact, 0, sizeof self->exact);
    self->now = FIRST_TIME;
    self->starts_end = UINT32_MAX;
    self->distants = 0;
    return groups_clear(&self->last);
}

/* ---- memsampd._core.ReuseCounter ---- */

typedef struct {
    PyObject_HEAD
    counter counter;
    bool busy;   /* lines are counted without the GIL */
    bool broken; /* memory ran out half-way: what it holds is no longer exact */
} ReuseCounter;

static PyObject *
reuse_counter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ReuseCounter *self = (ReuseCounter *)alloc(type, 0); /* zeroed */
    (void)args;
    (void)kwargs;
    if (!self)
        return NULL;
    if (groups_init(&self->counter.last, GROUPS_FIRST_BITS) < 0 || begin(&self->counter) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
reuse_counter_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ReuseCounter *self = (ReuseCounter *)object;
    free(self->counter.last.entries);
    free(self->counter.distant);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int
reuse_counter_check(const ReuseCounter *self, bool may_be_broken)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "ReuseCounter is in use by another thread");
    else if (self->broken && !may_be_broken)
        PyErr_SetString(PyExc_RuntimeError, "ReuseCounter ran out of memory before");
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(reuse_counter_begin_doc,
             "begin()\n--\n\n"
             "Forget what was counted, and begin another burst.");

static PyObject *
reuse_counter_begin(PyObject *object, PyObject *unused)
{
    ReuseCounter *self = (ReuseCounter *)object;
    (void)unused;
    if (reuse_counter_check(self, true) < 0)
        return NULL;
    self->broken = begin(&self->counter) < 0;
    if (self->broken)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_add_doc,
             "add(lines, starts=None, /)\n--\n\n"
             "Count the next lines of the present burst, a buffer of uint64.\n\n"
             "After the first `starts` of them, if these are not all, and in later calls, accesses\n"
             "count no more: they only tell whether earlier ones return.");

static PyObject *
reuse_counter_add(PyObject *object, PyObject *args)
{
    ReuseCounter *self = (ReuseCounter *)object;
    PyObject *source, *limit = Py_None;
    line_buffer lines;
    if (!PyArg_ParseTuple(args, "O|O:add", &source, &limit) ||
        reuse_counter_check(self, false) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    size_t starts = limit == Py_None ? lines.count : PyLong_AsSize_t(limit);
    if (PyErr_Occurred()) {
        PyBuffer_Release(&lines.view);
        return NULL;
    }
    if (self->counter.starts_end != UINT32_MAX)
        starts = 0;
    else if (starts > lines.count)
        starts = lines.count;
    if (lines.count > MAX_ACCESSES - (self->counter.now - FIRST_TIME)) {
        PyBuffer_Release(&lines.view);
        PyErr_SetString(PyExc_OverflowError, "a burst has less than 2**32 accesses");
        return NULL;
    }
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    self->broken = count(&self->counter, &lines, starts) < 0;
    Py_END_ALLOW_THREADS
    self->busy = false;
    PyBuffer_Release(&lines.view);
    if (self->broken)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_histograms_doc,
             "histograms()\n--\n\n"
             "Return (reuses, censored) of the burst so far as bytes of int64, REUSE_BINS each.");

static PyObject *
reuse_counter_histograms(PyObject *object, PyObject *unused)
{
    ReuseCounter *self = (ReuseCounter *)object;
    (void)unused;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    uint64_t *histograms = calloc(2 * BINS, sizeof *histograms);
    if (!histograms)
        return PyErr_NoMemory();
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    sum_up(&self->counter, histograms, histograms + BINS);
    Py_END_ALLOW_THREADS
    self->busy = false;
    const Py_ssize_t bytes = (Py_ssize_t)(BINS * sizeof *histograms);
    PyObject *result =
        Py_BuildValue("y#y#", (char *)histograms, bytes, (char *)(histograms + BINS), bytes);
    free(histograms);
    return result;
}

static PyMethodDef reuse_counter_methods[] = {
    {"begin", reuse_counter_begin, METH_NOARGS, reuse_counter_begin_doc},
    {"add", reuse_counter_add, METH_VARARGS, reuse_counter_add_doc},
    {"histograms", reuse_counter_histograms, METH_NOARGS, reuse_counter_histograms_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reuse_counter_slots[] = {
    {Py_tp_doc, (void *)"Counts the reuse distances of one burst after the other."},
    {Py_tp_new, (void *)reuse_counter_new},
    {Py_tp_dealloc, (void *)reuse_counter_dealloc},
    {Py_tp_methods, reuse_counter_methods},
    {0, NULL},
};

static PyType_Spec reuse_counter_spec = {
    .name = "memsampd._core.ReuseCounter",
    .basicsize = sizeof(ReuseCounter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reuse_counter_slots,
};

int
memsampd_add_reuse_counter(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&reuse_counter_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "ReuseCounter", type);
    Py_DECREF(type);
    if (failed < 0 || PyModule_AddIntConstant(module, "REUSE_BINS", BINS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_EXACT_BITS", EXACT_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_OCTAVE_BITS", OCTAVE_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_LIMIT_BITS", LIMIT_BITS) < 0)
        return -1;
    return 0;
}
