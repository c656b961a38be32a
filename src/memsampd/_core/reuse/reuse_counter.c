/* Counting the reuse distances of one burst while it comes in, and the layout of the bins.
 *
 * The layout (memsampd.models.bins is built from the constants exported here): exact integers
 * below 2^EXACT_BITS, then 2^OCTAVE_BITS bins of equal width an octave, up to 2^LIMIT_BITS.
 *
 * Distances below EXACT are counted for all lines. Of accesses that return later, or not at all, it is
 * known how many there are, but how late only those of a sample of the lines return: all of them while
 * these are few, and half of them, chosen by a hash of their number, each time they get too many. Which
 * lines are left does not hang on when that was.
 */
#include "reuse_counter.h"
#include "recent_lines.h"
#include "scattered.h"
#include "stack_samples.h"

#define EXACT_BITS 12
#define OCTAVE_BITS 4
#define LIMIT_BITS 40
#define EXACT (1u << EXACT_BITS)
#define BINS (EXACT + ((LIMIT_BITS - EXACT_BITS) << OCTAVE_BITS))

#define SAMPLED_LINES 4096 /* that were not accessed lately, at most */
#define SAMPLED_REUSES 16384
#define SAMPLED_FIRST_BITS 8
#define LINES_AT_ONCE 2048
#define HASH_BITS 16

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
    uint64_t before, now;
    uint64_t hash; /* of the line */
} reuse;

typedef struct reuse_counter {
    recent_table recent;
    bool is_crowded;        /* with lines that all want the same places: making more is no use */
    uint64_t start;         /* time of the first access: earlier ones are of other bursts */
    uint64_t now;           /* of the next access */
    uint32_t exact[EXACT];  /* reuses by distance, but for repeats */
    uint64_t repeats;       /* reuses at distance 0 within marks */
    uint64_t seed;          /* of the choice of lines: another one for each burst */
    unsigned halvings;      /* of the sample */
    unsigned line_halvings; /* ... that were needed for its lines: at most as many */
    line_table sampled;     /* last accesses of lines that are not among the recent: all of the sample */
    reuse *distant;         /* of its lines, at distances from EXACT on */
    size_t distants;
    stack_samples stacks;
    scattered_lines scattered;
    bool is_broken;         /* memory ran out half-way: what it holds is no longer exact */
} counter;

/* Which part of the lines one belongs to: all bits depend on all of its number. */
static uint64_t
hash_of(const counter *self, uint64_t line)
{
    uint64_t hash = (line ^ self->seed) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ hash >> 32) * UINT64_C(0x94D049BB133111EB);
    return hash >> (64 - HASH_BITS);
}

static bool
is_left(uint64_t hash, unsigned halvings)
{
    return (hash & ((UINT64_C(1) << halvings) - 1)) == 0;
}

static bool
is_sampled(const counter *self, uint64_t hash)
{
    return is_left(hash, self->halvings);
}

/* Leave every other line out. */
static void
halve_sample(counter *self)
{
    size_t kept = 0;

    self->halvings++;
    for (size_t i = 0; i < self->distants; i++)
        if (is_sampled(self, self->distant[i].hash))
            self->distant[kept++] = self->distant[i];
    self->distants = kept;
}

/* ... and forget it. */
static int
halve_lines(counter *self)
{
    const line_table all = self->sampled;

    if (table_init(&self->sampled, all.bits)) {
        self->sampled = all;
        return -1;
    }
    if (self->halvings == self->line_halvings)
        halve_sample(self);
    self->line_halvings++;
    for (uint64_t i = 0; i < table_entries(&all); i++)
        if (all.entries[i].value &&
            is_left(hash_of(self, all.entries[i].line), self->line_halvings))
            table_find_or_add(&self->sampled, all.entries[i].line, all.entries[i].value);
    free(all.entries);
    stack_samples_forget(&self->stacks, EXACT);
    return 0;
}

/* Another line takes the place of this one. */
static int
put_out(counter *self, const recent_line *entry)
{
    const uint64_t hash = hash_of(self, entry->line);
    if (entry->time < self->start)
        return 0;
    while (is_left(hash, self->line_halvings) && self->sampled.used >= SAMPLED_LINES &&
           self->line_halvings < HASH_BITS)
        if (halve_lines(self) < 0)
            return -1;
    if (!is_left(hash, self->line_halvings)) {
        stack_samples_forget(&self->stacks, entry->time < self->now - EXACT ? EXACT : 0);
        return 0;
    }
    if (table_reserve(&self->sampled, 1) < 0)
        return -1;
    table_find_or_add(&self->sampled, entry->line, entry->time)->value = entry->time;
    return 0;
}

