/* System calls that our interrupt broke off. */
#include "core.h"
#include "held.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The kernel's own restart codes: they are visible to a tracer only. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516
/* How long a sleep that had ended when we broke it off may take to notice. */
#define SETTLING_NANOSECONDS 100000L
/* What one call transfers at most, and of how many pieces, or, of sendmmsg, messages. */
#define TRANSFER_BYTES_MOST 0x7ffff000u
#define PIECES_MOST 1024u
#define WHO_KNOWS UINT64_MAX
#define LURES_MOST 8 /* times that another file was in a socket's place */

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif
#ifndef PIDFD_THREAD /* Linux 6.9 */
#define PIDFD_THREAD O_EXCL
#endif

/* ---- Transfers that were cut short ---- */

/* Of an array of struct iovec in the target. */
static uint64_t
bytes_of_pieces(pid_t tid, uint64_t address, uint64_t count)
{
    struct iovec piece[PIECES_MOST];
    uint64_t bytes = 0;

    if (count > PIECES_MOST || !remote_copy_present(tid, address, piece, count * sizeof *piece))
        return WHO_KNOWS;
    for (uint64_t i = 0; i < count; i++)
        bytes += piece[i].iov_len;
    return bytes;
}

static uint64_t
bytes_of_message(pid_t tid, uint64_t address)
{
    struct msghdr message;

    if (!remote_copy_present(tid, address, &message, sizeof message))
        return WHO_KNOWS;
    return bytes_of_pieces(tid, (uint64_t)(uintptr_t)message.msg_iov, message.msg_iovlen);
}

/* What a call was to transfer, as its result counts it, if it waits until it has: else 0. Left out are those that
 * return what there is, once there is something, and copies between files, which only a death cuts short. */
static uint64_t
wanted_transfer(pid_t tid, const struct user_regs_struct *regs)
{
    switch ((long)regs->orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
        return regs->rdx;
    case SYS_writev:
    case SYS_pwritev:
    case SYS_pwritev2:
        return bytes_of_pieces(tid, regs->rsi, regs->rdx);
    case SYS_splice:
        return regs->r9 & SPLICE_F_NONBLOCK ? 0 : regs->r8;
    case SYS_sendfile:
        return regs->r10;
    case SYS_sendto:
        return regs->r10 & MSG_DONTWAIT ? 0 : regs->rdx;
    case SYS_sendmsg:
        return regs->rdx & MSG_DONTWAIT ? 0 : bytes_of_message(tid, regs->rsi);
    case SYS_recvfrom:
        return (regs->r10 & (MSG_DONTWAIT | MSG_WAITALL)) == MSG_WAITALL ? regs->rdx : 0;
    case SYS_recvmsg:
        return (regs->rdx & (MSG_DONTWAIT | MSG_WAITALL)) == MSG_WAITALL
                   ? bytes_of_message(tid, regs->rsi)
                   : 0;
    case SYS_sendmmsg: /* messages */
        return regs->r10 & MSG_DONTWAIT ? 0 : (uint32_t)regs->rdx;
    case SYS_recvmmsg:
        return regs->r10 & (MSG_DONTWAIT | MSG_WAITFORONE) ? 0 : (uint32_t)regs->rdx;
    case SYS_getrandom:
        return regs->rsi;
    default:
        return 0;
    }
}

/* Whether the descriptor that a transfer waits for lets it wait. */
static bool
may_wait(pid_t tid, const struct user_regs_struct *regs)
{
    const bool is_splice = regs->orig_rax == SYS_splice;
    const int to = (int)(is_splice ? regs->rdx : regs->rdi);

    if (regs->orig_rax == SYS_getrandom)
        return true;
    if ((is_splice || regs->orig_rax == SYS_sendfile) && thread_descriptor_is_pipe(tid, to))
        return false; /* into that goes what it has room for, once it has some */
    return thread_descriptor_waits(tid, to);
}

/* The program sees a short count, which it may meet at any time, but which it met because of us. */
static bool
is_cut_short(const struct held *h)
{
    const struct user_regs_struct *regs = &h->regs;
    const long number = (long)regs->orig_rax;

    if (number < 0 || (long)regs->rax <= 0)
        return false;
    const uint64_t most = number == SYS_sendmmsg ? PIECES_MOST : TRANSFER_BYTES_MOST;
    const uint64_t wanted = wanted_transfer(h->tid, regs);
    return regs->rax < (wanted < most ? wanted : most) && may_wait(h->tid, regs) &&
           !thread_awaits_signal(h->tid);
}

static unsigned lures; /* so far; atomic */

/* Our own descriptor for one of the held thread; -1: not to be had. */
static int
take_descriptor(const struct held *h, int theirs)
{
    int process = (int)syscall(SYS_pidfd_open, h->tid, PIDFD_THREAD);

    if (process < 0)
        process = (int)syscall(SYS_pidfd_open, h->pid, 0);
    return (int)syscall(SYS_pidfd_getfd, process, theirs, 0);
}

/* To ask a socket for its error takes that away. This is a thread by itself, with descriptors of its own: it may be
 * given another file, which other threads of the target put in the socket's place. To close one that some user
 * serves (FUSE) may take for ever. The kernel does it at the end of this thread, for which nobody waits: who
 * joins it goes on before. */
static void *
take_error(void *held)
{
    const struct held *h = held;
    socklen_t size = sizeof(int);
    int error;

    if (syscall(SYS_close_range, 0, ~0u, 2 /* CLOSE_RANGE_UNSHARE */) == 0 &&
        getsockopt(take_descriptor(h, (int)h->regs.rdi), SOL_SOCKET, SO_ERROR, &error, &size) < 0 &&
        errno == ENOTSOCK)
        __atomic_add_fetch(&lures, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Where recvmmsg has some messages already when it is broken off, the kernel keeps what broke it off for the next
 * call on the socket, which would return it: a restart code, an error that no program knows. */
static void
take_kept_restart(struct held *h)
{
    pthread_t thread;

    if (__atomic_load_n(&lures, __ATOMIC_RELAXED) < LURES_MOST &&
        pthread_create(&thread, NULL, take_error, h) == 0)
        pthread_join(thread, NULL);
}

/* ---- Calls that are made again ---- */

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

    if (is_cut_short(h)) {
        h->cut_short = true; /* a later call of a chain may be whole */
        if (h->regs.orig_rax == SYS_recvmmsg)
            take_kept_restart(h);
    }
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
