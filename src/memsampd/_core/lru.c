/* Exact LRU stack distances of a stream of lines of any length.
 *
 * Every line last touched at time slot s has bit s set in a bitmap of slots. The stack distance of
 * a reuse of that line is the number of bits set after s; then bit s is cleared and the bit of the
 * newest slot set. Counters over groups of 2^9, 2^15, 2^21 and 2^27 slots make counting cheap:
 * at most 64 counters a level, summed by vector instructions. When the slots are used up, the
 * lines are renumbered in order (compaction), so time never runs out.
 */
#include "line_table.h"

#define BATCH 64
#define BLOCK_BITS 9       /* slots a block: one cache line of the bitmap */
#define FANOUT_BITS 6      /* counters of a level that make one of the next */
#define FANOUT (1u << FANOUT_BITS)
#define LEVELS 3           /* above the blocks */
#define MIN_CAPACITY ((uint64_t)1 << 16)
#define SLOTS_PER_LINE 8   /* slots at a compaction, to renumber seldom */
#define NEVER UINT64_MAX   /* table value of a line that waits for its first slot */
#define QUICK 4096         /* stack distances whose size class comes from a table */

typedef struct {
    uint64_t *bits;             /* 1: the newest touch of some line */
    uint16_t *block;            /* bits set a block */
    uint32_t *group[LEVELS];    /* the same of FANOUT blocks, of FANOUT of these, ... */
    uint64_t *rank;             /* scratch of the compaction: bits set before a block */
    uint64_t capacity;          /* slots, a multiple of a block */
    uint64_t now;               /* the newest slot; slot 0 is never used */
    line_table lines;           /* line -> its newest slot */
    uint64_t previous;          /* line touched last; valid if now > 0 */
    unsigned sizes;
    uint32_t size_lines[64];    /* ascending, padded with UINT32_MAX */
    uint8_t quick_class[QUICK];
    uint64_t accesses;          /* since the last take, like the two below */
    uint64_t cold;
    uint64_t classes[64];       /* accesses by the number of sizes that are <= their distance */
} stack;

static void
stack_free_slots(stack *self)
{
    free(self->bits);
    free(self->block);
    free(self->rank);
    self->bits = NULL;
    self->block = NULL;
    self->rank = NULL;
    for (unsigned level = 0; level < LEVELS; level++) {
        free(self->group[level]);
        self->group[level] = NULL;
    }
}

/* Counters of a level, rounded up so that whole groups of FANOUT can be read. */
static uint64_t
counters(uint64_t capacity, unsigned level)
{
    uint64_t exact = (capacity >> (BLOCK_BITS + level * FANOUT_BITS)) + 1;
    return (exact + FANOUT - 1) & ~(uint64_t)(FANOUT - 1);
}

static int
stack_alloc_slots(stack *self, uint64_t capacity)
{
    bool complete = true;
    self->capacity = capacity;
    self->bits = alloc_zeroed(capacity / 8);
    self->block = alloc_zeroed(counters(capacity, 0) * sizeof *self->block);
    self->rank = alloc_zeroed(counters(capacity, 0) * sizeof *self->rank);
    for (unsigned level = 0; level < LEVELS; level++) {
        self->group[level] = alloc_zeroed(counters(capacity, level + 1) * sizeof(uint32_t));
        complete = complete && self->group[level];
    }
    return complete && self->bits && self->block && self->rank ? 0 : -1;
}

/* Bits set after this slot in its block. */
ALWAYS_INLINE uint64_t
count_in_block(const stack *self, uint64_t slot)
{
    const uint64_t *words = &self->bits[(slot >> BLOCK_BITS) << (BLOCK_BITS - 6)];
    unsigned own = (slot >> 6) & 7;
    uint64_t after = ~(uint64_t)1 << (slot & 63); /* bit 63: nothing is after it */
    uint64_t count = 0;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t mask = i < own ? 0 : i == own ? after : ~(uint64_t)0;
        count += (uint64_t)__builtin_popcountll(words[i] & mask);
    }
    return count;
}

