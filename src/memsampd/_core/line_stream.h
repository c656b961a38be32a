/* The lines that references touch. */
#ifndef MEMSAMPD_LINE_STREAM_H
#define MEMSAMPD_LINE_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* How many there are: a reference that crosses into other lines touches each, lowest first. */
size_t lines_count(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift);

/* Their numbers, address >> shift, into room for so many. */
void lines_write(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift,
                 uint64_t *lines);

#endif
