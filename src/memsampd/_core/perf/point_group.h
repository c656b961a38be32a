/* Breakpoints on a thread, in one group with its task clock: each hit tells the thread's CPU time,
 * and what counters counted, where some are in the group.
 *
 * The thread's registers and memory stay as they are: the kernel sets the debug registers whenever
 * the thread is switched in. There are four of them, shared with debuggers. */
#ifndef MEMSAMPD_POINT_GROUP_H
#define MEMSAMPD_POINT_GROUP_H

#include "ring.h"

#include <stdbool.h>

enum {
    POINTS_MAX = 4,
    COUNTERS_MAX = 2,
    HITS_MAX = 256, /* of all points together: what the ring holds */
};

struct point {
    unsigned kind;
    uint64_t address;
};

/* A hit as Python sees it; its size is _HIT_BYTES in sampler/perf/arrival.py. */
struct hit {
    uint64_t task_ns, time_ns, ip, counted;
    uint32_t point, in_kernel;
};

/* How points are to be watched. */
struct watching {
    int hits;           /* of each */
    bool sees_kernel;   /* hits by system calls count, too: without a limit they would cost the thread a trap each */
    uint64_t cpu_ns;    /* of the thread, after which the kernel ends it; 0: it does not */
};
_Static_assert(sizeof(struct hit) == 40, "as sampler/perf/arrival.py has it");

struct point_group {
    Ring ring; /* all points write to the first one's */
    struct watching how;
    int clock; /* the leader; -1: nothing is open */
    uint64_t clock_id;
    int counters, points;
    int counter[COUNTERS_MAX];
    int fd[POINTS_MAX];
    uint64_t id[POINTS_MAX];
};

/* So many points, and counters; -1 with errno set. Nothing starts yet. */
int points_open(struct point_group *g, pid_t tid, const struct point *points, int count,
                const struct watching *how, struct perf_event_attr *counters, int counter_count);
void points_close(struct point_group *g);

/* Have all points ready, and start the clock, and they with it, or not yet; -1 with errno set. */
int points_arm(const struct point_group *g, bool starts);

/* How many hits have come, and what they tell. */
int points_hits_so_far(const struct point_group *g);
size_t points_hits(const struct point_group *g, struct hit hits[HITS_MAX]);

/* When the kernel ended it, CLOCK_MONOTONIC; 0: it has not. What the clock counts may stay a little below the
 * limit then: the kernel takes the limit by another clock. */
uint64_t points_ended_ns(const struct point_group *g);

/* CPU time since the clock was started, and what the counters counted. Returns what read(2) does: 0 where the
 * kernel gave up. */
ssize_t points_read(const struct point_group *g, uint64_t *task_ns, uint64_t *counted);

#endif