/* Sums of the counters after one of a group of FANOUT: fixed trip counts, for the vectoriser. */
ALWAYS_INLINE uint64_t
sum_blocks_after(const uint16_t *counter, unsigned own)
{
    uint16_t sum = 0; /* at most 63 * 512 */
    for (uint16_t i = 0; i < FANOUT; i++)
        sum = (uint16_t)(sum + (i > own ? counter[i] : 0));
    return sum;
}

ALWAYS_INLINE uint64_t
sum_groups_after(const uint32_t *counter, unsigned own)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < FANOUT; i++)
        sum += i > own ? counter[i] : 0;
    return sum;
}

/* Bits set after this slot: the stack distance of what was touched there last. */
ALWAYS_INLINE uint64_t
count_after(const stack *self, uint64_t slot)
{
    uint64_t count = count_in_block(self, slot);
    uint64_t index = slot >> BLOCK_BITS;
    uint64_t newest = self->now >> BLOCK_BITS;
    if (index == newest)
        return count;
    count += sum_blocks_after(&self->block[index & ~(uint64_t)(FANOUT - 1)], index % FANOUT);
    for (unsigned level = 0; level < LEVELS; level++) {
        index >>= FANOUT_BITS;
        newest >>= FANOUT_BITS;
        if (index == newest)
            return count;
        count += sum_groups_after(&self->group[level][index & ~(uint64_t)(FANOUT - 1)],
                                  index % FANOUT);
    }
    /* Beyond the top level's first FANOUT counters there are few: capacities above 2^33. */
    for (index = (index | (FANOUT - 1)) + 1; index <= newest; index++)
        count += self->group[LEVELS - 1][index];
    return count;
}

/* Set the newest slot's bit and, if it is not 0, clear the old slot's. Counters of groups that hold
 * both stay as they are, which spares the upper levels nearly always. */
ALWAYS_INLINE void
move(stack *self, uint64_t old, uint64_t newest)
{
    uint64_t from = old >> BLOCK_BITS;
    uint64_t to = newest >> BLOCK_BITS;
    self->bits[old >> 6] &= ~((uint64_t)1 << (old & 63));
    self->bits[newest >> 6] |= (uint64_t)1 << (newest & 63);
    self->block[from] = (uint16_t)(self->block[from] - (old != 0));
    self->block[to]++;
    for (unsigned level = 0; level < LEVELS; level++) {
        from >>= FANOUT_BITS;
        to >>= FANOUT_BITS;
        if (old && from == to)
            return;
        self->group[level][from] -= old != 0;
        self->group[level][to]++;
    }
}

/* Rebuild bitmap and counters for slots 1..live all set. */
static void
set_first(stack *self, uint64_t live)
{
    uint64_t slots = live + 1; /* slot 0 stays clear */
    memset(self->bits, 0, self->capacity / 8);
    memset(self->bits, 0xff, slots / 64 * 8);
    if (slots % 64)
        self->bits[slots / 64] = ((uint64_t)1 << (slots % 64)) - 1;
    self->bits[0] &= ~(uint64_t)1;
    for (unsigned level = 0; level <= LEVELS; level++) {
        unsigned shift = BLOCK_BITS + level * FANOUT_BITS;
        for (uint64_t i = 0; i < counters(self->capacity, level); i++) {
            uint64_t before = i << shift;
            uint64_t set = before >= slots ? 0 : slots - before;
            set = set > (uint64_t)1 << shift ? (uint64_t)1 << shift : set;
            set -= i == 0 && set > 0;
            if (level == 0)
                self->block[i] = (uint16_t)set;
            else
                self->group[level - 1][i] = (uint32_t)set;
        }
    }
    self->now = live;
}

