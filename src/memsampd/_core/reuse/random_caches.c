/* Exact simulation of fully associative caches of several sizes that replace at random.
 *
 * One table holds every line ever touched with a bit for each cache that has it now, so that an
 * access which hits everywhere costs one lookup. Each cache draws its victims from its own
 * generator (splitmix64), two misses ahead: time enough to fetch the victim and its table entry
 * from memory. Slots that never held a line are filled first, in order.
 */
#include "line_table.h"
#include "splitmix64.h"

#define BATCH 32
#define KNOWN ((uint64_t)1 << 63) /* set in every used table value */
#define MAX_SIZES 63

typedef struct {
    uint64_t size_lines;
    uint64_t filled;
    uint64_t *lines;      /* what each slot holds */
    uint64_t state;       /* of the generator */
    uint64_t victims[2];  /* slots to be replaced next */
    uint64_t misses;      /* since the last take */
} random_cache;

typedef struct {
    line_table lines;
    random_cache caches[MAX_SIZES];
    unsigned count;
    uint64_t everywhere;  /* KNOWN and a bit a cache */
    uint64_t accesses;    /* since the last take */
} cache_set;

ALWAYS_INLINE uint64_t
draw_slot(random_cache *cache)
{
    return ((splitmix64(&cache->state) >> 32) * cache->size_lines) >> 32;
}

/* Put a line in, and out whatever was in its place. */
ALWAYS_INLINE void
replace(cache_set *set, unsigned i, uint64_t line)
{
    random_cache *cache = &set->caches[i];
    cache->misses++;
    if (cache->filled < cache->size_lines) {
        cache->lines[cache->filled++] = line;
        return;
    }
    uint64_t victim = cache->victims[0];
    table_find(&set->lines, cache->lines[victim])->value &= ~((uint64_t)1 << i);
    cache->lines[victim] = line;
    cache->victims[0] = cache->victims[1];
    cache->victims[1] = draw_slot(cache);
    __builtin_prefetch(table_home(&set->lines, cache->lines[cache->victims[0]]), 1);
    __builtin_prefetch(&cache->lines[cache->victims[1]], 1);
}

/* An access, or several in a row: only the first can miss. */
ALWAYS_INLINE void
touch(cache_set *set, uint64_t line)
{
    table_entry *entry = table_find_or_add(&set->lines, line, KNOWN);
    uint64_t missing = set->everywhere & ~entry->value;
    entry->value = set->everywhere;
    for (; missing; missing &= missing - 1)
        replace(set, (unsigned)__builtin_ctzll(missing), line);
}

static int
set_feed(cache_set *set, const unsigned char *bytes, size_t count, bool runs)
{
    for (size_t start = 0; start < count; start += BATCH) {
        unsigned batch = count - start < BATCH ? (unsigned)(count - start) : BATCH;
        uint64_t lines[BATCH];
        if (table_reserve(&set->lines, BATCH))
            return -1;
        for (unsigned i = 0; i < batch; i++) {
            uint64_t word = line_at(bytes, start + i);
            lines[i] = runs ? run_line(word) : word;
            set->accesses += runs ? run_accesses(word) : 1;
            __builtin_prefetch(table_home(&set->lines, lines[i]), 1);
        }
        for (unsigned i = 0; i < batch; i++)
            touch(set, lines[i]);
    }
    return 0;
}

static void
set_clear(cache_set *set)
{
    table_free(&set->lines);
    for (unsigned i = 0; i < set->count; i++)
        free(set->caches[i].lines);
}

/* A cache's victims depend on the seed and its size only, not on the other caches simulated. */
static int
set_init(cache_set *set, const uint64_t *sizes, unsigned count, uint64_t seed)
{
    set->count = count;
    set->everywhere = KNOWN;
    for (unsigned i = 0; i < count; i++) {
        random_cache *cache = &set->caches[i];
        set->everywhere |= (uint64_t)1 << i;
        cache->size_lines = sizes[i];
        cache->state = seed;
        cache->state = splitmix64(&cache->state) ^ sizes[i];
        cache->victims[0] = draw_slot(cache);
        cache->victims[1] = draw_slot(cache);
        cache->lines = alloc_zeroed(sizes[i] * sizeof *cache->lines);
        if (!cache->lines)
            return -1;
    }
    return table_init(&set->lines, 12);
}

