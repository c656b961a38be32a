/* Running the replica in translated code, from the registers of a held thread on. */
#ifndef MEMSAMPD_RUNNER_H
#define MEMSAMPD_RUNNER_H

#include "area.h"
#include "blocks.h"
#include "calls.h"
#include "code_pages.h"
#include "expansion.h"
#include "held.h"
#include "pages.h"
#include "process.h"
#include "remote.h"

#define BUFFER_WORDS (BUFFER_BYTES / 8)
#define TRIAL_SHARE 0.5

/* Why a run or a burst ended; the names given to Python are in runner.c. */
enum run_end {
    RUN_GOES_ON = 0,
    RUN_FULL,        /* as many accesses as were wanted, or no room for more */
    RUN_HOLD,        /* the hold limit */
    RUN_SYSCALL,     /* it stands before a system call, or one that a burst cannot go over */
    RUN_ASLEEP,      /* a call that sleeps */
    RUN_SIGNAL,      /* a signal for the target */
    RUN_DIFFERED,    /* the target did something else */
    RUN_UNSUPPORTED, /* an instruction whose accesses cannot be told */
    RUN_FAULT,       /* the program would be told of a fault */
    RUN_MODIFIED,    /* a store into code that has run */
    RUN_UNREADABLE,  /* memory that cannot be read without a change to the target */
    RUN_COLD,        /* the form of an instruction is not known: see blocks */
    RUN_FLUSHED,     /* no room for more translations */
    RUN_DEADLINE,    /* told to end */
    RUN_EXIT,        /* the replica or the target is gone */
    RUN_NO_MEMORY,
};

const char *run_end_name(enum run_end end);

struct runner {
    struct area area;
    struct blocks blocks;
    struct expansion expansion;
    struct process process;
    struct remote remote;
    struct pages pages;
    double trial_share; /* of a hold, after which it is told whether the whole of it would do */
    double beyond_share; /* of the time beyond a hold that is used */

    /* The present run. */
    enum run_end end;
    long number;          /* of the signal or the system call that ended it */
    uint64_t ip;          /* of the program, where it stands or ended */
    bool needs_target;    /* it stands at the program's `ip`: find or make its translation */
    long from_exit;       /* by which it came there: to be linked, or -1 */
    bool is_indirect;     /* to be published */
    long call_exit;       /* of the system call that it stands before */
    struct user_regs_struct regs; /* as the program sees them; rip is `ip` */
    const uint64_t *written;      /* the end of the whole records, in our mapping */
    const uint64_t *start;        /* of the first, or of what is not expanded yet */
    struct exit part_exit;        /* of a record that was cut off behind `written` */
    bool has_cut_record;
    double words_per_access;      /* learnt */
    uint64_t wanted;              /* accesses; more room is made for them where there is none. 0: not */
    size_t counted_words;         /* of what was recorded, from `start` on; so many accesses are in them: */
    uint64_t counted_accesses;
    volatile int is_cancelled;    /* set from another thread */

    /* What it cost, all runs together. */
    uint64_t traps, faults;
    double run_seconds, translation_seconds;
};

int runner_init(struct runner *r); /* -1 with errno set */
void runner_free(struct runner *r);

/* Put a stopped replica, seized by this thread, where a held thread is. False if it is gone or cannot
 * take the state. */
bool runner_enter(struct runner *r, const struct held *h, uint64_t accesses);

/* Run until it ends, or to `until_seconds`, of which `alarm` tells. */
enum run_end runner_run(struct runner *r, struct alarm *alarm, double until_seconds);

/* It ends so. Always false, for those who return that. */
bool runner_end(struct runner *r, enum run_end end, long number);

/* Go on where it was stopped from outside. */
void runner_resume(struct runner *r);

/* Forget what lies behind so many words, and have it stand so that it goes on from where it is. */
void runner_go_further(struct runner *r, size_t words);

/* Go on behind the system call that it stands before, with the target's registers. */
bool runner_cross(struct runner *r, const struct user_regs_struct *behind);

#endif