/* Renumber the lines 1..live in order of their last touch, and make room; -1 without memory. */
static int
compact(stack *self)
{
    uint64_t live = 0;
    for (uint64_t i = 0; i < self->capacity >> BLOCK_BITS; i++) {
        self->rank[i] = live;
        live += self->block[i];
    }
    for (uint64_t i = 0; i < table_entries(&self->lines); i++) {
        table_entry *entry = &self->lines.entries[i];
        if (entry->value) {
            uint64_t block = entry->value >> BLOCK_BITS;
            entry->value = self->rank[block] + self->block[block] -
                           count_in_block(self, entry->value);
        }
    }
    if (self->capacity < live * SLOTS_PER_LINE) {
        uint64_t capacity = self->capacity;
        while (capacity < live * SLOTS_PER_LINE)
            capacity *= 2;
        stack_free_slots(self);
        if (stack_alloc_slots(self, capacity))
            return -1;
    }
    set_first(self, live);
    return 0;
}

/* How many of the sizes are too small for a reuse at this stack distance. */
ALWAYS_INLINE unsigned
size_class(const stack *self, uint64_t distance)
{
    uint32_t clipped = distance < UINT32_MAX ? (uint32_t)distance : UINT32_MAX - 1;
    unsigned too_small = 0;
    if (distance < QUICK)
        return self->quick_class[distance];
    for (unsigned i = 0; i < 64; i++)
        too_small += self->size_lines[i] <= clipped;
    return too_small;
}

/* Touch a line: its stack distance, or -1 if it is new. */
ALWAYS_INLINE int64_t
touch(stack *self, table_entry *entry)
{
    int64_t distance = -1;
    uint64_t old = 0;
    if (entry->value == NEVER) {
        self->cold++;
    } else {
        old = entry->value;
        distance = (int64_t)count_after(self, old);
        self->classes[size_class(self, (uint64_t)distance)]++;
    }
    entry->value = ++self->now;
    move(self, old, self->now);
    return distance;
}

/* Feed up to BATCH lines, for which table and slots have room. */
ALWAYS_INLINE void
feed_batch(stack *self, const unsigned char *bytes, unsigned count, int64_t *distances)
{
    uint64_t lines[BATCH];
    unsigned position[BATCH];
    table_entry *entries[BATCH];
    unsigned changes = 0;
    /* A line touched twice in a row moves nothing: most accesses of real programs end here. */
    for (unsigned i = 0; i < count; i++) {
        uint64_t line = line_at(bytes, i);
        lines[changes] = line;
        position[changes] = i;
        __builtin_prefetch(table_home(&self->lines, line), 1);
        changes += line != self->previous;
        self->previous = line;
        if (distances)
            distances[i] = 0;
    }
    self->classes[0] += count - changes;
    for (unsigned i = 0; i < changes; i++) {
        entries[i] = table_find_or_add(&self->lines, lines[i], NEVER);
        uint64_t slot = entries[i]->value == NEVER ? 0 : entries[i]->value;
        __builtin_prefetch(&self->bits[slot >> 6], 1);
        __builtin_prefetch(&self->block[(slot >> BLOCK_BITS) & ~(uint64_t)(FANOUT - 1)], 1);
    }
    for (unsigned i = 0; i < changes; i++) {
        int64_t distance = touch(self, entries[i]);
        if (distances)
            distances[position[i]] = distance;
    }
}

/* The same compiled for several CPUs: counting bits and summing counters is vector work. */
typedef void feed_function(stack *, const unsigned char *, unsigned, int64_t *);

