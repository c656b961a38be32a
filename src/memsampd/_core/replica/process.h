/* The replica: a process of ours that stands in for the target.
 *
 * It has no descriptor, no privilege and no system call (seccomp kills it for any but pause and
 * MADV_DONTNEED), and its memory is one area, empty at first, that covers what addresses the target can have,
 * but for the translator's own area. Pages are supplied from outside: a touch of one that it does not see is a
 * SIGBUS (userfaultfd with UFFD_FEATURE_SIGBUS), which stops it, and nothing of its own waits for anybody else.
 */
#ifndef MEMSAMPD_PROCESS_H
#define MEMSAMPD_PROCESS_H

#include "area.h"
#include "frames.h"
#include "held.h"
#include "remote.h"

#define HIGHEST_ADDRESS 0x7ffffffff000u /* of its memory: behind it */
#define PROCESS_PARTS 16

struct process_part {
    uint64_t start, end;
};

struct process {
    pid_t pid; /* 0: none */
    int uffd;
    struct frames frames; /* its memory */
    uint64_t area_address;
    struct process_part part[PROCESS_PARTS]; /* addresses that it can have pages at */
    size_t parts;
    bool can_protect; /* pages can be supplied read-only */
    bool can_keep;    /* pages of which it sees nothing can be kept (Linux 5.13; read-only ones 6.4) */
    bool has_seen;    /* some, and may still */
    uint8_t era;      /* another one since all pages were given back; not 0 */
    bool is_ours;     /* seized by this thread */
    double told_cpu_seconds; /* by process_cpu_since */
    char trouble[96]; /* what could not be done, for people */
};

/* Make one, with the area at an address; -1 with errno and `trouble` set. With `may_execute`, its memory
 * can be executed: for single-stepping, which is a test of translated code. Pages are kept if they may be
 * and the kernel can. */
int process_create(struct process *p, const struct area *area, uint64_t area_address,
                   bool may_execute, bool may_keep);
void process_destroy(struct process *p);

/* Whether it has ended: it is a zombie until process_destroy, so that its number stays its own. */
bool process_is_dead(const struct process *p);

/* Make this thread its tracer, and stop it; false if it is dead. */
bool process_seize(struct process *p);

/* Put it to sleep and let go of it. */
void process_park(struct process *p);

/* Where to write what a page is to contain that was supplied before in this era; NULL: process_supply is to
 * make it. To be wrong about that takes longer, and no more. */
uint8_t *process_place(struct process *p, uint64_t page, uint8_t era);

/* Supply consecutive pages: what was written in their places, or `bytes` where these are not NULL. Returns
 * how many there are now. */
size_t process_supply(struct process *p, uint64_t page, const uint8_t *bytes, size_t count,
                      bool is_writable);

/* Whether it did not see a page of those that it has: the kernel may take pages away. It sees it now. */
bool process_show_again(struct process *p, uint64_t page, bool is_writable);

/* Write over a page that it has. */
bool process_refresh(struct process *p, uint64_t page, const uint8_t *bytes);

/* Let it write to a page that was supplied read-only; keep it from that again. */
bool process_unprotect(struct process *p, uint64_t page);
bool process_protect(struct process *p, uint64_t page);

/* Take pages away. */
void process_drop(struct process *p, uint64_t start, uint64_t end);
void process_drop_all(struct process *p);

/* Behind a burst, when it is parked: it sees none of them any more; some are kept. */
void process_end_burst(struct process *p);

/* CPU time that it has used, and the part of it that process_cpu_since has not told yet. */
double process_cpu_seconds(const struct process *p);
double process_cpu_since(struct process *p);

#endif
