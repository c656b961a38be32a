/* Exact LRU stack distances, and reuse distances, of a stream of lines of any length.
 *
 * The FRONT lines touched last are kept apart, in a small LRU list (front.h): most accesses of real
 * programs go there and change nothing else. A line that leaves the front gets a time slot. Lines
 * leave it in the order of their last touch, so slots ascend in that order, and the stack distance
 * of a line that comes back is FRONT plus the number of lines whose slot is newer.
 *
 * Every line in slot s has bit s set in a bitmap of slots. To come back, it counts the bits set
 * after s and clears its own. Counters over groups of 2^9, 2^15, 2^21 and 2^27 slots make counting
 * cheap: at most 64 counters a level, summed by vector instructions. When the slots are used up,
 * the lines are renumbered in order (compaction), so time never runs out.
 */
#include "front.h"
#include "histogram.h"
#include "line_table.h"

#define BATCH 64
#define BLOCK_BITS 9       /* slots a block: one cache line of the bitmap */
#define FANOUT_BITS 6      /* counters of a level that make one of the next */
#define FANOUT (1u << FANOUT_BITS)
#define LEVELS 3           /* above the blocks */
#define MIN_CAPACITY ((uint64_t)1 << 16)
#define SLOTS_PER_LINE 8   /* slots at a compaction, to renumber seldom */
#define NO_SLOT UINT64_MAX /* table value of a line in the front, or about to come there first */

typedef struct {
    uint64_t *bits;             /* 1: some line is in this slot */
    uint64_t *touched;          /* when the line in a slot was touched last; NULL if nobody asks */
    uint16_t *block;            /* bits set a block */
    uint32_t *group[LEVELS];    /* the same of FANOUT blocks, of FANOUT of these, ... */
    uint64_t *rank;             /* scratch of the compaction: bits set before a block */
    uint64_t capacity;          /* slots, a multiple of a block */
    uint64_t now;               /* the newest slot; slot 0 is never used */
    line_table lines;           /* line -> its slot */
    front front;
    uint64_t front_line[FRONT];
    uint64_t front_touched[FRONT];    /* time of the last touch */
    table_entry *front_entry[FRONT];
    uint64_t time;              /* accesses before this batch */
    uint64_t taken;             /* accesses at the last take */
    uint64_t cold;              /* first touches since then */
    histogram stack_distances;  /* since then: bounds are the sizes in lines */
    histogram reuse_distances;  /* since then */
    bool reuses;                /* whether these are wanted */
    bool ranks;                 /* whether some size is below FRONT: ranks in it matter */
} stack;

/* Accesses of a batch that are not in the front, in order. */
typedef struct {
    uint64_t line;
    uint64_t time;         /* of the access */
    uint64_t left_touched; /* last touch of the line that leaves the front for it */
    unsigned lane;         /* its place in the front */
    unsigned position;     /* in the batch */
} miss;

static void
stack_free_slots(stack *self)
{
    free(self->bits);
    free(self->touched);
    free(self->block);
    free(self->rank);
    self->bits = NULL;
    self->touched = NULL;
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
    if (self->reuses) {
        self->touched = alloc_zeroed(capacity * sizeof *self->touched);
        complete = self->touched != NULL;
    }
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

/* Bits set after this slot. */
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

/* The times of last touches, in the order of their slots, to slots 1, 2, ... */
static void
gather_touched(const stack *self, uint64_t *target)
{
    for (uint64_t word = 0; word < self->capacity / 64; word++)
        for (uint64_t left = self->bits[word]; left; left &= left - 1)
            *++target = self->touched[64 * word + (uint64_t)__builtin_ctzll(left)];
}

/* Make room for so many times more slots than lines; -1 without memory. */
static int
grow_slots(stack *self, uint64_t live)
{
    uint64_t capacity = self->capacity;
    uint64_t *touched = self->touched;
    while (capacity < live * SLOTS_PER_LINE)
        capacity *= 2;
    self->touched = NULL;
    stack_free_slots(self);
    if (stack_alloc_slots(self, capacity)) {
        free(touched);
        return -1;
    }
    if (touched)
        memcpy(self->touched, touched, (live + 1) * sizeof *touched);
    free(touched);
    return 0;
}

/* Renumber the slots 1..live in their order, and make room; -1 without memory. */
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
        if (entry->value && entry->value != NO_SLOT) {
            uint64_t block = entry->value >> BLOCK_BITS;
            entry->value = self->rank[block] + self->block[block] -
                           count_in_block(self, entry->value);
        }
    }
    if (self->touched)
        gather_touched(self, self->touched); /* never behind what it reads */
    if (self->capacity < live * SLOTS_PER_LINE && grow_slots(self, live))
        return -1;
    set_first(self, live);
    return 0;
}