/* Those that must stay have found a place, or not; the others are put out if they do not find one. */
static int
move_recent(counter *self, recent_table *to, bool stale, bool *found)
{
    for (size_t i = 0; *found && i < recent_entries(&self->recent); i++) {
        const recent_line *entry = &self->recent.entries[i];
        if (entry->time < self->start || (entry->time < self->now - EXACT) != stale)
            continue;
        recent_line *place = recent_place(to, entry->line, 1);
        if (place != NULL)
            *place = *entry;
        else if (!stale)
            *found = false;
        else if (put_out(self, entry) < 0)
            return -1;
    }
    return 0;
}

/* More places, for all lines that were accessed lately at least. */
static int
grow_recent(counter *self)
{
    for (unsigned bits = self->recent.bits + 1;; bits++) {
        recent_table grown;
        bool found = true;
        if (recent_init(&grown, bits) < 0)
            return -1;
        if (move_recent(self, &grown, false, &found) < 0 ||
            (found && move_recent(self, &grown, true, &found) < 0)) {
            free(grown.entries);
            return -1;
        }
        if (found) {
            free(self->recent.entries);
            self->recent = grown;
            return 0;
        }
        free(grown.entries);
        if (bits >= RECENT_MOST_BITS) {
            self->is_crowded = true;
            return 0;
        }
    }
}

/* A place for a line that has none; what was there is looked after. NULL without memory. */
static recent_line *
make_place(counter *self, uint64_t line)
{
    const uint64_t stale = self->now - EXACT;
    recent_line *place = recent_place(&self->recent, line, stale);
    if (place == NULL && !self->is_crowded && self->recent.bits < RECENT_MOST_BITS) {
        if (grow_recent(self) < 0)
            return NULL;
        place = recent_place(&self->recent, line, stale);
    }
    if (place == NULL)
        place = recent_oldest(&self->recent, line);
    return put_out(self, place) < 0 ? NULL : place;
}

/* A line of the sample returns at EXACT or more, or for the first time; it was last accessed at
 * `before`, or that is to be looked up if it is 0. */
static __attribute__((noinline)) void
count_distant(counter *self, uint64_t line, uint64_t before)
{
    const uint64_t hash = hash_of(self, line);
    if (before == 0)
        before = table_find(&self->sampled, line)->value;
    if (before < self->start)
        return;
    while (self->distants == SAMPLED_REUSES && self->halvings < HASH_BITS)
        halve_sample(self);
    if (self->distants < SAMPLED_REUSES && is_sampled(self, hash))
        self->distant[self->distants++] = (reuse){before, self->now, hash};
}

/* Whether the stack distances of what comes now are looked at. */
static bool
has_stacks(const counter *self)
{
    return self->now - self->start < STACK_ACCESSES - LINE_NUMBERS;
}

/* A line that is not at home is accessed again, or for the first time, which `before` = 0 tells as little
 * as that it was not lately. */
static void
note_stack(counter *self, uint64_t line, uint64_t before)
{
    const uint64_t start = self->start;

    if (before == 0 && self->stacks.below > EXACT)
        before = table_find(&self->sampled, line)->value;
    if (before >= start && self->now - before - 1 < self->stacks.below)
        stack_samples_note(&self->stacks, (uint32_t)(before - start), (uint32_t)(self->now - start));
}

/* A line that is not at home. Its last access of these is at `last`. */
static __attribute__((noinline)) int
count_strange(counter *self, uint64_t line, uint64_t last)
{
    recent_line *entry = recent_find(&self->recent, line), *home = recent_home(&self->recent, line);
    const uint64_t before = entry != NULL ? entry->time : 0;

    if (entry == NULL) {
        entry = make_place(self, line);
        if (entry == NULL)
            return -1;
        entry->line = line;
    } else if (home->time < self->now - EXACT) { /* it can go home by now */
        if (put_out(self, home) < 0)
            return -1;
        entry->time = entry->line = 0;
        entry = home;
        entry->line = line;
    }
    entry->time = last;
    if (has_stacks(self))
        note_stack(self, line, before);
    if (self->now - before - 1 < EXACT) {
        self->exact[self->now - before - 1]++;
        return 0;
    }
    scattered_note(&self->scattered, line);
    if (is_sampled(self, hash_of(self, line)))
        count_distant(self, line, before);
    return 0;
}

