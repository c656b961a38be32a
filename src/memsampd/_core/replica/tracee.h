/* One stopped thread: interrupting it without a trace, and making it run a system call for us.
 *
 * Everything here must be called from one and the same thread of memsampd: ptrace binds a tracee to
 * the thread that seized it.
 */
#ifndef MEMSAMPD_TRACEE_H
#define MEMSAMPD_TRACEE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "frame.h"

/* How an operation on a tracee ended. The names given to Python are in tracee.c. */
enum tracee_status {
    TRACEE_OK = 0,
    TRACEE_GONE,          /* it exited, or was killed, meanwhile */
    TRACEE_REFUSED,       /* PTRACE_SEIZE failed: see errno */
    TRACEE_NOT_RUNNING,   /* it sleeps: interrupting it could cut a system call short */
    TRACEE_IN_SYSCALL,    /* it was caught inside a system call, which the kernel will restart */
    TRACEE_JOB_STOPPED,   /* it is stopped by a signal, as by Ctrl-Z */
    TRACEE_IN_RSEQ,       /* it was caught inside a restartable sequence */
    TRACEE_NOT_64_BIT,    /* it runs 32-bit code */
    TRACEE_NO_SCRATCH,    /* its scratch memory cannot be written, or is in use */
    TRACEE_CALL_FAILED,   /* the injected system call failed: see errno */
    TRACEE_UNEXPECTED,    /* it stopped in a way that we do not know */
};

/* Where in the target's memory an injection finds what it needs. */
struct tracee_site {
    uint64_t syscall_address;   /* a `syscall` instruction followed by a plain way to `ret` */
    uint64_t sigreturn_address; /* `mov $15, %eax; syscall` */
    uint64_t scratch_address;   /* FRAME_SCRATCH_BYTES that nobody uses, 64-byte aligned; or 0 */
    uint64_t stack_start, stack_end; /* the initial stack */
};

/* A thread that was seized and stopped. */
struct tracee {
    pid_t tid;
    struct user_regs_struct regs; /* what it is put back to; the kernel then restarts its call */
    struct user_regs_struct healed; /* the same for a frame: the restart is already in it */
    uint64_t mask;                /* its signal mask */
    uint64_t pending;             /* signals that wait for it, or for any thread of its process */
    uint8_t *xstate;              /* its vector state, malloc'd */
    size_t xstate_bytes;
    long options;            /* ptrace options that hold from the seizure on */
    uint64_t scratch_address; /* the memory of this stop's injections */
    size_t scratch_bytes;    /* how much of its scratch memory the last injection used */
    uint8_t *scratch_before; /* what lay in its scratch memory, malloc'd */
    bool cut_short;          /* a transfer system call returned less than was asked for */
    bool pending_stop;       /* a SIGSTOP came while it was ours: to be sent again */
    bool parts_running;      /* to be let go by the end of our thread: see tracee_stop_filtered */
    double stopped_at_seconds; /* CLOCK_MONOTONIC */
};

const char *tracee_status_name(enum tracee_status status);
double tracee_now_seconds(void);

/* CPU time of a process: the scheduler's own count, exact to the nanosecond if it is stopped. */
long long tracee_cpu_nanoseconds(pid_t pid);

/* Wait for the next stop of `tid`; 0, or -1 when it is gone (errno ECHILD or ESRCH). */
int tracee_wait(pid_t tid, int *status);

/* Before a stop: let this thread go before others, or a busy machine prolongs the stop; 0, or what
 * must be given to tracee_unhurry behind it. Best effort: it needs CAP_SYS_NICE. */
int tracee_hurry(void);
void tracee_unhurry(int niceness);

/* Seize and stop a thread. With `any_state`, a sleeping one too: an interrupted system call is then
 * set up to start again. On any status but TRACEE_OK the thread is running again, untouched. With
 * `suspend_seccomp`, a sleep with a time limit that it had just begun is begun anew: see below. */
enum tracee_status tracee_stop(struct tracee *t, pid_t tid, bool any_state, bool suspend_seccomp);

/* The same under a seccomp filter, which is suspended while the thread is ours.
 *
 * The kernel resumes a sleep with a time limit by a call of its own, restart_syscall, and a filter
 * that allows just what its program calls kills for that one. It must pass the filter while it is
 * suspended, and a sleeping thread cannot be detached; but it is left alone, asleep, when the thread
 * that traces it ends. So call this, and tracee_release, in a thread that ends behind it. */
enum tracee_status tracee_stop_filtered(struct tracee *t, pid_t tid);

/* Whether nobody traces this thread: the end of a tracer's thread takes effect with some delay. */
bool tracee_is_untraced(pid_t tid);

/* Let it run on exactly where it was, and forget it. Returns the seconds for which it was stopped. */
double tracee_release(struct tracee *t);

/* Choose the scratch memory of this stop; false if there is none: TRACEE_NO_SCRATCH. The site's if it
 * is still unused. Else what lies below a thread's own stack pointer and red zone, where a signal
 * would put its frame, too: only on the initial stack, as the stacks that runtimes make for
 * themselves may be small and have neighbours. */
bool tracee_settle_scratch(struct tracee *t, const struct tracee_site *site);

/* Make a stopped thread of the target run one system call. It is self-healing: see frame.h.
 * A clone's traced child is left in its first stop and put into `*child`. */
enum tracee_status tracee_inject(struct tracee *t, const struct tracee_site *site, long number,
                                 const uint64_t arguments[6], long *result, pid_t *child);

/* The same for a disposable shadow, stopped and ours: nothing to heal. `regs` is restored after. */
enum tracee_status tracee_inject_shadow(pid_t pid, const struct user_regs_struct *regs,
                                        uint64_t syscall_address, long number,
                                        const uint64_t arguments[6], long *result);

/* Make it run clone. The child, traced with the shadow's `options`, is left in its first stop. */
enum tracee_status tracee_clone_shadow(pid_t pid, const struct user_regs_struct *regs,
                                       uint64_t syscall_address, const uint64_t arguments[6],
                                       long options, long *ns_child, pid_t *child);

/* Take a shadow's registration for restartable sequences (rseq) away, and leave the area as it was.
 * Else the kernel would send a sequence to its abort handler at each of our stops, so that it never
 * came to its end. Its fields keep telling the CPU of the moment of the copy: nobody but the shadow
 * works on its memory, so any CPU's part of per-CPU data is as good, and its path does not change.
 * Best effort: kernels before 5.13 do not say where the area is. */
enum tracee_status tracee_leave_rseq(pid_t pid, const struct user_regs_struct *regs,
                                     uint64_t syscall_address);

#endif
