#include "slots.h"
#include "zeroed.h"

#define MIN_CAPACITY ((uint64_t)1 << 16)
#define SLOTS_PER_LINE 8 /* slots at a compaction, to renumber seldom */

void
slots_free(slots *self)
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
allocate(slots *self, uint64_t capacity, bool has_times)
{
    bool complete = true;
    self->capacity = capacity;
    self->bits = alloc_zeroed(capacity / 8);
    if (has_times) {
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

int
slots_init(slots *self, bool has_times)
{
    return allocate(self, MIN_CAPACITY, has_times);
}

uint64_t
slots_rank(slots *self)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < self->capacity >> BLOCK_BITS; i++) {
        self->rank[i] = used;
        used += self->block[i];
    }
    return used;
}

/* Rebuild bitmap and counters for slots 1..live all set. */
static void
set_first(slots *self, uint64_t live)
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
gather_touched(const slots *self, uint64_t *target)
{
    for (uint64_t word = 0; word < self->capacity / 64; word++)
        for (uint64_t left = self->bits[word]; left; left &= left - 1)
            *++target = self->touched[64 * word + (uint64_t)__builtin_ctzll(left)];
}

/* Make room for slots enough for so many lines; -1 without memory. */
static int
grow(slots *self, uint64_t live)
{
    uint64_t capacity = self->capacity;
    uint64_t *touched = self->touched;
    while (capacity < live * SLOTS_PER_LINE)
        capacity *= 2;
    self->touched = NULL;
    slots_free(self);
    if (allocate(self, capacity, touched != NULL)) {
        free(touched);
        return -1;
    }
    if (touched)
        memcpy(self->touched, touched, (live + 1) * sizeof *touched);
    free(touched);
    return 0;
}

int
slots_compact(slots *self, uint64_t used)
{
    if (self->touched)
        gather_touched(self, self->touched); /* never behind what it reads */
    if (self->capacity < used * SLOTS_PER_LINE && grow(self, used))
        return -1;
    set_first(self, used);
    return 0;
}
