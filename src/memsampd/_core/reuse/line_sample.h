/* A sample of the lines of a burst, and their distant reuses: all of them while these are few, and half
 * of them, chosen by a hash of their number, each time they get too many. Which lines are left does not
 * hang on when that was.
 */
#ifndef MEMSAMPD_LINE_SAMPLE_H
#define MEMSAMPD_LINE_SAMPLE_H

#include "line_table.h"

#define HASH_BITS 16

/* Two accesses to a line with none between: when they were. */
typedef struct {
    uint64_t before, now;
    uint64_t hash; /* of the line */
} reuse;

typedef struct {
    uint64_t seed;          /* of the choice of lines: another one for each burst */
    unsigned halvings;      /* of the sample */
    unsigned line_halvings; /* ... that were needed for its lines: at most as many */
    line_table lines;       /* last accesses of those that were put here: all of the sample */
    reuse *distant;         /* of its lines */
    size_t distants;
} line_sample;

/* Zeroed before. -1 without memory, as the others. */
int line_sample_init(line_sample *self, uint64_t seed);
int line_sample_begin(line_sample *self); /* another burst */
void line_sample_free(line_sample *self);

/* Put a line there, with the time of its last access: 0 if it is none of those that are left. */
int line_sample_put(line_sample *self, uint64_t line, uint64_t time);

/* Note a reuse of one of its lines. */
void line_sample_note(line_sample *self, uint64_t line, uint64_t before, uint64_t now);

/* Which part of the lines one belongs to: all bits depend on all of its number. */
static inline uint64_t
line_sample_hash(const line_sample *self, uint64_t line)
{
    uint64_t hash = (line ^ self->seed) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ hash >> 32) * UINT64_C(0x94D049BB133111EB);
    return hash >> (64 - HASH_BITS);
}

static inline bool
line_sample_is_left(uint64_t hash, unsigned halvings)
{
    return (hash & ((UINT64_C(1) << halvings) - 1)) == 0;
}

static inline bool
line_sample_has(const line_sample *self, uint64_t line)
{
    return line_sample_is_left(line_sample_hash(self, line), self->halvings);
}

/* When a line was last accessed that was put there; 0: it was not. */
static inline uint64_t
line_sample_last(const line_sample *self, uint64_t line)
{
    return table_find(&self->lines, line)->value;
}

#endif
