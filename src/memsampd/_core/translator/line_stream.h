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

#endif