/* Marks that are being counted: from which on, at what time, and where the next rare line goes. */
struct counting {
    size_t i;
    uint64_t now, *rare;
};

/* Count marks up to the last one, or as long as there are stack distances to be looked at. */
ALWAYS_INLINE bool
count_marks(counter *self, const struct line_marks *marks, struct counting *at, bool with_stacks)
{
    recent_table recent = self->recent; /* by value: stores do not change it */
    uint32_t *const exact = self->exact;
    uint8_t *const is_last = self->stacks.is_last;
    const uint64_t *const mark = marks->mark, start = self->start;
    uint64_t now = at->now, next = mark[at->i], *rare = at->rare;
    size_t i = at->i;

    for (; i < marks->count; i++) {
        const uint64_t line = next & LINE_MASK, number = next >> LINE_BITS;
        const uint32_t since = (uint32_t)(now - start);
        if (with_stacks && since >= STACK_ACCESSES - LINE_NUMBERS)
            break;
        next = mark[i + 1];
        const uint64_t last = now + (((next >> LINE_BITS) - number - 1) & (LINE_NUMBERS - 1));
        recent_line *entry = recent_home(&recent, line);
        if (with_stacks)
            is_last[last - start] = 1;
        if (__builtin_expect(entry->line == line, 1)) {
            const uint64_t before = entry->time, distance = now - before - 1;
            entry->time = last;
            if (__builtin_expect(distance < EXACT, 1)) {
                exact[distance]++;
                if (with_stacks) {
                    is_last[before - start] = 0;
                    if (__builtin_expect(stack_samples_want(since, STACK_NEAR), 0))
                        stack_samples_take(&self->stacks, (uint32_t)(before - start), since);
                }
            } else {
                *rare++ = line;
                self->now = now;
                scattered_note(&self->scattered, line);
                if (with_stacks && before >= start)
                    stack_samples_note(&self->stacks, (uint32_t)(before - start), since);
                if (is_sampled(self, hash_of(self, line)))
                    count_distant(self, line, before);
            }
        } else {
            *rare++ = line;
            self->now = now;
            if (__builtin_expect(count_strange(self, line, last) < 0, 0))
                return false;
            recent = self->recent;
        }
        now = last + 1;
    }
    *at = (struct counting){i, now, rare};
    return true;
}

bool
reuse_counter_count(counter *self, struct line_marks *marks, size_t *rare)
{
    const size_t count = marks->count;
    const uint64_t started = self->now;
    struct counting at = {0, started, marks->mark};

    if (count != 0)
        marks->mark[count] = marks->accesses << LINE_BITS;
    if ((has_stacks(self) && !count_marks(self, marks, &at, true)) ||
        (at.i < count && !count_marks(self, marks, &at, false))) {
        self->is_broken = true;
        return false;
    }
    self->now = at.now;
    self->repeats += at.now - started - count;
    *rare = (size_t)(at.rare - marks->mark);
    line_marks_take(marks);
    return true;
}

/* An access that was seen to return counts as a reuse only if the whole of its distance's bin
 * could be seen from it; else it is censored, like one that did not return. So censoring depends
 * on the position in the burst alone, and bins need no guess of what happened inside them.
 *
 * A bin that is one integer could be seen. Of wider ones it is known only now, at the end. */
static void
sum_up_sample(const counter *self, uint64_t *reuses, uint64_t *censored)
{
    const uint64_t end = self->now - 1;
    for (size_t i = 0; i < self->distants; i++) {
        const reuse each = self->distant[i];
        unsigned bin = bin_of(each.now - each.before - 1);
        (bin < bin_of(end - each.before) ? reuses : censored)[bin]++;
    }
    for (uint64_t i = 0; i < table_entries(&self->sampled); i++) {
        const table_entry *entry = &self->sampled.entries[i];
        if (!entry->value || !is_sampled(self, hash_of(self, entry->line)))
            continue;
        const recent_line *recent = recent_find(&self->recent, entry->line);
        if (recent == NULL || recent->time < self->start)
            censored[bin_of(end - entry->value)]++;
    }
    for (size_t i = 0; i < recent_entries(&self->recent); i++) {
        const recent_line *entry = &self->recent.entries[i];
        if (entry->time < self->start)
            continue;
        if (end - entry->time < EXACT || is_sampled(self, hash_of(self, entry->line)))
            censored[bin_of(end - entry->time)]++;
    }
}

