/* The FRONT lines touched last, in LRU order, to be found in a few instructions.
 *
 * Two vectors of bytes, one a lane: a tag of its line, to compare all lanes at once, and its rank in
 * the order, 0 the newest. Renewing a lane makes the newer ones one older: a comparison and a
 * subtraction. A line never changes its lane, so what belongs to it stays where it is.
 */
#ifndef MEMSAMPD_FRONT_H
#define MEMSAMPD_FRONT_H

#include "models.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define FRONT 16

typedef int8_t lanes __attribute__((vector_size(FRONT)));

/* Small enough to live in registers during a batch; the lines themselves are kept by the caller. */
typedef struct {
    lanes tag;
    lanes rank;
    unsigned used; /* a bit a lane that has a line */
} front;

ALWAYS_INLINE lanes
front_all(int value)
{
    return (lanes){0} + (int8_t)value;
}

/* 0xff in one lane. */
ALWAYS_INLINE lanes
front_only(unsigned lane)
{
    const lanes number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return number == front_all((int)lane);
}

/* A bit a lane, of bytes that are 0 or 0xff. */
ALWAYS_INLINE unsigned
front_mask(lanes bytes)
{
#if defined(__x86_64__)
    return (unsigned)_mm_movemask_epi8((__m128i)bytes);
#else
    unsigned mask = 0;
    for (unsigned lane = 0; lane < FRONT; lane++)
        mask |= (unsigned)(bytes[lane] & 1) << lane;
    return mask;
#endif
}

static inline void
front_init(front *self)
{
    memset(self, 0, sizeof *self);
    for (int lane = 0; lane < FRONT; lane++)
        self->rank[lane] = (int8_t)lane;
}

/* A byte of a line's hash (table_mix) that the table does not use. */
ALWAYS_INLINE lanes
front_tag(uint64_t mixed)
{
    return front_all((int)(mixed >> 16 & 0xff));
}

/* The lane of a line, or -1. */
ALWAYS_INLINE int
front_find(const front *self, const uint64_t *lines, uint64_t line, uint64_t mixed)
{
    unsigned candidates = front_mask(self->tag == front_tag(mixed)) & self->used;
    for (; candidates; candidates &= candidates - 1) {
        int lane = __builtin_ctz(candidates);
        if (lines[lane] == line)
            return lane;
    }
    return -1;
}

/* Make a lane the newest; returns the rank that it had: how many lines were newer. */
ALWAYS_INLINE unsigned
front_renew(front *self, unsigned lane)
{
    lanes rank = __builtin_shuffle(self->rank, front_all((int)lane));
    self->rank -= self->rank < rank; /* true is -1 */
    self->rank &= ~front_only(lane);
    return (uint8_t)rank[0];
}

/* Give the lane of the oldest line to another, as the newest; returns it. */
ALWAYS_INLINE unsigned
front_replace(front *self, uint64_t mixed)
{
    lanes oldest = self->rank == front_all(FRONT - 1);
    self->tag = (self->tag & ~oldest) | (front_tag(mixed) & oldest);
    self->rank = (self->rank + 1) & ~oldest;
    self->used |= front_mask(oldest);
    return (unsigned)__builtin_ctz(front_mask(oldest));
}

#endif
