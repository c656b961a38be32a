/* Holding a thread of the target: it is stopped, read, and let go as it was.
 *
 * Nothing is written to it but, where our stop broke a system call off that the kernel does not restart
 * by itself, the registers that make it again. All calls for one thread come from one thread of ours:
 * ptrace binds a tracee to the thread that seized it, and the end of that thread lets go of all that it
 * still holds, asleep or not.
 */
#ifndef MEMSAMPD_HELD_H
#define MEMSAMPD_HELD_H

#include "alarm.h"
#include "moments.h"
#include "remote.h"
#include "thread_status.h"
#include "tracee.h"

#include <signal.h>
#include <stddef.h>

#define XSTATE_MAXIMUM_BYTES 16384

enum held_status {
    HELD_OK = 0,
    HELD_GONE,        /* it exited, or was killed, meanwhile */
    HELD_REFUSED,     /* PTRACE_SEIZE failed: see errno */
    HELD_NOT_RUNNING, /* it sleeps: interrupting it could cut a system call short */
    HELD_IN_SYSCALL,  /* it was caught inside a system call, which is made again */
    HELD_JOB_STOPPED, /* it is stopped by a signal, as by Ctrl-Z */
    HELD_IN_RSEQ,     /* it was caught inside a restartable sequence */
    HELD_NOT_64_BIT,  /* it runs 32-bit code */
    HELD_NOT_REACHED, /* it did not come to the place where it was waited for */
    HELD_UNEXPECTED,  /* it stopped in a way that we do not know */
};

/* A thread that was seized and stopped. */
struct held {
    pid_t pid, tid;
    struct user_regs_struct regs;
    uint8_t xstate[XSTATE_MAXIMUM_BYTES];
    size_t xstate_bytes;
    uint64_t rseq_address;     /* of its area for restartable sequences, or 0 */
    bool is_traced;            /* it is ours still */
    bool is_asleep;            /* it sleeps in a system call, or may: the end of our thread lets go of it */
    bool cut_short;            /* a transfer returned less than was asked for, because of us */
    int signal;                /* to be delivered when it is let go, or 0 */
    int error;                 /* errno of HELD_REFUSED */
    double since_seconds;      /* CLOCK_MONOTONIC; it is held now if not 0 */
    double held_seconds, longest_seconds; /* so far */
    unsigned holds;
    int run_times_fd;          /* of the thread, while a chain goes on; -1: not to be had */
    struct run_times run_times; /* when it was held the last time */
    double delay_seconds;      /* from one hold to the next, without what it ran; part of held_seconds */
    unsigned delays;           /* of which that is the sum */
    unsigned vain_looks;       /* one after the other, for it to stand again */
    double patience_seconds;   /* for which it is waited for to stop, at each time */
    const volatile int *is_cancelled; /* it is not waited for any longer */
};

const char *held_status_name(enum held_status status);

/* Seize and stop a running thread of the target, and read its registers. On any status but HELD_OK it
 * is let go. One of another process, to which its number has gone since, is not stopped. */
enum held_status held_stop(struct held *h, const struct remote *target, pid_t tid,
                           double patience_seconds, const volatile int *is_cancelled);

/* Wait until it stops. False: it is gone; or it is asleep, where nothing interrupts it, as a parent that waits
 * for what it made by vfork: the end of our thread lets go of it. */
bool held_await_stop(struct held *h, int *status);

/* Let it run on exactly where it is. */
void held_release(struct held *h);

enum held_call {
    CALL_REACHED,  /* it stands before or behind the call, and is held again */
    CALL_SIGNAL,   /* a signal or another stop came: to be let go */
    CALL_LATE,     /* not in time: it runs */
    CALL_GONE,
};

/* Before the first of the following, and after the last. */
void held_begin_calls(struct held *h);
void held_end_calls(struct held *h);

/* Let it run to its next system call, or from there to behind it, and hold it again; by `until_seconds`.
 * Its registers are read. What passes meanwhile without its running, as nobody has noticed yet that it
 * stands, counts as held. */
enum held_call held_to_call(struct held *h, struct alarm *alarm, double until_seconds);

/* Whether a system call was broken off. The kernel restarts most by itself when the thread is let go;
 * epoll_wait and its like, which it ends with EINTR, are set up for the same, unless a signal did it that
 * the thread is to notice: those that are ignored end calls only of a thread that is traced. */
bool held_settle_call(struct held *h);

/* Let one go that stands before a call: by the end of our thread, as a sleeper, for to be detached there
 * wakes it like a signal, and so breaks the call off. */
void held_enter_call(struct held *h);

/* Stop it again after CALL_LATE before a call: false if it is gone. */
bool held_interrupt(struct held *h);

#endif
