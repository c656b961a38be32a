/* Recorded references, in arrays of their own, so that each becomes a numpy array as it is. */
#ifndef MEMSAMPD_ROWS_H
#define MEMSAMPD_ROWS_H

#include "core.h"

#include <stdint.h>

struct rows {
    uint64_t *ip, *address;
    uint16_t *size_bytes;
    uint8_t *is_write;
    size_t count, capacity;
};

int rows_reserve(struct rows *rows, size_t more); /* -1: no memory */
void rows_clear(struct rows *rows);

/* A recipe_emit: `context` is the rows. */
int rows_add(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write);

/* (ip, address, size_bytes, is_write, instructions, prefetches), the first four as bytes; the rows
 * are then gone from here. */
PyObject *rows_take(struct rows *rows, uint64_t instructions, uint64_t prefetches);

#endif
