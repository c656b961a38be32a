/* Reads past the page cache into its memory, by itself and by io_uring. */
#include "watchful.h"

#include <linux/io_uring.h>

static int enter(int ring) { return (int)syscall(SYS_io_uring_enter, ring, 1, 1, 1, NULL, 0); }
int main(int argc, char **argv)
{
    (void)argc;
    int is_ring = atoi(argv[2]), fd = open(argv[1], O_RDONLY | O_DIRECT), ring = -1;
    if (fd < 0) fail("skip open");
    size_t size = 1 << 16;
    unsigned char *to =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    char *sq = NULL;
    struct io_uring_sqe *sqe = NULL;
    if (is_ring) {
        if ((ring = (int)syscall(SYS_io_uring_setup, 4, &p)) < 0) fail("skip io_uring");
        size_t bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
        sq = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
        sqe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
        if (sq == MAP_FAILED || sqe == MAP_FAILED) fail("skip mmap");
    }
    ready();
    for (unsigned round = 0; !told(); round++) {
        off_t from = (off_t)(round % 16) * (off_t)size;
        memset(to, 0xff, size);
        long got;
        if (is_ring) {
            unsigned *tail = (unsigned *)(sq + p.sq_off.tail), mask = 3;
            memset(&sqe[*tail & mask], 0, sizeof *sqe);
            sqe[*tail & mask].opcode = IORING_OP_READ;
            sqe[*tail & mask].fd = fd;
            sqe[*tail & mask].addr = (uint64_t)(uintptr_t)to;
            sqe[*tail & mask].len = (unsigned)size;
            sqe[*tail & mask].off = (uint64_t)from;
            ((unsigned *)(sq + p.sq_off.array))[*tail & mask] = *tail & mask;
            __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
            if (enter(ring) != 1) fail("io_uring_enter");
            unsigned *head = (unsigned *)(sq + p.cq_off.head);
            while (__atomic_load_n((unsigned *)(sq + p.cq_off.tail), __ATOMIC_ACQUIRE) == *head) ;
            unsigned at = *head & *(unsigned *)(sq + p.cq_off.ring_mask);
            got = ((struct io_uring_cqe *)(sq + p.cq_off.cqes))[at].res;
            __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        } else {
            got = pread(fd, to, size, from);
        }
        if (got != (long)size) { printf("%ld bytes", got); return 1; }
        for (size_t i = 0; i < size; i++)
            if (to[i] != (unsigned char)((from + (off_t)i) * 7 >> 3)) fail("other bytes");
        compute(0.001);
    }
    puts("right");
    return 0;
}
