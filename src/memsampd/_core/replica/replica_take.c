/* memsampd._core.Replica gives what a burst recorded: rows, or counts of lines; times of a modelled core. */
#include "replica.h"
#include "stored_memory.h"

#define CHUNK_ROWS ((size_t)1 << 15) /* in a cache still, and few enough to cost Python little */

/* Made when it is wanted first. False without memory, with an exception set. */
static bool
has_core(Replica *self)
{
    if (self->core == NULL && (self->core = core_model_create()) == NULL)
        PyErr_NoMemory();
    return self->core != NULL;
}

/* How many parts the last burst has, up to so many accesses; whether it began where code was sought. */
PyObject *
replica_parts(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    const struct record_list all = {r->start, r->written, r->has_cut_record ? &r->part_exit : NULL};
    unsigned long long most_accesses;
    int is_sought;

    if (!PyArg_ParseTuple(args, "Kp:parts", &most_accesses, &is_sought))
        return NULL;
    if (!has_core(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    self->parts = find_parts(self->core, &r->blocks, r->expansion.segment_base, &all,
                             most_accesses, is_sought);
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(self->parts.count);
}

/* Begin with the records of a part, of all if it is -1. */
static void
begin(Replica *self, uint64_t limit, unsigned line_shift, int part)
{
    struct runner *r = &self->runner;

    r->expansion.chunk_rows = CHUNK_ROWS;
    expansion_begin(&r->expansion, limit, line_shift);
    self->from = self->at = part > 0 ? self->parts.end[part - 1] : r->start;
    self->until = part >= 0 ? self->parts.end[part] : r->written;
    self->has_cut_record = r->has_cut_record && (part < 0 || part + 1 == (int)self->parts.count);
    self->is_expanded = self->took_cut_record = false;
}

PyObject *
replica_begin_take(Replica *self, PyObject *args)
{
    unsigned long long limit;
    unsigned line_shift;
    int part = -1;
    PyObject *counter = Py_None;

    if (!PyArg_ParseTuple(args, "KI|Oi:begin_take", &limit, &line_shift, &counter, &part))
        return NULL;
    if ((counter != Py_None) != (line_shift != 0) || (line_shift != 0 && limit > UINT32_MAX / 2)) {
        PyErr_SetString(PyExc_ValueError, "lines are counted, less than 2**31 of them");
        return NULL;
    }
    if (line_shift > 32) {
        PyErr_SetString(PyExc_ValueError, "lines are at most 4 GiB long");
        return NULL;
    }
    if (part >= (int)self->parts.count) {
        PyErr_SetString(PyExc_ValueError, "there is no such part");
        return NULL;
    }
    Py_XDECREF(self->counter);
    self->counter = counter == Py_None ? NULL : Py_NewRef(counter);
    begin(self, limit, line_shift, part);
    Py_RETURN_NONE;
}

static void
note_pages(void *context, const uint64_t *lines, size_t count, unsigned shift)
{
    pages_note_lines(context, lines, count, shift);
}

/* Expand until a chunk is due; -1: no memory. */
static int
expand_some(Replica *self)
{
    struct runner *r = &self->runner;
    struct expansion *x = &r->expansion;
    enum expanded result = expand(x, &self->at, self->until);

    if (result == EXPANDED_ALL && self->has_cut_record && !x->is_full) {
        result = expand_cut(x, r->written, &r->part_exit);
        self->has_cut_record = result == EXPANDED_CHUNK;
        self->took_cut_record = true;
    }
    self->is_expanded = result != EXPANDED_CHUNK;
    if (result == EXPANDED_NO_MEMORY || (x->line_shift != 0 && !expansion_count(x)))
        return -1;
    return 0;
}

/* Learn how many words an access takes, so that the buffer ends where the burst is full. What lies behind
 * the last access that was wanted tells nothing. */
static void
learn_words(struct runner *r, const uint64_t *from, const uint64_t *until)
{
    if (r->expansion.total < 1000)
        return;
    double seen = (double)(until - from) / (double)r->expansion.total;
    r->words_per_access += 0.5 * (seen - r->words_per_access);
}

static PyObject *
counts_taken(struct expansion *x)
{
    PyObject *taken = Py_BuildValue("(KKKK)", (unsigned long long)x->counted_rows,
                                    (unsigned long long)x->counted_writes,
                                    (unsigned long long)x->instructions,
                                    (unsigned long long)x->prefetches);
    x->counted_rows = x->counted_writes = 0;
    return taken;
}

PyObject *
replica_take(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct expansion *x = &self->runner.expansion;
    int failed;

    if (self->is_expanded)
        Py_RETURN_NONE;
    if (self->counter != NULL && (x->counter = reuse_counter_borrow(self->counter)) == NULL)
        return NULL;
    x->note = note_pages;
    x->note_context = &self->runner.pages;
    Py_BEGIN_ALLOW_THREADS
    failed = expand_some(self);
    if (failed == 0 && x->line_shift == 0)
        pages_note_lines(&self->runner.pages, x->rows.address, x->rows.count, 0);
    Py_END_ALLOW_THREADS
    if (self->counter != NULL)
        reuse_counter_give_back(self->counter);
    if (failed < 0)
        return PyErr_NoMemory();
    if (self->is_expanded && self->until == self->runner.written)
        learn_words(&self->runner, self->from, self->at);
    PyObject *taken = self->counter != NULL
                          ? counts_taken(x)
                          : rows_take(&x->rows, x->instructions, x->prefetches);
    x->instructions = x->prefetches = 0;
    return taken;
}

/* Which lines are wanted: those whose hash, of 16 bits, is below. */
struct line_choice {
    unsigned shift, below;
    unsigned long long odd; /* the hash's multiplier */
};

/* Of the rows from `first` on, the first of which was the burst's `now`-th, keep those of chosen lines, and
 * note which they were. -1 without memory. */
static int
keep_chosen(struct rows *rows, uint32_t **time, size_t first, uint32_t now,
            const struct line_choice *choice)
{
    const size_t count = rows->count;
    uint32_t *more = realloc(*time, (count + 1) * sizeof *more);

    if (more == NULL)
        return -1;
    *time = more;
    rows->count = first;
    for (size_t i = first; i < count; i++, now++) {
        const uint64_t line = rows->address[i] >> choice->shift;
        if ((line * choice->odd) >> 48 >= choice->below)
            continue;
        const size_t to = rows->count++;
        rows->ip[to] = rows->ip[i];
        rows->address[to] = rows->address[i];
        rows->size_bytes[to] = rows->size_bytes[i];
        rows->is_write[to] = rows->is_write[i];
        more[to] = now;
    }
    return 0;
}

static int
expand_chosen(Replica *self, uint32_t **time, const struct line_choice *choice)
{
    struct expansion *x = &self->runner.expansion;

    while (!self->is_expanded) {
        const size_t kept = x->rows.count;
        const uint64_t now = x->total;
        x->chunk_rows = kept + CHUNK_ROWS;
        if (expand_some(self) < 0 || keep_chosen(&x->rows, time, kept, (uint32_t)now, choice) < 0)
            return -1;
    }
    return 0;
}

/* The same rows once more, but only those of some lines. */
PyObject *
replica_rows_again(Replica *self, PyObject *args)
{
    struct expansion *x = &self->runner.expansion;
    struct line_choice choice;
    unsigned long long limit;
    uint32_t *time = NULL;
    int failed;

    if (!PyArg_ParseTuple(args, "KIKI:rows_again", &limit, &choice.shift, &choice.odd,
                          &choice.below))
        return NULL;
    if (choice.shift > 32 || limit > UINT32_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "lines are at most 4 GiB long, and rows less than 2**31");
        return NULL;
    }
    begin(self, limit, 0, -1);
    Py_BEGIN_ALLOW_THREADS
    failed = expand_chosen(self, &time, &choice);
    Py_END_ALLOW_THREADS
    PyObject *taken = NULL;
    if (failed < 0) {
        PyErr_NoMemory();
    } else {
        const Py_ssize_t bytes = (Py_ssize_t)(x->rows.count * sizeof *time);
        taken = Py_BuildValue("(y#N)", time != NULL ? (const char *)time : "", bytes,
                              rows_take(&x->rows, x->instructions, x->prefetches));
    }
    x->instructions = x->prefetches = 0;
    free(time);
    return taken;
}

static PyObject *
words_as_bytes(const uint64_t *words, size_t count)
{
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof *words));
}

PyObject *
replica_repeats(Replica *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(self->runner.expansion.repeats);
}

/* An instruction is there once for each block that it ran in. */
PyObject *
replica_visits(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct expansion *x = &self->runner.expansion;
    const struct ran *ran = &x->visits.ran;

    if (!visits_collect(&x->visits, x->blocks))
        return PyErr_NoMemory();
    return Py_BuildValue("(NN)", words_as_bytes(ran->ip, ran->count),
                         words_as_bytes(ran->times, ran->count));
}

/* What the core model says of what was taken: (instructions, accesses, distant ones, cycles if all are near,
 * cycles). */
PyObject *
replica_core_times(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct runner *r = &self->runner;
    const struct record_list taken = {self->from, self->at, self->took_cut_record ? &r->part_exit : NULL};
    struct core_times t;

    if (!has_core(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    t = core_model_run(self->core, &r->blocks, r->expansion.segment_base, &taken);
    const uint64_t *stored;
    const size_t stores = core_model_stores(self->core, &stored);
    pages_note_stores(&self->runner.pages, stored, stores);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(KKKdd)", (unsigned long long)t.instructions,
                         (unsigned long long)t.accesses, (unsigned long long)t.distant,
                         t.near_cycles, t.distant_cycles);
}