/* Make room in the table for a batch; -1 without memory. */
static int
reserve_lines(stack *self)
{
    const table_entry *before = self->lines.entries;
    if (table_reserve(&self->lines, BATCH))
        return -1;
    if (self->lines.entries != before)
        for (unsigned lane = 0; lane < FRONT; lane++)
            if (self->front_entry[lane])
                self->front_entry[lane] = table_find(&self->lines, self->front_line[lane]);
    return 0;
}

/* Let the front have a run, or note a miss. Its accesses but the first, and the first if it is in the
 * front and no rank there matters, are counted by the caller: counters in memory that change at
 * every access would be what takes longest. */
ALWAYS_INLINE unsigned
touch_front(stack *self, front *recent, uint64_t line, uint64_t accesses, uint64_t time,
            unsigned position, int64_t *distance, miss *misses, unsigned missing)
{
    uint64_t mixed = table_mix(line);
    int found = front_find(recent, self->front_line, line, mixed);
    unsigned lane;
    if (found >= 0) {
        lane = (unsigned)found;
        unsigned rank = front_renew(recent, lane);
        if (self->ranks)
            histogram_add(&self->stack_distances, rank);
        if (self->reuses)
            histogram_add(&self->reuse_distances, time - self->front_touched[lane] - 1);
        if (distance)
            *distance = rank;
    } else {
        lane = front_replace(recent, mixed);
        misses[missing++] = (miss){line, time, self->front_touched[lane], lane, position};
        self->front_line[lane] = line;
        __builtin_prefetch(table_home_of(&self->lines, mixed), 1);
    }
    self->front_touched[lane] = time + accesses - 1;
    return missing;
}

/* A line comes back into the front, or comes for the first time; another leaves it. */
ALWAYS_INLINE int64_t
exchange(stack *self, const miss *miss, table_entry *entry)
{
    table_entry *left = self->front_entry[miss->lane];
    int64_t distance = -1;
    uint64_t old = 0;
    if (entry->value == NO_SLOT) {
        self->cold++;
    } else {
        old = entry->value;
        distance = (int64_t)(FRONT + count_after(self, old));
        histogram_add(&self->stack_distances, (uint64_t)distance);
        if (self->reuses)
            histogram_add(&self->reuse_distances, miss->time - self->touched[old] - 1);
    }
    entry->value = NO_SLOT;
    self->front_entry[miss->lane] = entry;
    if (left) { /* else the front was not full, and no line has a slot yet */
        left->value = ++self->now;
        move(self, old, self->now);
        if (self->reuses)
            self->touched[self->now] = miss->left_touched;
    }
    return distance;
}

/* Look up what the front did not know, all at once, then let it in, in order. */
ALWAYS_INLINE void
feed_misses(stack *self, const miss *misses, unsigned missing, int64_t *distances)
{
    table_entry *entries[BATCH];
    for (unsigned i = 0; i < missing; i++) {
        entries[i] = table_find_or_add(&self->lines, misses[i].line, NO_SLOT);
        uint64_t slot = entries[i]->value == NO_SLOT ? 0 : entries[i]->value;
        __builtin_prefetch(&self->bits[slot >> 6], 1);
        __builtin_prefetch(&self->block[(slot >> BLOCK_BITS) & ~(uint64_t)(FANOUT - 1)], 1);
        if (self->reuses)
            __builtin_prefetch(&self->touched[slot]);
    }
    for (unsigned i = 0; i < missing; i++) {
        int64_t distance = exchange(self, &misses[i], entries[i]);
        if (distances)
            distances[misses[i].position] = distance;
    }
}

/* Count the accesses of a batch that repeat the one before, and those that the front knew. */
ALWAYS_INLINE void
count_near(stack *self, uint64_t accesses, unsigned runs, unsigned missing)
{
    self->stack_distances.counts[0] += accesses - runs + (self->ranks ? 0 : runs - missing);
    self->reuse_distances.counts[0] += accesses - runs;
}

/* Feed up to BATCH runs, for which table and slots have room. */
ALWAYS_INLINE void
feed_runs_batch(stack *self, const unsigned char *bytes, unsigned count)
{
    front recent = self->front; /* in registers */
    uint64_t time = self->time;
    miss misses[BATCH];
    unsigned missing = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t run = line_at(bytes, i);
        uint64_t accesses = run_accesses(run);
        missing = touch_front(self, &recent, run_line(run), accesses, time, i, NULL, misses,
                              missing);
        time += accesses;
    }
    count_near(self, time - self->time, count, missing);
    self->front = recent;
    self->time = time;
    feed_misses(self, misses, missing, NULL);
}