static void
feed_any(stack *self, const unsigned char *bytes, unsigned count, int64_t *distances)
{
    feed_batch(self, bytes, count, distances);
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt,bmi2"))) static void
feed_avx2(stack *self, const unsigned char *bytes, unsigned count, int64_t *distances)
{
    feed_batch(self, bytes, count, distances);
}

__attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi2"))) static void
feed_avx512(stack *self, const unsigned char *bytes, unsigned count, int64_t *distances)
{
    feed_batch(self, bytes, count, distances);
}
#endif

static feed_function *
best_feed(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return feed_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return feed_avx2;
#endif
    return feed_any;
}

static int
stack_feed(stack *self, const unsigned char *bytes, size_t count, int64_t *distances)
{
    feed_function *feed = best_feed();
    if (count && self->lines.used == 0)
        self->previous = ~line_at(bytes, 0);
    for (size_t start = 0; start < count; start += BATCH) {
        unsigned batch = count - start < BATCH ? (unsigned)(count - start) : BATCH;
        if (table_reserve(&self->lines, BATCH))
            return -1;
        if (self->now + BATCH >= self->capacity && compact(self))
            return -1;
        feed(self, bytes + 8 * start, batch, distances ? distances + start : NULL);
    }
    self->accesses += count;
    return 0;
}

static void
stack_take(stack *self, uint64_t *misses)
{
    uint64_t missing = self->cold;
    for (unsigned i = self->sizes; i-- > 0;) {
        missing += self->classes[i + 1];
        misses[i] = missing;
    }
    self->accesses = 0;
    self->cold = 0;
    memset(self->classes, 0, sizeof self->classes);
}

static int
stack_init(stack *self, const uint64_t *sizes, unsigned count, uint64_t lines_hint)
{
    uint64_t capacity = MIN_CAPACITY;
    memset(self, 0, sizeof *self);
    self->sizes = count;
    for (unsigned i = 0; i < 64; i++)
        self->size_lines[i] = i < count ? (uint32_t)sizes[i] : UINT32_MAX;
    for (unsigned distance = 0; distance < QUICK; distance++)
        for (unsigned i = 0; i < count; i++)
            self->quick_class[distance] += self->size_lines[i] <= distance;
    while (capacity < lines_hint * SLOTS_PER_LINE)
        capacity *= 2;
    if (table_init(&self->lines, 12) || table_reserve(&self->lines, lines_hint))
        return -1;
    return stack_alloc_slots(self, capacity);
}

static void
stack_clear(stack *self)
{
    stack_free_slots(self);
    table_free(&self->lines);
}

/* ---- memsampd._core.LruStack ---- */

typedef struct {
    PyObject_HEAD
    stack stack;
    bool busy;   /* a feed runs without the GIL */
    bool broken; /* memory ran out half-way: what it holds is no longer exact */
} LruStack;

static PyObject *
lru_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sizes_lines", "max_hint", NULL};
    PyObject *sequence;
    unsigned long long hint = 0;
    uint64_t sizes[MAX_SIZES];
    unsigned count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|K", names, &sequence, &hint) ||
        memsampd_get_sizes(sequence, sizes, &count) < 0)
        return NULL;
    if (hint > (uint64_t)1 << 32) {
        PyErr_SetString(PyExc_ValueError, "max_hint is above 2**32 lines");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    LruStack *self = (LruStack *)alloc(type, 0);
    if (self && stack_init(&self->stack, sizes, count, hint)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
lru_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    stack_clear(&((LruStack *)object)->stack);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int
lru_check(LruStack *self)
{
    if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "LruStack is being fed by another thread");
    else if (self->broken)
        PyErr_SetString(PyExc_RuntimeError, "LruStack ran out of memory before");
    return self->busy || self->broken ? -1 : 0;
}

/* A writable int64 buffer for exactly so many distances, or none. */
static int
get_distances(PyObject *object, Py_buffer *view, size_t count)
{
    if (object == Py_None)
        return 0;
    if (PyObject_GetBuffer(object, view, PyBUF_WRITABLE) < 0)
        return -1;
    if ((size_t)view->len == 8 * count && (uintptr_t)view->buf % 8 == 0)
        return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "distances must be an aligned int64 buffer, one a line");
    return -1;
}

PyDoc_STRVAR(lru_feed_doc,
             "feed(lines, distances=None)\n--\n\n"
             "Touch these lines (a buffer of uint64) in order. If distances, a writable int64\n"
             "buffer of the same length, is given, it receives each stack distance, -1 if cold.");

static PyObject *
lru_feed(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lines", "distances", NULL};
    LruStack *self = (LruStack *)object;
    PyObject *source, *target = Py_None;
    Py_buffer distances = {0};
    line_buffer lines;
    int failed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &source, &target) ||
        lru_check(self) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    if (get_distances(target, &distances, lines.count) < 0) {
        PyBuffer_Release(&lines.view);
        return NULL;
    }
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    failed = stack_feed(&self->stack, lines.bytes, lines.count, distances.buf);
    Py_END_ALLOW_THREADS
    self->busy = false;
    self->broken = failed;
    PyBuffer_Release(&lines.view);
    if (distances.obj)
        PyBuffer_Release(&distances);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(lru_take_misses_doc,
             "take_misses()\n--\n\n"
             "Return (accesses, misses) since the last take; misses are bytes of uint64, one a\n"
             "size. The stack itself goes on.");

