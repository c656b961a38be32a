#include "core.h"
#include "tracee.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>


/* The kernel's own restart codes: they are visible to a tracer only. */
#define RED_ZONE_BYTES 128
#define HURRIED_NICENESS (-10)
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

#define USER_CODE_64 0x33
#define SIGNAL_MASK_BYTES 8
#define XSTATE_MAXIMUM_BYTES 16384
#define STATUS_FILE_BYTES 4096
#define PENDING_MAXIMUM 64
#define RSEQ_SECTION_OFFSET 8
#define RSEQ_MAXIMUM_BYTES 1024
#define RSEQ_UNREGISTER 1

/* How long a wait spins before it sleeps: a stop usually comes within some microseconds. */
#define SPIN_ROUNDS 2000
#define SLEEP_NANOSECONDS 50000L

/* How long a sleep that had ended when we broke it off may take to notice. */
#define SETTLING_NANOSECONDS 100000L
#define PARTING_ROUNDS 20000

/* glibc declares the request as an enum of its own making; the kernel takes a long. */
static long
ptrace_call(long request, pid_t tid, void *address, void *data)
{
    return ptrace((enum __ptrace_request)request, tid, address, data);
}

const char *
tracee_status_name(enum tracee_status status)
{
    static const char *const names[] = {
        "ok", "gone", "refused", "not-running", "in-syscall", "job-stopped",
        "in-rseq", "not-64-bit", "no-scratch", "call-failed", "unexpected",
    };
    return names[status];
}

double
tracee_now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

long long
tracee_cpu_nanoseconds(pid_t pid)
{
    clockid_t clock;
    struct timespec used = {0, 0};

    if (clock_getcpuclockid(pid, &clock) == 0)
        clock_gettime(clock, &used);
    return used.tv_sec * 1000000000ll + used.tv_nsec;
}

/* Polling, not blocking: a blocking waitpid in a process whose other threads reap children too has
 * been seen to stall, and here every microsecond is one in which the target is stopped. */
/* Another thread of ours that waits for a child of ours, as subprocess does, may be handed the stop
 * instead: then the tracee is stopped, but no wait will ever say so again. */
static bool
is_stopped_already(pid_t tid, int *status)
{
    siginfo_t info;

    if (ptrace_call(PTRACE_GETSIGINFO, tid, NULL, &info) < 0)
        return false;
    bool is_ours = info.si_signo == SIGTRAP && (info.si_code & 0x7f) == SIGTRAP;
    *status = (is_ours ? info.si_code : info.si_signo) << 8 | 0x7f;
    return true;
}

int
tracee_wait(pid_t tid, int *status)
{
    const struct timespec pause = {0, SLEEP_NANOSECONDS};

    for (unsigned round = 0;; round++) {
        pid_t got = waitpid(tid, status, __WALL | WNOHANG);
        if (got == tid)
            return WIFSTOPPED(*status) ? 0 : -1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (round > 2 * SPIN_ROUNDS && is_stopped_already(tid, status))
            return waitpid(tid, status, __WALL | WNOHANG) != tid || WIFSTOPPED(*status) ? 0 : -1;
        if (round > SPIN_ROUNDS)
            nanosleep(&pause, NULL);
    }
}

static bool
is_event_stop(int status)
{
    return status >> 16 == PTRACE_EVENT_STOP;
}

static bool
is_syscall_stop(int status)
{
    return WSTOPSIG(status) == (SIGTRAP | 0x80) && status >> 16 == 0;
}