/* The same of lines. Most accesses of real programs are to the line before. */
ALWAYS_INLINE void
feed_lines_batch(stack *self, const unsigned char *bytes, unsigned count, int64_t *distances)
{
    front recent = self->front;
    uint64_t previous = ~line_at(bytes, 0);
    unsigned start[BATCH + 1]; /* positions at which another line begins */
    unsigned changes = 0;
    miss misses[BATCH];
    unsigned missing = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t line = line_at(bytes, i);
        start[changes] = i;
        changes += line != previous;
        previous = line;
        if (distances)
            distances[i] = 0;
    }
    start[changes] = count;
    for (unsigned i = 0; i < changes; i++) {
        unsigned at = start[i];
        missing = touch_front(self, &recent, line_at(bytes, at), start[i + 1] - at,
                              self->time + at, at, distances ? &distances[at] : NULL, misses,
                              missing);
    }
    count_near(self, count, changes, missing);
    self->front = recent;
    self->time += count;
    feed_misses(self, misses, missing, distances);
}

/* The same compiled for several CPUs: counting bits and summing counters is vector work. */
typedef void feed_function(stack *, const unsigned char *, unsigned, bool runs, int64_t *);

ALWAYS_INLINE void
feed_batch(stack *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    if (runs)
        feed_runs_batch(self, bytes, count);
    else
        feed_lines_batch(self, bytes, count, distances);
}