static uint64_t
sum_of(const uint64_t *counts, unsigned first, unsigned end)
{
    uint64_t sum = 0;
    for (unsigned bin = first; bin < end; bin++)
        sum += counts[bin];
    return sum;
}

/* Make what the sample showed the share of it that all distant accesses have: rounded so that their
 * number stays what it is. */
static void
scale_sample(uint64_t *reuses, uint64_t *censored, uint64_t distant)
{
    const uint64_t seen = sum_of(reuses, EXACT, BINS) + sum_of(censored, EXACT, BINS);
    uint64_t before = 0, given = 0;

    if (seen == 0) { /* no more is known than that they are distant */
        censored[EXACT] = distant;
        return;
    }
    for (unsigned bin = EXACT; bin < BINS; bin++) {
        uint64_t *const counts[2] = {&reuses[bin], &censored[bin]};
        for (int i = 0; i < 2; i++) {
            before += *counts[i];
            uint64_t due = (uint64_t)((unsigned __int128)before * distant / seen);
            *counts[i] = due - given;
            given = due;
        }
    }
}

static void
sum_up(const counter *self, uint64_t *reuses, uint64_t *censored)
{
    for (unsigned distance = 0; distance < EXACT; distance++)
        reuses[distance] = self->exact[distance];
    reuses[0] += self->repeats;
    sum_up_sample(self, reuses, censored);
    scale_sample(reuses, censored,
                 self->now - self->start - sum_of(reuses, 0, EXACT) - sum_of(censored, 0, EXACT));
}

static int
begin(counter *self)
{
    memset(self->exact, 0, sizeof self->exact);
    self->repeats = 0;
    self->now += EXACT + 1; /* what came before is not within EXACT of the present */
    self->start = self->now;
    self->seed += UINT64_C(0x9E3779B97F4A7C15);
    self->distants = self->halvings = self->line_halvings = 0;
    stack_samples_begin(&self->stacks);
    scattered_begin(&self->scattered);
    if (self->sampled.used == 0)
        return 0;
    table_free(&self->sampled);
    return table_init(&self->sampled, SAMPLED_FIRST_BITS);
}

static int
init(counter *self, uint64_t seed)
{
    self->seed = seed;
    self->distant = malloc(SAMPLED_REUSES * sizeof *self->distant);
    if (!self->distant || stack_samples_init(&self->stacks) < 0 ||
        recent_init(&self->recent, RECENT_FIRST_BITS) < 0 ||
        table_init(&self->sampled, SAMPLED_FIRST_BITS) < 0)
        return -1;
    return begin(self);
}

/* ---- memsampd._core.ReuseCounter ---- */

typedef struct {
    PyObject_HEAD
    counter counter;
    struct line_marks marks;
    bool busy;   /* lines are counted without the GIL */
} ReuseCounter;

static PyObject *
reuse_counter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ReuseCounter *self = (ReuseCounter *)alloc(type, 0); /* zeroed */
    static char *names[] = {"seed", NULL};
    unsigned long long seed = 0;
    if (!self)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|K:ReuseCounter", names, &seed)) {
        Py_DECREF(self);
        return NULL;
    }
    line_marks_begin(&self->marks);
    if (init(&self->counter, seed) < 0) {
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
    free(self->counter.recent.entries);
    free(self->counter.sampled.entries);
    free(self->counter.distant);
    stack_samples_free(&self->counter.stacks);
    line_marks_free(&self->marks);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int
reuse_counter_check(const ReuseCounter *self, bool may_be_broken)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "ReuseCounter is in use by another thread");
    else if (self->counter.is_broken && !may_be_broken)
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
    line_marks_begin(&self->marks);
    self->counter.is_broken = begin(&self->counter) < 0;
    if (self->counter.is_broken)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_add_doc,
             "add(lines, /)\n--\n\n"
             "Count the next accesses of the present burst, a buffer of line numbers (uint64).");

