/* Slots in the order of time: each holds a line that was touched then, or none.
 *
 * A line has bit s set in a bitmap while it is in slot s. To come back, it counts the bits set after s
 * and clears its own. Counters over groups of 2^9, 2^15, 2^21 and 2^27 slots make counting cheap: at
 * most 64 counters a level, summed by vector instructions. When the slots are used up, the lines are
 * renumbered in order (compaction), so time never runs out.
 */
#ifndef MEMSAMPD_SLOTS_H
#define MEMSAMPD_SLOTS_H

#include "models.h"

#define BLOCK_BITS 9       /* slots a block: one cache line of the bitmap */
#define FANOUT_BITS 6      /* counters of a level that make one of the next */
#define FANOUT (1u << FANOUT_BITS)
#define LEVELS 3           /* above the blocks */

typedef struct {
    uint64_t *bits;             /* 1: some line is in this slot */
    uint64_t *touched;          /* when the line in a slot was touched last; NULL if nobody asks */
    uint16_t *block;            /* bits set a block */
    uint32_t *group[LEVELS];    /* the same of FANOUT blocks, of FANOUT of these, ... */
    uint64_t *rank;             /* scratch of the compaction: bits set before a block */
    uint64_t capacity;          /* slots, a multiple of a block */
    uint64_t now;               /* the newest slot; slot 0 is never used */
} slots;

/* Room for the first lines, with the times of their last touches if wanted; -1 without memory. */
int slots_init(slots *self, bool has_times);
void slots_free(slots *self);

/* Compaction: rank the slots that are used, which returns how many there are; have each line take its
 * slots_new_number; then move what is kept of slots there, which is -1 without memory. */
uint64_t slots_rank(slots *self);
int slots_compact(slots *self, uint64_t used);

/* Bits set after this slot in its block. */
ALWAYS_INLINE uint64_t
slots_after_in_block(const slots *self, uint64_t slot)
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

ALWAYS_INLINE uint64_t
slots_new_number(const slots *self, uint64_t slot)
{
    uint64_t block = slot >> BLOCK_BITS;
    return self->rank[block] + self->block[block] - slots_after_in_block(self, slot);
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
slots_after(const slots *self, uint64_t slot)
{
    uint64_t count = slots_after_in_block(self, slot);
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
slots_move(slots *self, uint64_t old, uint64_t newest)
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

/* Have what a slot's bit, counters and time are in fetched. */
ALWAYS_INLINE void
slots_prefetch(const slots *self, uint64_t slot)
{
    __builtin_prefetch(&self->bits[slot >> 6], 1);
    __builtin_prefetch(&self->block[(slot >> BLOCK_BITS) & ~(uint64_t)(FANOUT - 1)], 1);
    if (self->touched)
        __builtin_prefetch(&self->touched[slot]);
}

#endif
