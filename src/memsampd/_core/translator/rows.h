/* Recorded references, in arrays of their own, so that each becomes a numpy array as it is. */
#ifndef MEMSAMPD_ROWS_H
#define MEMSAMPD_ROWS_H

#include "core.h"

#include <stdbool.h>
#include <stdint.h>

struct rows {
    uint64_t *ip, *address;
    uint16_t *size_bytes;
    uint8_t *is_write;
    size_t count, capacity;
};

/* The lines that rows touch, instead of these. */
struct lines {
    uint64_t *line;
    size_t count, capacity;
    size_t rows, writes; /* that they are of; stores among these */
    size_t starts;       /* of these lines, if no later one is to be followed from */
    bool has_stopped;    /* that is so */
};

int rows_reserve(struct rows *rows, size_t more); /* -1: no memory */
void rows_clear(struct rows *rows);

/* A recipe_emit: `context` is the rows. */
int rows_add(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write);

/* (ip, address, size_bytes, is_write, instructions, prefetches), the first four as bytes; the rows
 * are then gone from here. */
PyObject *rows_take(struct rows *rows, uint64_t instructions, uint64_t prefetches);

bool lines_reserve(struct lines *lines, size_t more); /* false: no memory */
void lines_clear(struct lines *lines);
void lines_begin(struct lines *lines);

/* From here on lines tell only whether earlier ones return. */
void lines_start_no_more(struct lines *lines);

/* Move rows to the lines, address >> shift, that they touch. False without memory. */
bool lines_add(struct lines *lines, struct rows *rows, unsigned shift);

/* (lines as bytes, how many of them may be followed from, rows, writes, instructions, prefetches); they
 * are then gone from here. */
PyObject *lines_take(struct lines *lines, uint64_t instructions, uint64_t prefetches);

#endif
