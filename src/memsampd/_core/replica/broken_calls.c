/* System calls that our interrupt broke off. */
#include "core.h"
#include "held.h"

#include <errno.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* The kernel's own restart codes: they are visible to a tracer only. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516
/* How long a sleep that had ended when we broke it off may take to notice. */
#define SETTLING_NANOSECONDS 100000L

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

/* The program sees a short count, which it may meet at any time, but which it met because of us. */
static bool
is_short_transfer(const struct user_regs_struct *regs)
{
    switch ((long)regs->orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_sendto:
        return (long)regs->rax > 0 && regs->rax < regs->rdx;
    case SYS_sendfile:
        return (long)regs->rax > 0 && regs->rax < regs->r10;
    default:
        return false;
    }
}

/* Calls that must not be made again: the descriptor is closed though EINTR was returned. */
static bool
closes_descriptor(unsigned long number)
{
    return number == SYS_close || number == SYS_dup2 || number == SYS_dup3;
}

static bool
awaits_restart_syscall(const struct user_regs_struct *regs)
{
    return (long)regs->rax == -ERESTART_RESTARTBLOCK && (long)regs->orig_rax >= 0;
}

/* Let it go to where a system call begins or ends. False: something else stopped it. */
static bool
reach_call(struct held *h, bool is_to_settle)
{
    const struct timespec settling = {0, SETTLING_NANOSECONDS};
    int status;

    if (ptrace_call(PTRACE_SYSCALL, h->tid, NULL, NULL) < 0)
        return false;
    if (is_to_settle) {
        nanosleep(&settling, NULL);
        ptrace_call(PTRACE_INTERRUPT, h->tid, NULL, NULL);
    }
    if (!held_await_stop(h, &status))
        return false;
    if (!is_syscall_stop(status) && status >> 16 == 0)
        h->signal = WSTOPSIG(status);
    return is_syscall_stop(status);
}

/* A sleep with a time limit was broken off, and there is a filter, which might kill for the
 * restart_syscall by which the kernel goes on with it. Where we may, that one call is let pass, so that
 * a sleep that was over when we came ends; no other one ever is: the filter is back before the thread
 * runs on. What is then still to be slept, or all of it, is begun anew: the thread ran when it was
 * seized, so it had just begun. */
static void
restart_under_filter(struct held *h)
{
    const unsigned long long number = h->regs.orig_rax;
    const long suspended = PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP;
    struct user_regs_struct regs;

    if (ptrace_call(PTRACE_SETOPTIONS, h->tid, NULL, (void *)suspended) == 0) {
        if (reach_call(h, false) && read_registers(h->tid, &regs) &&
            regs.orig_rax == SYS_restart_syscall)
            reach_call(h, true);
        ptrace_call(PTRACE_SETOPTIONS, h->tid, NULL, (void *)PTRACE_O_TRACESYSGOOD);
    }
    if (h->is_traced && read_registers(h->tid, &regs) && awaits_restart_syscall(&regs)) {
        regs.orig_rax = number;
        regs.rax = (unsigned long)-ERESTARTNOHAND;
        write_registers(h->tid, &regs);
    }
}

bool
held_settle_call(struct held *h)
{
    struct user_regs_struct again = h->regs;

    h->cut_short |= is_short_transfer(&h->regs); /* a later call of a chain may be whole */
    if ((long)h->regs.orig_rax < 0)
        return false;
    switch (-(long)h->regs.rax) {
    case ERESTARTSYS:
    case ERESTARTNOINTR:
    case ERESTARTNOHAND:
        return true;
    case ERESTART_RESTARTBLOCK:
        if (thread_has_filter(h->tid))
            restart_under_filter(h);
        return true;
    case EINTR:
        if (closes_descriptor(h->regs.orig_rax) || thread_awaits_signal(h->tid))
            return true; /* a signal did it, not we */
        again.rax = (unsigned long)-ERESTARTNOHAND; /* for a signal that comes before it is let go it is EINTR */
        write_registers(h->tid, &again);
        return true;
    default:
        return false;
    }
}
