/* A process becomes a replica: what it does itself before it loses everything. */
#ifndef MEMSAMPD_BIRTH_H
#define MEMSAMPD_BIRTH_H

#include "area.h"

#include <linux/userfaultfd.h>
#include <sys/types.h>

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

/* What it tells through the area. */
struct hello {
    volatile int32_t uffd, error;
    volatile uint64_t features;
    volatile int32_t is_ready;
};

static inline struct hello *
hello_of(const struct area *area)
{
    return (struct hello *)(area->bytes + AREA_SLOTS);
}

/* Runs in a copy of memsampd that shares its table of descriptors: only system calls. */
void become_replica(const struct area *area, uint64_t at, pid_t parent) __attribute__((noreturn));

#endif
