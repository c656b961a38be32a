/* Pages of memory. */
#ifndef MEMSAMPD_PAGE_H
#define MEMSAMPD_PAGE_H

#include <stdint.h>

#define PAGE_BYTES 4096u

/* The page that contains an address. */
static inline uint64_t
page_of(uint64_t address)
{
    return address & ~(uint64_t)(PAGE_BYTES - 1);
}

#endif
