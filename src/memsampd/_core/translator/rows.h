/* Recorded references, in arrays of their own, so that each becomes a numpy array as it is. */
#ifndef MEMSAMPD_ROWS_H
#define MEMSAMPD_ROWS_H

#include "core.h"
#include "line_runs.h"

#include <stdbool.h>
#include <stdint.h>

struct rows {
    uint64_t *ip, *address;
    uint16_t *size_bytes;
    uint8_t *is_write;
    size_t count, capacity;
};

/* The lines that rows touch, instead of these. A mark stands for a line accessed once or several times
 * without any other between: its number, and above it the lowest bits of the number of accesses before.
 * So a mark is written once, and the next one tells how often its line was accessed. */
struct lines {
    uint64_t *mark;
    size_t count, capacity;
    uint64_t last;       /* the line of the last mark; NO_LINE: no access can be added to that */
    uint64_t began;      /* the last mark was written after so many accesses, or later */
    uint64_t accesses;   /* of all marks */
    size_t rows, writes; /* that they are of; stores among these */
};

#define NO_LINE UINT64_MAX
/* A mark that began earlier is not added to by vectors, which look only once for so many accesses. */
#define MARK_ACCESSES (RUN_MAXIMUM - 3 * 8)

int rows_reserve(struct rows *rows, size_t more); /* -1: no memory */
void rows_clear(struct rows *rows);

/* A recipe_emit: `context` is the rows. */
int rows_add(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write);

/* (ip, address, size_bytes, is_write, instructions, prefetches), the first four as bytes; the rows
 * are then gone from here. */
PyObject *rows_take(struct rows *rows, uint64_t instructions, uint64_t prefetches);

bool lines_grow(struct lines *lines, size_t more); /* false: no memory */
void lines_clear(struct lines *lines);
void lines_begin(struct lines *lines);

static inline bool
lines_reserve(struct lines *lines, size_t more)
{
    return lines->count + more <= lines->capacity || lines_grow(lines, more);
}

/* Room for a mark is there. */
static inline void
lines_put(struct lines *lines, uint64_t line)
{
    line &= LINE_MASK;
    if (line != lines->last || lines->accesses - lines->began >= MARK_ACCESSES) {
        lines->mark[lines->count++] = line | lines->accesses << LINE_BITS;
        lines->last = line;
        lines->began = lines->accesses;
    }
    lines->accesses++;
}

/* Move rows to the lines, address >> shift, that they touch. False without memory. */
bool lines_add(struct lines *lines, struct rows *rows, unsigned shift);

/* Make runs of the marks, in their place. The next access begins another mark. */
void lines_to_runs(struct lines *lines);

#endif