static PyObject *
lru_take_misses(PyObject *object, PyObject *unused)
{
    LruStack *self = (LruStack *)object;
    uint64_t misses[MAX_SIZES];
    (void)unused;
    if (lru_check(self) < 0)
        return NULL;
    uint64_t accesses = self->stack.accesses;
    stack_take(&self->stack, misses);
    return memsampd_misses(accesses, misses, self->stack.sizes);
}

static PyObject *
lru_get_distinct(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((LruStack *)object)->stack.lines.used);
}

static PyMethodDef lru_methods[] = {
    {"feed", (PyCFunction)(void (*)(void))lru_feed, METH_VARARGS | METH_KEYWORDS, lru_feed_doc},
    {"take_misses", lru_take_misses, METH_NOARGS, lru_take_misses_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lru_getset[] = {
    {"distinct_lines", lru_get_distinct, NULL, "Distinct lines fed so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(lru_doc,
             "LruStack(sizes_lines, max_hint=0)\n--\n\n"
             "Fully associative LRU caches of all these sizes (ascending, in lines) at once.\n"
             "max_hint: distinct lines expected, to allocate ahead.");

static PyType_Slot lru_slots[] = {
    {Py_tp_doc, (void *)lru_doc},         {Py_tp_new, (void *)lru_new},
    {Py_tp_dealloc, (void *)lru_dealloc}, {Py_tp_methods, lru_methods},
    {Py_tp_getset, lru_getset},           {0, NULL},
};

static PyType_Spec lru_spec = {
    .name = "memsampd._core.LruStack",
    .basicsize = sizeof(LruStack),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lru_slots,
};

/* ---- what the parts share ---- */

int
memsampd_get_lines(PyObject *object, line_buffer *lines)
{
    if (PyObject_GetBuffer(object, &lines->view, PyBUF_SIMPLE) < 0)
        return -1;
    if (lines->view.len % 8) {
        PyBuffer_Release(&lines->view);
        PyErr_SetString(PyExc_ValueError, "lines must be a buffer of uint64");
        return -1;
    }
    lines->bytes = lines->view.buf;
    lines->count = (size_t)lines->view.len / 8;
    return 0;
}

int
memsampd_get_sizes(PyObject *sequence, uint64_t *sizes_lines, unsigned *count)
{
    Py_ssize_t length = PySequence_Size(sequence);
    if (length < 0)
        return -1;
    bool valid = length >= 1 && length <= MAX_SIZES;
    for (Py_ssize_t i = 0; valid && i < length; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        unsigned long long size = item ? PyLong_AsUnsignedLongLong(item) : 0;
        Py_XDECREF(item);
        if (PyErr_Occurred())
            return -1;
        valid = size >= 1 && size < UINT32_MAX && (i == 0 || size > sizes_lines[i - 1]);
        sizes_lines[i] = size;
    }
    if (!valid) {
        PyErr_Format(PyExc_ValueError,
                     "sizes_lines must be 1 to %d ascending numbers of lines, each 1 to 2**32-2",
                     MAX_SIZES);
        return -1;
    }
    *count = (unsigned)length;
    return 0;
}

PyObject *
memsampd_misses(uint64_t accesses, const uint64_t *misses, unsigned count)
{
    return Py_BuildValue("Ky#", (unsigned long long)accesses, (const char *)misses,
                         (Py_ssize_t)(count * sizeof *misses));
}

int
memsampd_add_lru(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&lru_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "LruStack", type);
    Py_DECREF(type);
    if (failed < 0 || memsampd_add_reuse_histogram(module) < 0 || memsampd_add_line_stream(module) < 0)
        return -1;
    return memsampd_add_random_caches(module);
}