static bool
count_lines(ReuseCounter *self, const line_buffer *lines)
{
    struct line_marks *marks = &self->marks;
    size_t rare;

    if (!line_marks_reserve(marks, LINES_AT_ONCE))
        return false;
    for (size_t i = 0; i < lines->count; i++) {
        line_marks_put(marks, line_at(lines->bytes, i));
        if (marks->count == LINES_AT_ONCE && !reuse_counter_count(&self->counter, marks, &rare))
            return false;
    }
    return reuse_counter_count(&self->counter, marks, &rare);
}

static PyObject *
reuse_counter_add(PyObject *object, PyObject *source)
{
    ReuseCounter *self = (ReuseCounter *)object;
    line_buffer lines;
    if (reuse_counter_check(self, false) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    if (self->counter.now - self->counter.start + lines.count > UINT32_MAX) {
        PyBuffer_Release(&lines.view);
        PyErr_SetString(PyExc_OverflowError, "a burst has less than 2**32 accesses");
        return NULL;
    }
    bool counted;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    counted = count_lines(self, &lines);
    Py_END_ALLOW_THREADS
    self->busy = false;
    PyBuffer_Release(&lines.view);
    if (!counted)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_histograms_doc,
             "histograms()\n--\n\n"
             "Return (reuses, censored) of the burst so far as bytes of int64, REUSE_BINS each.\n\n"
             "Exact below 2**REUSE_EXACT_BITS and in sum; beyond, where lines are many, as a sample\n"
             "of them tells.");

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

PyDoc_STRVAR(reuse_counter_stack_samples_doc,
             "stack_samples()\n--\n\n"
             "Return reuse and stack distances of a sample of the reuses so far, as bytes of uint32,\n"
             "two each, in the order of time. A line's accesses in a row are one of them.");

static PyObject *
reuse_counter_stack_samples(PyObject *object, PyObject *unused)
{
    ReuseCounter *self = (ReuseCounter *)object;
    (void)unused;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    const stack_samples *stacks = &self->counter.stacks;
    return PyBytes_FromStringAndSize((const char *)stacks->sample,
                                     (Py_ssize_t)(stacks->count * sizeof *stacks->sample));
}

PyDoc_STRVAR(reuse_counter_scattered_doc,
             "scattered()\n--\n\n"
             "Return how many accesses to lines that were not accessed within 2**REUSE_EXACT_BITS\n"
             "before were not near others of these.");

static PyObject *
reuse_counter_scattered(PyObject *object, PyObject *unused)
{
    ReuseCounter *self = (ReuseCounter *)object;
    (void)unused;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(self->counter.scattered.count);
}

static PyMethodDef reuse_counter_methods[] = {
    {"begin", reuse_counter_begin, METH_NOARGS, reuse_counter_begin_doc},
    {"add", reuse_counter_add, METH_O, reuse_counter_add_doc},
    {"histograms", reuse_counter_histograms, METH_NOARGS, reuse_counter_histograms_doc},
    {"scattered", reuse_counter_scattered, METH_NOARGS, reuse_counter_scattered_doc},
    {"stack_samples", reuse_counter_stack_samples, METH_NOARGS, reuse_counter_stack_samples_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reuse_counter_slots[] = {
    {Py_tp_doc, (void *)"Counts the reuse distances of one burst after the other."},
    {Py_tp_new, (void *)reuse_counter_new},
    {Py_tp_dealloc, (void *)reuse_counter_dealloc},
    {Py_tp_methods, reuse_counter_methods},
    {0, NULL},
};

static PyTypeObject *reuse_counter_type; /* kept for good */

struct reuse_counter *
reuse_counter_borrow(PyObject *object)
{
    if (!PyObject_TypeCheck(object, reuse_counter_type)) {
        PyErr_SetString(PyExc_TypeError, "not a ReuseCounter");
        return NULL;
    }
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    self->busy = true;
    return &self->counter;
}

void
reuse_counter_give_back(PyObject *object)
{
    ((ReuseCounter *)object)->busy = false;
}

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
    reuse_counter_type = (PyTypeObject *)type;
    if (failed < 0 || PyModule_AddIntConstant(module, "REUSE_BINS", BINS) < 0 ||
        PyModule_AddIntConstant(module, "LINE_BITS", LINE_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_EXACT_BITS", EXACT_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_OCTAVE_BITS", OCTAVE_BITS) < 0 ||
        PyModule_AddIntConstant(module, "REUSE_LIMIT_BITS", LIMIT_BITS) < 0)
        return -1;
    return 0;
}
