/* One burst: a thread is held, its replica runs, and, over system calls, again and again. */
#ifndef MEMSAMPD_BURST_H
#define MEMSAMPD_BURST_H

#include "company.h"
#include "runner.h"

#include <sched.h>

struct burst_order {
    pid_t tid;
    uint64_t accesses;       /* wanted */
    double hold_seconds;     /* the sum of all holds */
    double patience_seconds; /* to find the thread at work outside of the kernel */
    double chain_seconds;    /* wall time that a chain over system calls may take; 0: end at the first */
    double dry_seconds;      /* not held, to learn code: instead of a burst, or 0 */
    double beyond_seconds;   /* CPU time of ours to go on for when the hold is over, the target running, too */
    /* Hold it where it comes to one of some places: a group of breakpoints that is enabled by its
     * leader, and what is readable once it was there; -1: hold it at once. */
    int arrival_leader, arrival;
    int arrival_end;         /* the wait is over when this is readable; -1: nothing ends it */
    double arrival_seconds;  /* to wait for that */
    /* Describe the form that the translator wants, and add it; false: it cannot be. Not called while the
     * target is held. */
    bool (*describe)(void *context);
    void *context;
};

#define HURRIED_MILLISECONDS 20 /* of a hold: for longer, nobody may be kept from a CPU */
#define FURTHER_MOST 40

/* The program's registers behind so many accesses. */
struct moment {
    uint64_t accesses;
    struct user_regs_struct regs;
};

struct burst_result {
    enum held_status status; /* of the first hold; only if it is HELD_OK there is a burst */
    int error;
    enum run_end end;
    bool is_lost;            /* the replica is gone */
    double started_seconds, held_seconds, longest_seconds;
    unsigned holds;
    unsigned calls, compared, equal;
    bool cut_short;
    bool has_company;        /* other threads of the target ran meanwhile, or may have */
    size_t held_words;       /* what was recorded up to here is what the target makes; SIZE_MAX: all */
    uint64_t held_accesses, accesses; /* what was recorded makes so many: up to there, and in all */
    struct user_regs_struct first, released, last; /* the program's registers at these moments */
    struct moment further[FURTHER_MOST];           /* where it came behind its end */
    unsigned furthers;
    uint64_t pages_predicted, pages_missed;
    double replica_cpu_seconds, tracer_cpu_seconds;
};

#define PREDICTED_SHARE 0.4 /* of the hold, and of the time beyond it, for pages that are likely to be needed */
#define COLD_SHARE 0.2 /* of a run: where translating took more, code is cold */

/* What the burst's thread works with. */
struct burst {
    struct runner *r;
    const struct burst_order *order;
    struct burst_result *result;
    struct alarm *alarm;
    cpu_set_t cpus; /* where this thread may run */
    bool is_hurried;
    int policy, niceness; /* of this thread, before it was hurried */
    struct held held;
    struct company company;
    bool has_company; /* others ran when it began: they may run at any time */
};

/* Take a burst, in a thread of its own: its end lets go of a target that sleeps. What was recorded is
 * then in the runner. -1 with errno set: no thread. */
int burst_take(struct runner *r, const struct burst_order *order, struct burst_result *result);

#endif
