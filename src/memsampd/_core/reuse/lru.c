/* The FRONT lines touched last are kept apart, in a small LRU list (front.h): most accesses of real
 * programs go there and change nothing else. A line that leaves the front gets a time slot (slots.h). Lines
 * leave it in the order of their last touch, so slots ascend in that order, and the stack distance
 * of a line that comes back is FRONT plus the number of lines whose slot is newer.
 */
#include "lru.h"

#define BATCH 64
#define NO_SLOT UINT64_MAX /* table value of a line in the front, or about to come there first */

/* Accesses of a batch that are not in the front, in order. */
typedef struct {
    uint64_t line;
    uint64_t time;         /* of the access */
    uint64_t left_touched; /* last touch of the line that leaves the front for it */
    unsigned lane;         /* its place in the front */
    unsigned position;     /* in the batch */
} miss;

/* Renumber the slots in their order, and make room; -1 without memory. */
static int
compact(lru *self)
{
    uint64_t used = slots_rank(&self->slots);
    for (uint64_t i = 0; i < table_entries(&self->lines); i++) {
        table_entry *entry = &self->lines.entries[i];
        if (entry->value && entry->value != NO_SLOT)
            entry->value = slots_new_number(&self->slots, entry->value);
    }
    return slots_compact(&self->slots, used);
}

/* Make room in the table for a batch; -1 without memory. */
static int
reserve_lines(lru *self)
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
touch_front(lru *self, front *recent, uint64_t line, uint64_t accesses, uint64_t time,
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
exchange(lru *self, const miss *miss, table_entry *entry)
{
    table_entry *left = self->front_entry[miss->lane];
    int64_t distance = -1;
    uint64_t old = 0;
    if (entry->value == NO_SLOT) {
        self->cold++;
    } else {
        old = entry->value;
        distance = (int64_t)(FRONT + slots_after(&self->slots, old));
        histogram_add(&self->stack_distances, (uint64_t)distance);
        if (self->reuses)
            histogram_add(&self->reuse_distances, miss->time - self->slots.touched[old] - 1);
    }
    entry->value = NO_SLOT;
    self->front_entry[miss->lane] = entry;
    if (left) { /* else the front was not full, and no line has a slot yet */
        left->value = ++self->slots.now;
        slots_move(&self->slots, old, self->slots.now);
        if (self->reuses)
            self->slots.touched[self->slots.now] = miss->left_touched;
    }
    return distance;
}

/* Look up what the front did not know, all at once, then let it in, in order. */
ALWAYS_INLINE void
feed_misses(lru *self, const miss *misses, unsigned missing, int64_t *distances)
{
    table_entry *entries[BATCH];
    for (unsigned i = 0; i < missing; i++) {
        entries[i] = table_find_or_add(&self->lines, misses[i].line, NO_SLOT);
        slots_prefetch(&self->slots, entries[i]->value == NO_SLOT ? 0 : entries[i]->value);
    }
    for (unsigned i = 0; i < missing; i++) {
        int64_t distance = exchange(self, &misses[i], entries[i]);
        if (distances)
            distances[misses[i].position] = distance;
    }
}

/* Count the accesses of a batch that repeat the one before, and those that the front knew. */
ALWAYS_INLINE void
count_near(lru *self, uint64_t accesses, unsigned runs, unsigned missing)
{
    self->stack_distances.counts[0] += accesses - runs + (self->ranks ? 0 : runs - missing);
    self->reuse_distances.counts[0] += accesses - runs;
}

/* Feed up to BATCH runs, for which table and slots have room. */
ALWAYS_INLINE void
feed_runs_batch(lru *self, const unsigned char *bytes, unsigned count)
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
feed_lines_batch(lru *self, const unsigned char *bytes, unsigned count, int64_t *distances)
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
typedef void feed_function(lru *, const unsigned char *, unsigned, bool runs, int64_t *);

ALWAYS_INLINE void
feed_batch(lru *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    if (runs)
        feed_runs_batch(self, bytes, count);
    else
        feed_lines_batch(self, bytes, count, distances);
}

static void
feed_any(lru *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    feed_batch(self, bytes, count, runs, distances);
}

#if defined(__x86_64__)
__attribute__((target("avx2,popcnt,bmi2"))) static void
feed_avx2(lru *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
{
    feed_batch(self, bytes, count, runs, distances);
}

__attribute__((target("avx512f,avx512bw,avx512vl,popcnt,bmi2"))) static void
feed_avx512(lru *self, const unsigned char *bytes, unsigned count, bool runs, int64_t *distances)
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

int
lru_feed(lru *self, const unsigned char *bytes, size_t count, bool runs, int64_t *distances)
{
    feed_function *feed = best_feed();
    for (size_t start = 0; start < count; start += BATCH) {
        unsigned batch = count - start < BATCH ? (unsigned)(count - start) : BATCH;
        if (reserve_lines(self))
            return -1;
        if (self->slots.now + BATCH >= self->slots.capacity && compact(self))
            return -1;
        feed(self, bytes + 8 * start, batch, runs, distances ? distances + start : NULL);
    }
    return 0;
}

uint64_t
lru_take_misses(lru *self, uint64_t *misses)
{
    uint64_t accesses = self->time - self->taken, missing = self->cold;
    for (unsigned i = self->stack_distances.bounds; i-- > 0;) {
        missing += self->stack_distances.counts[i + 1];
        misses[i] = missing;
    }
    self->taken = self->time;
    self->cold = 0;
    histogram_clear(&self->stack_distances);
    return accesses;
}

int
lru_init(lru *self)
{
    front_init(&self->front);
    if (table_init(&self->lines, 12))
        return -1;
    return slots_init(&self->slots, self->reuses);
}

void
lru_free(lru *self)
{
    slots_free(&self->slots);
    table_free(&self->lines);
}