static void
feed_any(stack *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    feed_batch(self, bytes, count, runs, distances);
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt,bmi2"))) static void
feed_avx2(stack *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    feed_batch(self, bytes, count, runs, distances);
}

__attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi2"))) static void
feed_avx512(stack *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    feed_batch(self, bytes, count, runs, distances);
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
stack_feed(stack *self, const unsigned char *bytes, size_t count, bool runs, int64_t *distances)
{
    feed_function *feed = best_feed();
    for (size_t start = 0; start < count; start += BATCH) {
        unsigned batch = count - start < BATCH ? (unsigned)(count - start) : BATCH;
        if (reserve_lines(self))
            return -1;
        if (self->now + BATCH >= self->capacity && compact(self))
            return -1;
        feed(self, bytes + 8 * start, batch, runs, distances ? distances + start : NULL);
    }
    return 0;
}

static void
stack_take(stack *self, uint64_t *misses)
{
    uint64_t missing = self->cold;
    for (unsigned i = self->stack_distances.bounds; i-- > 0;) {
        missing += self->stack_distances.counts[i + 1];
        misses[i] = missing;
    }
    self->taken = self->time;
    self->cold = 0;
    histogram_clear(&self->stack_distances);
}

static int
stack_init(stack *self, uint64_t lines_hint)
{
    uint64_t capacity = MIN_CAPACITY;
    front_init(&self->front);
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
    static char *names[] = {"sizes_lines", "max_hint", "reuse_bounds", NULL};
    PyObject *sizes, *reuses = Py_None;
    unsigned long long hint = 0;
    uint64_t size[MAX_BOUNDS], bound[MAX_BOUNDS];
    unsigned n_sizes, n_bounds = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|KO", names, &sizes, &hint, &reuses) ||
        memsampd_get_sizes(sizes, size, MAX_BOUNDS, &n_sizes) < 0 ||
        (reuses != Py_None && memsampd_get_ascending(reuses, bound, MAX_BOUNDS, UINT64_MAX,
                                                     "reuse_bounds", &n_bounds) < 0))
        return NULL;
    if (hint > (uint64_t)1 << 32) {
        PyErr_SetString(PyExc_ValueError, "max_hint is above 2**32 lines");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    LruStack *self = (LruStack *)alloc(type, 0); /* zeroed */
    if (!self)
        return NULL;
    histogram_init(&self->stack.stack_distances, size, n_sizes);
    histogram_init(&self->stack.reuse_distances, bound, n_bounds);
    self->stack.reuses = n_bounds > 0;
    self->stack.ranks = size[0] < FRONT;
    if (stack_init(&self->stack, hint)) {
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

/* Feed without the GIL; releases the buffers. */
static PyObject *
lru_feed_buffer(LruStack *self, line_buffer *lines, bool runs, Py_buffer *distances)
{
    int failed;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    failed = stack_feed(&self->stack, lines->bytes, lines->count, runs, distances->buf);
    Py_END_ALLOW_THREADS
    self->busy = false;
    self->broken = failed;
    PyBuffer_Release(&lines->view);
    if (distances->obj)
        PyBuffer_Release(distances);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &source, &target) ||
        lru_check(self) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    if (get_distances(target, &distances, lines.count) < 0) {
        PyBuffer_Release(&lines.view);
        return NULL;
    }
    return lru_feed_buffer(self, &lines, false, &distances);
}

PyDoc_STRVAR(lru_feed_runs_doc,
             "feed_runs(runs, /)\n--\n\n"
             "Touch lines several times each: a buffer of uint64, the line in the low\n"
             "RUN_LINE_BITS, the number of accesses, at least 1, above.");

static PyObject *
lru_feed_runs(PyObject *object, PyObject *source)
{
    LruStack *self = (LruStack *)object;
    Py_buffer none = {0};
    line_buffer runs;
    if (lru_check(self) < 0 || memsampd_get_lines(source, &runs) < 0)
        return NULL;
    return lru_feed_buffer(self, &runs, true, &none);
}

PyDoc_STRVAR(lru_take_misses_doc,
             "take_misses()\n--\n\n"
             "Return (accesses, misses) since the last take; misses are bytes of uint64, one a\n"
             "size. The stack itself goes on.");

static PyObject *
lru_take_misses(PyObject *object, PyObject *unused)
{
    LruStack *self = (LruStack *)object;
    uint64_t misses[MAX_BOUNDS];
    (void)unused;
    if (lru_check(self) < 0)
        return NULL;
    uint64_t accesses = self->stack.time - self->stack.taken;
    stack_take(&self->stack, misses);
    return memsampd_misses(accesses, misses, self->stack.stack_distances.bounds);
}

PyDoc_STRVAR(lru_take_reuses_doc,
             "take_reuses()\n--\n\n"
             "Return the accesses since the last take by reuse distance, first touches left out:\n"
             "bytes of uint64, one more than reuse_bounds, of distances below the first, from\n"
             "each to the next, and from the last on.");

static PyObject *
lru_take_reuses(PyObject *object, PyObject *unused)
{
    LruStack *self = (LruStack *)object;
    histogram *reuses = &self->stack.reuse_distances;
    (void)unused;
    if (lru_check(self) < 0)
        return NULL;
    if (!self->stack.reuses) {
        PyErr_SetString(PyExc_RuntimeError, "LruStack was made without reuse_bounds");
        return NULL;
    }
    PyObject *counts =
        PyBytes_FromStringAndSize((const char *)reuses->counts,
                                  (Py_ssize_t)((reuses->bounds + 1) * sizeof *reuses->counts));
    histogram_clear(reuses);
    return counts;
}

static PyObject *
lru_get_distinct(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((LruStack *)object)->stack.lines.used);
}

static PyMethodDef lru_methods[] = {
    {"feed", (PyCFunction)(void (*)(void))lru_feed, METH_VARARGS | METH_KEYWORDS, lru_feed_doc},
    {"feed_runs", lru_feed_runs, METH_O, lru_feed_runs_doc},
    {"take_misses", lru_take_misses, METH_NOARGS, lru_take_misses_doc},
    {"take_reuses", lru_take_reuses, METH_NOARGS, lru_take_reuses_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lru_getset[] = {
    {"distinct_lines", lru_get_distinct, NULL, "Distinct lines fed so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(lru_doc,
             "LruStack(sizes_lines, max_hint=0, reuse_bounds=None)\n--\n\n"
             "Fully associative LRU caches of all these sizes (ascending, in lines) at once.\n"
             "max_hint: distinct lines expected, to allocate ahead. reuse_bounds: ascending, to\n"
             "have reuse distances counted between them.");

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
memsampd_get_ascending(PyObject *sequence, uint64_t *values, unsigned most, uint64_t limit,
                       const char *what, unsigned *count)
{
    Py_ssize_t length = PySequence_Size(sequence);
    if (length < 0)
        return -1;
    bool valid = length >= 1 && length <= (Py_ssize_t)most;
    for (Py_ssize_t i = 0; valid && i < length; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        unsigned long long value = item ? PyLong_AsUnsignedLongLong(item) : 0;
        Py_XDECREF(item);
        if (PyErr_Occurred())
            return -1;
        valid = value >= 1 && value < limit && (i == 0 || value > values[i - 1]);
        values[i] = value;
    }
    if (!valid) {
        PyErr_Format(PyExc_ValueError, "%s must be 1 to %u ascending numbers, each 1 to %llu", what,
                     most, (unsigned long long)limit - 1);
        return -1;
    }
    *count = (unsigned)length;
    return 0;
}

int
memsampd_get_sizes(PyObject *sequence, uint64_t *sizes_lines, unsigned most, unsigned *count)
{
    return memsampd_get_ascending(sequence, sizes_lines, most, UINT32_MAX, "sizes_lines", count);
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
    if (failed < 0 || PyModule_AddIntConstant(module, "RUN_LINE_BITS", RUN_LINE_BITS) < 0 ||
        memsampd_add_reuse_counter(module) < 0 || memsampd_add_line_stream(module) < 0)
        return -1;
    return memsampd_add_random_caches(module);
}