static size_t
read_status_file(pid_t tid, const char *name, char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, STATUS_FILE_BYTES - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

static char
thread_state(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    const char *end;

    if (read_status_file(tid, "stat", text) == 0 || (end = strrchr(text, ')')) == NULL)
        return '\0';
    return end[1] == ' ' ? end[2] : '\0';
}

static uint64_t
status_mask(const char *text, const char *field)
{
    const char *found = strstr(text, field);
    return found == NULL ? 0 : strtoull(found + strlen(field), NULL, 16);
}

static bool
has_deliverable_signal(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    if (read_status_file(tid, "status", text) == 0)
        return true;
    uint64_t pending = status_mask(text, "SigPnd:") | status_mask(text, "ShdPnd:");
    return (pending & ~status_mask(text, "SigBlk:")) != 0;
}

/* A write that was interrupted after it had moved something: the program sees a short count, which
 * it may meet at any time, but which it met because of us. */
static bool
is_short_transfer(const struct user_regs_struct *regs)
{
    switch ((long)regs->orig_rax) {
    case SYS_write:
    case SYS_pwrite64:
    case SYS_sendto:
    case SYS_sendfile:
        return (long)regs->rax > 0 && regs->rax < regs->rdx;
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

/* Registers with which an interrupted system call starts again. False where it was not interrupted.
 * The kernel's restart of a sleep would be lost in a frame's rt_sigreturn: begin that anew. */
static bool
restarted(const struct user_regs_struct *regs, struct user_regs_struct *again)
{
    switch (-(long)regs->rax) {
    case EINTR: /* epoll_wait and a few others, which the kernel does not restart */
        if (closes_descriptor(regs->orig_rax))
            return false;
        break;
    case ERESTARTSYS:
    case ERESTARTNOINTR:
    case ERESTARTNOHAND:
    case ERESTART_RESTARTBLOCK:
        break;
    default:
        return false;
    }
    if ((long)regs->orig_rax < 0)
        return false;
    again->rip -= 2; /* syscall and int $0x80 are two bytes each */
    again->rax = regs->orig_rax;
    return true;
}

/* Decide what becomes of a system call that our interrupt may have broken off: true if so. */
static bool
settle_syscall(struct tracee *t)
{
    t->healed = t->regs;
    bool broken_off = restarted(&t->regs, &t->healed);
    t->cut_short = is_short_transfer(&t->regs);
    t->healed.orig_rax = (unsigned long)-1;
    if (broken_off && (long)t->regs.rax == -EINTR) {
        if (has_deliverable_signal(t->tid))
            t->healed.rip = t->regs.rip, t->healed.rax = t->regs.rax; /* a signal did it, not we */
        else
            t->regs = t->healed;
    }
    return broken_off;
}

/* As the kernel's struct ptrace_rseq_configuration. */
struct rseq_registration {
    uint64_t area;
    uint32_t size, signature, flags, pad;
};

static bool
read_rseq(pid_t tid, struct rseq_registration *rseq)
{
    memset(rseq, 0, sizeof *rseq);
    return ptrace_call(PTRACE_GET_RSEQ_CONFIGURATION, tid, (void *)sizeof *rseq, rseq) >= 0 &&
           rseq->area != 0;
}

static bool
is_in_rseq(const struct tracee *t)
{
    struct rseq_registration rseq;
    struct {
        uint32_t version, flags;
        uint64_t start_ip, post_commit_offset, abort_ip;
    } section;
    uint64_t section_address = 0;

    if (!read_rseq(t->tid, &rseq))
        return false;
    struct iovec mine = {&section_address, sizeof section_address};
    struct iovec theirs = {(void *)(uintptr_t)(rseq.area + RSEQ_SECTION_OFFSET),
                           sizeof section_address};
    if (process_vm_readv(t->tid, &mine, 1, &theirs, 1, 0) != sizeof section_address ||
        section_address == 0)
        return false;
    mine = (struct iovec){&section, sizeof section};
    theirs = (struct iovec){(void *)(uintptr_t)section_address, sizeof section};
    if (process_vm_readv(t->tid, &mine, 1, &theirs, 1, 0) != sizeof section)
        return false;
    return t->regs.rip - section.start_ip < section.post_commit_offset;
}

static enum tracee_status
wait_for_interrupt(struct tracee *t)
{
    int status;

    for (;;) {
        if (tracee_wait(t->tid, &status) < 0)
            return TRACEE_GONE;
        if (is_event_stop(status))
            return WSTOPSIG(status) == SIGTRAP ? TRACEE_OK : TRACEE_JOB_STOPPED;
        if (status >> 16 != 0)
            return TRACEE_UNEXPECTED;
        /* A signal of its own came first: hand it on, the interrupt is still to come. */
        if (ptrace_call(PTRACE_CONT, t->tid, NULL, (void *)(long)WSTOPSIG(status)) < 0)
            return TRACEE_GONE;
    }
}

static uint64_t
pending_signals(pid_t tid, uint32_t queue)
{
    siginfo_t queued[PENDING_MAXIMUM];
    struct __ptrace_peeksiginfo_args which = {.off = 0, .flags = queue, .nr = PENDING_MAXIMUM};
    uint64_t pending = 0;

    long count = ptrace_call(PTRACE_PEEKSIGINFO, tid, &which, queued);
    for (long i = 0; i < count; i++)
        pending |= (uint64_t)1 << (queued[i].si_signo - 1);
    return pending;
}

static enum tracee_status
read_registers(struct tracee *t)
{
    struct iovec area = {&t->regs, sizeof t->regs};

    if (ptrace_call(PTRACE_GETREGSET, t->tid, (void *)NT_PRSTATUS, &area) < 0)
        return TRACEE_GONE;
    return area.iov_len == sizeof t->regs && t->regs.cs == USER_CODE_64 ? TRACEE_OK
                                                                        : TRACEE_NOT_64_BIT;
}

static enum tracee_status
read_state(struct tracee *t)
{
    struct iovec area = {NULL, XSTATE_MAXIMUM_BYTES};

    if (ptrace_call(PTRACE_GETSIGMASK, t->tid, (void *)SIGNAL_MASK_BYTES, &t->mask) < 0)
        return TRACEE_GONE;
    t->pending = pending_signals(t->tid, 0) |
                 pending_signals(t->tid, PTRACE_PEEKSIGINFO_SHARED);
    if ((t->xstate = malloc(XSTATE_MAXIMUM_BYTES)) == NULL)
        return TRACEE_NO_SCRATCH;
    area.iov_base = t->xstate;
    if (ptrace_call(PTRACE_GETREGSET, t->tid, (void *)NT_X86_XSTATE, &area) < 0)
        return TRACEE_GONE;
    t->xstate_bytes = area.iov_len;
    return TRACEE_OK;
}

/* Let it go past the entry of restart_syscall, where the filter is asked, and fall asleep in it, or
 * come out of it again. In the first case the end of our thread frees it. */
static void
part_running(struct tracee *t)
{
    const struct timespec pause = {0, SLEEP_NANOSECONDS};
    long signal = 0;
    int status;

    for (unsigned syscall_stops = 0; syscall_stops < 2;) {
        if (ptrace_call(PTRACE_SYSCALL, t->tid, NULL, (void *)signal) < 0)
            return;
        pid_t got;
        for (unsigned round = 0; (got = waitpid(t->tid, &status, __WALL | WNOHANG)) == 0; round++) {
            if (syscall_stops == 1 && (thread_state(t->tid) == 'S' || round > PARTING_ROUNDS))
                return;
            nanosleep(&pause, NULL);
        }
        if (got < 0 || !WIFSTOPPED(status))
            return;
        if (is_event_stop(status) && WSTOPSIG(status) != SIGTRAP)
            break; /* stopped by job control */
        syscall_stops += is_syscall_stop(status);
        signal = is_syscall_stop(status) || status >> 16 != 0 ? 0 : WSTOPSIG(status);
    }
    ptrace_call(PTRACE_DETACH, t->tid, NULL, NULL);
}

static void
part(struct tracee *t)
{
    if (t->parts_running)
        part_running(t);
    else
        ptrace_call(PTRACE_DETACH, t->tid, NULL, NULL);
    free(t->xstate);
    free(t->scratch_before);
    t->xstate = t->scratch_before = NULL;
}

static bool
awaits_restart_syscall(const struct tracee *t)
{
    return (long)t->regs.rax == -ERESTART_RESTARTBLOCK && (long)t->regs.orig_rax >= 0;
}

static void
write_registers(const struct tracee *t)
{
    struct iovec area = {(void *)&t->regs, sizeof t->regs};
    ptrace_call(PTRACE_SETREGSET, t->tid, (void *)NT_PRSTATUS, &area);
}

/* Under a filter that may kill for restart_syscall, have the kernel repeat the call itself. A sleep
 * that was over when we came would then be slept twice: so let the suspended filter pass the restart
 * first, which ends at once if it was. Else the sleep had just begun, as the thread was running when
 * it was seized, and is longer by what that takes. */
static enum tracee_status
avoid_restart_syscall(struct tracee *t)
{
    const struct timespec settling = {0, SETTLING_NANOSECONDS};
    const unsigned long long number = t->regs.orig_rax;

    if (ptrace_call(PTRACE_CONT, t->tid, NULL, NULL) < 0)
        return TRACEE_GONE;
    nanosleep(&settling, NULL);
    ptrace_call(PTRACE_INTERRUPT, t->tid, NULL, NULL);
    enum tracee_status status = wait_for_interrupt(t);
    if (status == TRACEE_OK)
        status = read_registers(t);
    if (status == TRACEE_OK && awaits_restart_syscall(t)) {
        if (t->regs.orig_rax == SYS_restart_syscall)
            t->regs.orig_rax = number;
        t->regs.rax = (unsigned long long)-ERESTARTNOHAND; /* repeat it, or EINTR for a handler */
    }
    return status;
}

static enum tracee_status
stop(struct tracee *t, pid_t tid, bool any_state, bool suspend_seccomp, bool may_part_running)
{
    long options = PTRACE_O_TRACESYSGOOD | (suspend_seccomp ? PTRACE_O_SUSPEND_SECCOMP : 0);

    memset(t, 0, sizeof *t);
    t->tid = tid;
    char state = thread_state(tid);
    if (state == '\0')
        return TRACEE_GONE;
    if (!any_state && state != 'R')
        return TRACEE_NOT_RUNNING;
    if (ptrace_call(PTRACE_SEIZE, tid, NULL, (void *)options) < 0)
        return errno == ESRCH ? TRACEE_GONE : TRACEE_REFUSED;
    t->options = options;
    t->stopped_at_seconds = tracee_now_seconds();
    ptrace_call(PTRACE_INTERRUPT, tid, NULL, NULL);

    enum tracee_status status = wait_for_interrupt(t);
    if (status == TRACEE_OK)
        status = read_registers(t);
    if (status == TRACEE_OK && suspend_seccomp && awaits_restart_syscall(t)) {
        t->parts_running = may_part_running;
        status = may_part_running ? TRACEE_OK : avoid_restart_syscall(t);
    }
    if (status == TRACEE_OK)
        status = read_state(t);
    if (status == TRACEE_OK) {
        bool broken_off = settle_syscall(t);
        write_registers(t);
        if (broken_off && !any_state)
            status = TRACEE_IN_SYSCALL;
        else if (is_in_rseq(t))
            status = TRACEE_IN_RSEQ;
    }
    if (status != TRACEE_OK)
        part(t);
    return status;
}

enum tracee_status
tracee_stop(struct tracee *t, pid_t tid, bool any_state, bool suspend_seccomp)
{
    return stop(t, tid, any_state, suspend_seccomp, false);
}

enum tracee_status
tracee_stop_filtered(struct tracee *t, pid_t tid)
{
    return stop(t, tid, true, true, true);
}

bool
tracee_is_untraced(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    return read_status_file(tid, "status", text) == 0 || strstr(text, "TracerPid:\t0\n") != NULL;
}

double
tracee_release(struct tracee *t)
{
    part(t);
    if (t->pending_stop)
        syscall(SYS_tkill, t->tid, SIGSTOP);
    return tracee_now_seconds() - t->stopped_at_seconds;
}

static bool
copy_memory(pid_t tid, uint64_t address, void *bytes, size_t size, bool to_target)
{
    struct iovec mine = {bytes, size};
    struct iovec theirs = {(void *)(uintptr_t)address, size};
    ssize_t got = to_target ? process_vm_writev(tid, &mine, 1, &theirs, 1, 0)
                            : process_vm_readv(tid, &mine, 1, &theirs, 1, 0);
    return got == (ssize_t)size;
}

/* It was found unused while the target ran: whether it still is, or holds but our own remains. */
static bool
is_unused(const uint8_t *scratch, size_t size)
{
    static const char mark[] = FRAME_MARK;
    return memcmp(scratch, mark, sizeof mark - 1) == 0 ||
           (scratch[0] == 0 && memcmp(scratch, scratch + 1, size - 1) == 0);
}

static void
set_call(struct user_regs_struct *regs, uint64_t syscall_address, long number,
         const uint64_t arguments[6])
{
    regs->rip = syscall_address;
    regs->rax = (unsigned long)number;
    regs->orig_rax = (unsigned long)-1;
    regs->rdi = arguments[0];
    regs->rsi = arguments[1];
    regs->rdx = arguments[2];
    regs->r10 = arguments[3];
    regs->r8 = arguments[4];
    regs->r9 = arguments[5];
    regs->eflags &= ~(unsigned long)0x400; /* direction flag: what a called function expects */
}

/* Polling too, but politely: a shadow may have to share its tracer's CPU. */
static int
wait_for_shadow(pid_t pid, int *status)
{
    for (unsigned round = 0; round < SPIN_ROUNDS; round++) {
        pid_t got = waitpid(pid, status, __WALL | WNOHANG);
        if (got == pid)
            return WIFSTOPPED(*status) ? 0 : -1;
        if (got < 0 && errno != EINTR)
            return -1;
        sched_yield();
    }
    return tracee_wait(pid, status);
}

/* From the stop before `syscall` to the stop after it, by the wait that fits target or shadow. */
static enum tracee_status
run_call(pid_t tid, int (*wait)(pid_t, int *), long *result, pid_t *child, bool *pending_stop)
{
    struct user_regs_struct regs;
    struct iovec area = {&regs, sizeof regs};
    int status, syscall_stops = 0;

    while (syscall_stops < 2) {
        if (ptrace_call(PTRACE_SYSCALL, tid, NULL, NULL) < 0 || wait(tid, &status) < 0)
            return TRACEE_GONE;
        if (is_syscall_stop(status)) {
            syscall_stops++;
        } else if (status >> 16 == PTRACE_EVENT_CLONE && child != NULL) {
            unsigned long message = 0;
            ptrace_call(PTRACE_GETEVENTMSG, tid, NULL, &message);
            *child = (pid_t)message;
        } else if (WSTOPSIG(status) == SIGSTOP && status >> 16 == 0) {
            *pending_stop = true; /* the one signal that no mask holds back */
        } else if (!is_event_stop(status)) {
            return TRACEE_UNEXPECTED;
        }
    }
    if (ptrace_call(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &area) < 0)
        return TRACEE_GONE;
    *result = (long)regs.rax;
    if (*result < 0 && *result >= -4095) {
        errno = (int)-*result;
        return TRACEE_CALL_FAILED;
    }
    return TRACEE_OK;
}

/* From the stop after the call into the kernel's signal code, before any instruction of the target:
 * resumed from there, the kernel itself restarts what our interrupt broke off, or lets a signal
 * that came meanwhile end it. */
static enum tracee_status
stop_in_signal_code(struct tracee *t)
{
    int status;

    ptrace_call(PTRACE_INTERRUPT, t->tid, NULL, NULL);
    for (;;) {
        if (ptrace_call(PTRACE_CONT, t->tid, NULL, NULL) < 0 || tracee_wait(t->tid, &status) < 0)
            return TRACEE_GONE;
        if (is_event_stop(status))
            return TRACEE_OK;
        if (WSTOPSIG(status) != SIGSTOP)
            return TRACEE_UNEXPECTED;
        t->pending_stop = true;
    }
}

int
tracee_hurry(void)
{
    int before = getpriority(PRIO_PROCESS, 0); /* of this thread alone */
    setpriority(PRIO_PROCESS, 0, HURRIED_NICENESS);
    return before;
}

void
tracee_unhurry(int niceness)
{
    setpriority(PRIO_PROCESS, 0, niceness);
}

bool
tracee_settle_scratch(struct tracee *t, const struct tracee_site *site)
{
    uint8_t now[FRAME_SCRATCH_BYTES];
    uint64_t below = (t->regs.rsp - RED_ZONE_BYTES - sizeof now) & ~(uint64_t)63;

    t->scratch_address = site->scratch_address;
    if (site->scratch_address != 0 &&
        copy_memory(t->tid, site->scratch_address, now, sizeof now, false) &&
        is_unused(now, sizeof now))
        return true;
    t->scratch_address = below;
    return t->regs.rsp > site->stack_start && t->regs.rsp <= site->stack_end &&
           below >= site->stack_start && below < t->regs.rsp;
}

enum tracee_status
tracee_inject(struct tracee *t, const struct tracee_site *site, long number,
              const uint64_t arguments[6], long *result, pid_t *child)
{
    struct user_regs_struct regs = t->healed;
    struct iovec area = {&regs, sizeof regs};
    const uint64_t all_signals = ~(uint64_t)0;
    const long trace_clone = child != NULL ? PTRACE_O_TRACECLONE : 0;
    uint8_t frame[FRAME_SCRATCH_BYTES];

    if (t->scratch_before == NULL && (t->scratch_before = malloc(FRAME_SCRATCH_BYTES)) == NULL)
        return TRACEE_NO_SCRATCH;
    size_t size = frame_build(frame, t->scratch_address, &t->healed, t->xstate, t->xstate_bytes,
                              t->mask, site->syscall_address, site->sigreturn_address);
    if (size == 0 || !copy_memory(t->tid, t->scratch_address, t->scratch_before, size, false) ||
        !copy_memory(t->tid, t->scratch_address, frame, size, true))
        return TRACEE_NO_SCRATCH;
    t->scratch_bytes = size;

    set_call(&regs, site->syscall_address, number, arguments);
    regs.rsp = t->scratch_address + FRAME_PARENT_OFFSET;
    ptrace_call(PTRACE_SETOPTIONS, t->tid, NULL, (void *)(t->options | trace_clone));
    /* Registers before the mask, here and below: the frame behind them restores both. */
    ptrace_call(PTRACE_SETREGSET, t->tid, (void *)NT_PRSTATUS, &area);
    ptrace_call(PTRACE_SETSIGMASK, t->tid, (void *)SIGNAL_MASK_BYTES, (void *)&all_signals);
    enum tracee_status status = run_call(t->tid, tracee_wait, result, child, &t->pending_stop);
    int error = errno;

    ptrace_call(PTRACE_SETOPTIONS, t->tid, NULL, (void *)t->options);
    if (status == TRACEE_OK || status == TRACEE_CALL_FAILED) {
        enum tracee_status parked = stop_in_signal_code(t);
        status = parked == TRACEE_OK ? status : parked;
    }
    ptrace_call(PTRACE_SETSIGMASK, t->tid, (void *)SIGNAL_MASK_BYTES, &t->mask);
    write_registers(t);
    copy_memory(t->tid, t->scratch_address, t->scratch_before, size, true);
    errno = error;
    return status;
}

static enum tracee_status
call_in_shadow(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
               long number, const uint64_t arguments[6], long *result, pid_t *child)
{
    struct user_regs_struct call = *regs;
    struct iovec area = {&call, sizeof call};
    bool pending_stop = false;

    set_call(&call, syscall_address, number, arguments);
    if (ptrace_call(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area) < 0)
        return TRACEE_GONE;
    enum tracee_status status = run_call(pid, wait_for_shadow, result, child, &pending_stop);
    int error = errno;
    area = (struct iovec){(void *)regs, sizeof *regs};
    ptrace_call(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area);
    errno = error;
    return status;
}

enum tracee_status
tracee_inject_shadow(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
                     long number, const uint64_t arguments[6], long *result)
{
    return call_in_shadow(pid, regs, syscall_address, number, arguments, result, NULL);
}

enum tracee_status
tracee_clone_shadow(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
                    const uint64_t arguments[6], long options, long *ns_child, pid_t *child)
{
    ptrace_call(PTRACE_SETOPTIONS, pid, NULL, (void *)(options | PTRACE_O_TRACECLONE));
    enum tracee_status status =
        call_in_shadow(pid, regs, syscall_address, SYS_clone, arguments, ns_child, child);
    int error = errno;
    ptrace_call(PTRACE_SETOPTIONS, pid, NULL, (void *)options);
    errno = error;
    return status;
}

enum tracee_status
tracee_leave_rseq(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address)
{
    struct rseq_registration rseq;
    uint8_t before[RSEQ_MAXIMUM_BYTES];
    long result;

    if (!read_rseq(pid, &rseq) || rseq.size > sizeof before)
        return TRACEE_OK;
    const uint64_t arguments[6] = {rseq.area, rseq.size, RSEQ_UNREGISTER, rseq.signature};
    if (!copy_memory(pid, rseq.area, before, rseq.size, false))
        return TRACEE_NO_SCRATCH;
    enum tracee_status status =
        tracee_inject_shadow(pid, regs, syscall_address, SYS_rseq, arguments, &result);
    copy_memory(pid, rseq.area, before, rseq.size, true);
    return status;
}
