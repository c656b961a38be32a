/* Perf events, and the ring buffer of one: mapped from its descriptor, read record by record. */
#ifndef MEMSAMPD_RING_H
#define MEMSAMPD_RING_H

#include "core.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An event of a thread, on any CPU if that is -1; -1 with errno set. */
static inline int
perf_event_open(struct perf_event_attr *attr, pid_t tid, int cpu, int group)
{
    attr->size = sizeof *attr;
    return (int)syscall(SYS_perf_event_open, attr, tid, cpu, group, PERF_FLAG_FD_CLOEXEC);
}

typedef struct {
    struct perf_event_mmap_page *control; /* NULL once closed */
    size_t control_bytes;
    const unsigned char *data;
    size_t data_bytes; /* a power of two where the kernel writes it */
} Ring;

/* Map it; -1 with errno set: ENOBUFS where the limit of locked memory has no room for it, of which the kernel
 * says EPERM, as of an event that is forbidden. */
static inline int
ring_map(Ring *ring, int fd, size_t data_bytes)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page_bytes + data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        if (errno == EPERM)
            errno = ENOBUFS;
        return -1;
    }
    *ring = (Ring){at, page_bytes, (const unsigned char *)at + page_bytes, data_bytes};
    return 0;
}

static inline void
ring_unmap(Ring *ring)
{
    if (ring->control)
        munmap(ring->control, ring->control_bytes + ring->data_bytes);
    ring->control = NULL;
}

static inline uint64_t
ring_head(const Ring *ring)
{
    return __atomic_load_n(&ring->control->data_head, __ATOMIC_ACQUIRE);
}

static inline void
ring_give_back(Ring *ring, uint64_t position)
{
    __atomic_store_n(&ring->control->data_tail, position, __ATOMIC_RELEASE);
}

/* Bytes from this position on, those that wrap round in one piece. */
static inline void
ring_bytes(const Ring *ring, uint64_t position, void *to, size_t bytes)
{
    size_t offset = position % ring->data_bytes;
    size_t first = ring->data_bytes - offset < bytes ? ring->data_bytes - offset : bytes;
    memcpy(to, ring->data + offset, first);
    memcpy((unsigned char *)to + first, ring->data, bytes - first);
}

/* The record at this position, copied so that one that wraps round is in one piece; at most
 * max_bytes of it. Returns its full size. */
static inline size_t
ring_copy(const Ring *ring, uint64_t position, void *record, size_t max_bytes)
{
    struct perf_event_header header;
    ring_bytes(ring, position, &header, sizeof header);
    size_t most = max_bytes < ring->data_bytes ? max_bytes : ring->data_bytes;
    ring_bytes(ring, position, record, header.size < most ? header.size : most);
    return header.size;
}

#endif
