/* The replica let loose: it runs untraced on another CPU, and tells of faults by its post.
 *
 * That is for a while in which it faults again and again, and as long as the other CPU is idle: what
 * it gets of it is measured.
 */
#ifndef MEMSAMPD_LOOSE_H
#define MEMSAMPD_LOOSE_H

#include "post.h"
#include "process.h"

#include <sched.h>

struct loose {
    bool may_begin; /* there is another CPU, `away`, and it was idle */
    bool is_on;     /* nobody traces it */
    bool has_frame; /* it is in its handler: `stop` tells why, and its registers are in the frame */
    struct stop stop;
    cpu_set_t home, away;
    int policy;            /* of scheduling, at home */
    double share;          /* of the other CPU that it got lately */
    unsigned refusals;     /* of bursts, as that was too little */
    unsigned close_stops;  /* in a row, each soon after the one before, while it was traced */
    double begun_seconds, begun_cpu_seconds, posted_seconds;
};

/* For a burst: it may be let loose on `cpus`, but for the one that this thread runs on. */
void loose_choose(struct loose *l, const cpu_set_t *cpus);

/* It may not, and runs on any of `cpus` when it is traced. */
void loose_forbid(struct loose *l, const cpu_set_t *cpus);

/* Note a stop of the traced replica, which ran for so long. */
void loose_note_stop(struct loose *l, double ran_seconds);

/* Whether it is now the time. */
bool loose_is_due(struct loose *l, double seconds_left);

/* Let the replica go, which is stopped. */
void loose_begin(struct loose *l, struct process *p, const struct area *area);

enum loose_wait {
    LOOSE_STOPPED, /* it waits for an answer */
    LOOSE_LATE,    /* the time is up */
    LOOSE_QUIET,   /* it has not stopped for long, as others run on its CPU, perhaps */
    LOOSE_GONE,    /* what it says makes no sense */
};

/* Wait for its next stop. Spins. */
enum loose_wait loose_wait(struct loose *l, struct process *p, const struct area *area,
                           double until_seconds, const volatile int *is_cancelled);

/* Have it go on from where the frame says; false: it is gone. */
bool loose_answer(struct loose *l, struct process *p, const struct area *area);

/* Nobody will answer soon: it need not spin. */
void loose_rest(struct loose *l, const struct area *area);

enum loose_end {
    LOOSE_AT_CODE,   /* between two instructions of translated code */
    LOOSE_AT_POST,   /* in its handler, not answered: `stop` tells why */
    LOOSE_AT_SIGNAL, /* at a signal, of which `status` tells */
    LOOSE_AT_END,    /* it is gone */
};

/* Trace it again, on this thread's CPU. From LOOSE_AT_POST on its registers are in the frame until it
 * is let go on. */
enum loose_end loose_end(struct loose *l, struct process *p, const struct area *area, int *status);

#endif
