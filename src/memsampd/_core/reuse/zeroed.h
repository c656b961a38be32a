/* Zeroed memory, to be freed by free(). */
#ifndef MEMSAMPD_ZEROED_H
#define MEMSAMPD_ZEROED_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* In huge pages where it is large: random lookups would else miss the TLB too. */
static inline void *
alloc_zeroed(size_t bytes)
{
    void *memory;
    if (bytes < HUGE_PAGE_BYTES)
        return calloc(1, bytes ? bytes : 1);
    if (posix_memalign(&memory, HUGE_PAGE_BYTES, bytes))
        return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* refused where huge pages are off: no harm */
    return memset(memory, 0, bytes);
}

#endif
