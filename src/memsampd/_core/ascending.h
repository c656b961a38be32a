/* Orders for qsort. */
#ifndef MEMSAMPD_ASCENDING_H
#define MEMSAMPD_ASCENDING_H

#include <stdint.h>

static inline int
ascending_uint64(const void *one, const void *other)
{
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static inline int
ascending_double(const void *one, const void *other)
{
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

#endif
