/* The lines that references touch. */
#ifndef MEMSAMPD_LINE_STREAM_H
#define MEMSAMPD_LINE_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* Lines beyond the first that a reference touches. */
static inline uint64_t
further_lines(uint64_t address, unsigned size_bytes, unsigned shift)
{
    /* From the start of the line to the last byte touched: cannot overflow, unlike addresses. */
    uint64_t offset = address & ((UINT64_C(1) << shift) - 1);
    return (offset + (size_bytes != 0 ? size_bytes : 1) - 1) >> shift;
}

/* How many there are: a reference that crosses into other lines touches each, lowest first. */
size_t lines_count(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift);

/* Their numbers, address >> shift, into room for so many. */
void lines_write(const uint64_t *address, const uint16_t *size_bytes, size_t n, unsigned shift,
                 uint64_t *lines);

#endif