/* ---- memsampd._core.RandomCaches ---- */

typedef struct {
    PyObject_HEAD
    cache_set set;
    bool busy;
    bool broken;
} RandomCaches;

static PyObject *
random_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sizes_lines", "seed", NULL};
    PyObject *sequence;
    unsigned long long seed;
    uint64_t sizes[MAX_SIZES];
    unsigned count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OK", names, &sequence, &seed) ||
        memsampd_get_sizes(sequence, sizes, MAX_SIZES, &count) < 0)
        return NULL;
    RandomCaches *self = (RandomCaches *)PyType_GenericAlloc(type, 0);
    if (self && set_init(&self->set, sizes, count, seed)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
random_dealloc(PyObject *object)
{
    set_clear(&((RandomCaches *)object)->set);
    memsampd_free(object);
}

static int
random_check(RandomCaches *self)
{
    return memsampd_check_usable("RandomCaches", self->busy, self->broken);
}

static PyObject *
random_feed_buffer(RandomCaches *self, PyObject *source, bool runs)
{
    line_buffer lines;
    int failed;
    if (random_check(self) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    failed = set_feed(&self->set, lines.bytes, lines.count, runs);
    Py_END_ALLOW_THREADS
    self->busy = false;
    self->broken = failed;
    PyBuffer_Release(&lines.view);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(random_feed_doc,
             "feed(lines, /)\n--\n\nTouch these lines (a buffer of uint64) in order.");

static PyObject *
random_feed(PyObject *object, PyObject *source)
{
    return random_feed_buffer((RandomCaches *)object, source, false);
}

PyDoc_STRVAR(random_feed_runs_doc,
             "feed_runs(runs, /)\n--\n\n"
             "Touch lines several times each, as LruStack.feed_runs does.");

static PyObject *
random_feed_runs(PyObject *object, PyObject *source)
{
    return random_feed_buffer((RandomCaches *)object, source, true);
}

PyDoc_STRVAR(random_take_misses_doc,
             "take_misses()\n--\n\n"
             "Return (accesses, misses) since the last take; misses are bytes of uint64, one a\n"
             "size. The caches keep their content.");

static PyObject *
random_take_misses(PyObject *object, PyObject *Py_UNUSED(unused))
{
    RandomCaches *self = (RandomCaches *)object;
    uint64_t misses[MAX_SIZES];
    if (random_check(self) < 0)
        return NULL;
    uint64_t accesses = self->set.accesses;
    self->set.accesses = 0;
    for (unsigned i = 0; i < self->set.count; i++) {
        misses[i] = self->set.caches[i].misses;
        self->set.caches[i].misses = 0;
    }
    return memsampd_misses(accesses, misses, self->set.count);
}

static PyMethodDef random_methods[] = {
    {"feed", random_feed, METH_O, random_feed_doc},
    {"feed_runs", random_feed_runs, METH_O, random_feed_runs_doc},
    {"take_misses", random_take_misses, METH_NOARGS, random_take_misses_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(random_doc,
             "RandomCaches(sizes_lines, seed)\n--\n\n"
             "Fully associative caches of these sizes (ascending, in lines), each of which\n"
             "replaces a line at random. The same seed gives the same misses.");

static PyType_Slot random_slots[] = {
    {Py_tp_doc, (void *)random_doc},         {Py_tp_new, (void *)random_new},
    {Py_tp_dealloc, (void *)random_dealloc}, {Py_tp_methods, random_methods},
    {0, NULL},
};

static PyType_Spec random_spec = {
    .name = "memsampd._core.RandomCaches",
    .basicsize = sizeof(RandomCaches),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = random_slots,
};

int
memsampd_add_random_caches(PyObject *module)
{
    return memsampd_add_type(module, &random_spec);
}
