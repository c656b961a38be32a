/* The layout of bins of reuse distances (memsampd.models.bins is built from the constants exported by
 * reuse_counter.c): exact integers below 2^EXACT_BITS, then 2^OCTAVE_BITS bins of equal width an octave,
 * up to 2^LIMIT_BITS.
 */
#ifndef MEMSAMPD_BINS_H
#define MEMSAMPD_BINS_H

#include "models.h"

#define EXACT_BITS 12
#define OCTAVE_BITS 4
#define LIMIT_BITS 40
#define EXACT (1u << EXACT_BITS)
#define BINS (EXACT + ((LIMIT_BITS - EXACT_BITS) << OCTAVE_BITS))

ALWAYS_INLINE unsigned
bin_of(uint64_t distance)
{
    if (distance < EXACT)
        return (unsigned)distance;
    if (distance >= (uint64_t)1 << LIMIT_BITS)
        return BINS - 1;
    unsigned octave = 63 - (unsigned)__builtin_clzll(distance);
    unsigned part = (unsigned)(distance >> (octave - OCTAVE_BITS)) & ((1 << OCTAVE_BITS) - 1);
    return EXACT + ((octave - EXACT_BITS) << OCTAVE_BITS) + part;
}

#endif
