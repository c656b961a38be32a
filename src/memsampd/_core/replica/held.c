#include "core.h"
#include "held.h"
#include "remote.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
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
#define USER_CODE_64 0x33
#define STATUS_FILE_BYTES 4096
#define RSEQ_SECTION_OFFSET 8
#define ALARM_REPEATS_NANOSECONDS 100000L /* then twice as long, and so on */
#define ALARM_LONGEST_NANOSECONDS 10000000L
#define ALARMS_BEFORE_LOOKING 4
/* How long a sleep that had ended when we broke it off may take to notice. */
#define SETTLING_NANOSECONDS 100000L
/* A thread that was killed while it was held is collected within some of these. */
#define COLLECTING_NANOSECONDS 50000L
#define COLLECTING_ROUNDS 200
/* Signals that nobody notices unless there is a handler: SIGCHLD, SIGCONT, SIGURG, SIGWINCH. */
#define IGNORED_BY_DEFAULT (1ull << 16 | 1ull << 17 | 1ull << 22 | 1ull << 27)
#define PAGE_SHIFT 12
#define PAGE_PRESENT ((uint64_t)1 << 63)

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

/* glibc declares the request as an enum of its own making; the kernel takes a long. */
static long
ptrace_call(long request, pid_t tid, void *address, void *data)
{
    return ptrace((enum __ptrace_request)request, tid, address, data);
}

const char *
held_status_name(enum held_status status)
{
    static const char *const names[] = {
        "ok",          "gone",    "refused",    "not-running", "in-syscall",
        "job-stopped", "in-rseq", "not-64-bit", "not-reached",
        "unexpected",
    };
    return names[status];
}

double
now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double
thread_cpu_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* ---- Waits that end ---- */

struct alarm {
    timer_t timer;
    volatile long pause_nanoseconds; /* until it goes off again; 0: it is not to */
};

static _Thread_local struct alarm *own_alarm;

int
alarm_signal(void)
{
    return SIGRTMAX - 3;
}

/* It goes off again, as one that comes just before a wait does not end that. On a busy machine waits may be
 * long: an alarm costs 10 to 30 us of CPU time. */
static void
repeat(int signal)
{
    struct alarm *a = own_alarm;
    const int error = errno;

    (void)signal;
    if (a != NULL && a->pause_nanoseconds != 0) {
        const struct itimerspec at = {.it_value.tv_nsec = a->pause_nanoseconds};
        if (a->pause_nanoseconds < ALARM_LONGEST_NANOSECONDS)
            a->pause_nanoseconds *= 2;
        timer_settime(a->timer, 0, &at, NULL);
    }
    errno = error;
}

int
alarm_install(void)
{
    struct sigaction action = {.sa_handler = repeat}; /* no SA_RESTART: waits end with EINTR */
    return sigaction(alarm_signal(), &action, NULL);
}

void
silence_stops(void)
{
    struct sigaction action;

    if (sigaction(SIGCHLD, NULL, &action) == 0 && action.sa_handler == SIG_DFL &&
        !(action.sa_flags & SA_NOCLDSTOP)) {
        action.sa_flags |= SA_NOCLDSTOP;
        sigaction(SIGCHLD, &action, NULL);
    }
}

struct alarm *
alarm_create(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = alarm_signal()};
    struct alarm *a = malloc(sizeof *a);
    sigset_t ours;

    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    if (a == NULL || timer_create(CLOCK_MONOTONIC, &event, &a->timer) < 0) {
        free(a);
        return NULL;
    }
    a->pause_nanoseconds = 0;
    own_alarm = a;
    sigemptyset(&ours);
    sigaddset(&ours, alarm_signal());
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
    return a;
}

void
alarm_set(struct alarm *a, double seconds)
{
    struct itimerspec at = {{0, 0}, {0, 0}};

    a->pause_nanoseconds = seconds > 0 ? ALARM_REPEATS_NANOSECONDS : 0;
    if (seconds > 0) {
        at.it_value.tv_sec = (time_t)seconds;
        at.it_value.tv_nsec = (long)((seconds - (double)at.it_value.tv_sec) * 1e9);
    }
    timer_settime(a->timer, TIMER_ABSTIME, &at, NULL);
}

void
alarm_free(struct alarm *a)
{
    if (a == NULL)
        return;
    own_alarm = NULL;
    timer_delete(a->timer);
    free(a);
}

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

static uint64_t
status_number(const char *text, const char *field)
{
    const char *found = strstr(text, field);
    return found == NULL ? 0 : strtoull(found + strlen(field), NULL, 10);
}

/* Its end is for the thread of ours to collect that started it: subprocess, or process_destroy. */
static bool
is_own_child(pid_t tid)
{
    char text[STATUS_FILE_BYTES];

    return read_status_file(tid, "status", text) != 0 &&
           status_number(text, "\nTgid:\t") == (uint64_t)tid &&
           status_number(text, "\nPPid:\t") == (uint64_t)getpid();
}

static void
collect(pid_t tid)
{
    int status;

    if (!is_own_child(tid))
        waitpid(tid, &status, __WALL | WNOHANG);
}

int
held_wait(pid_t tid, int *status)
{
    static _Thread_local unsigned alarms;
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)tid, &info, WEXITED | WSTOPPED | __WALL | WNOWAIT) == 0) {
        alarms = 0;
        if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
            collect(tid);
            return -1;
        }
        info.si_pid = 0;
        if (waitid(P_PID, (id_t)tid, &info, WSTOPPED | __WALL | WNOHANG) == 0 && info.si_pid == tid) {
            *status = info.si_status << 8 | 0x7f;
            return 0;
        }
        return 1; /* killed, or another thread of ours was told */
    }
    if (errno != EINTR)
        return -1;
    if (++alarms % ALARMS_BEFORE_LOOKING != 0)
        return 1;
    if (is_stopped_already(tid, status))
        return 0;
    return thread_is_untraced(tid) ? -1 : 1; /* an execve of a sibling took it, and gave its number away */
}

/* Wait to the end. */
static int
wait_on(pid_t tid, int *status)
{
    int result;

    do
        result = held_wait(tid, status);
    while (result == 1);
    return result;
}

bool
is_event_stop(int status)
{
    return status >> 16 == PTRACE_EVENT_STOP;
}

bool
is_syscall_stop(int status)
{
    return WSTOPSIG(status) == (SIGTRAP | 0x80) && status >> 16 == 0;
}

/* ---- What /proc says ---- */

char
thread_state(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    const char *end;

    if (read_status_file(tid, "stat", text) == 0 || (end = strrchr(text, ')')) == NULL)
        return '\0';
    return end[1] == ' ' ? end[2] : '\0';
}

/* Field 39 of stat. */
int
thread_cpu(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    const char *at;

    if (read_status_file(tid, "stat", text) == 0 || (at = strrchr(text, ')')) == NULL)
        return -1;
    for (int field = 2; field < 39 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? atoi(at + 1) : -1;
}

static uint64_t
status_mask(const char *text, const char *field)
{
    const char *found = strstr(text, field);
    return found == NULL ? 0 : strtoull(found + strlen(field), NULL, 16);
}

/* Whether a signal waits that the thread would notice. One that is ignored is not even kept, but for a
 * traced thread: that it wakes up, which it would not do by itself. */
static bool
has_deliverable_signal(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    if (read_status_file(tid, "status", text) == 0)
        return true;
    uint64_t pending = status_mask(text, "\nSigPnd:") | status_mask(text, "\nShdPnd:");
    uint64_t ignored = status_mask(text, "\nSigIgn:") |
                       (IGNORED_BY_DEFAULT & ~status_mask(text, "\nSigCgt:"));
    return (pending & ~status_mask(text, "\nSigBlk:") & ~ignored) != 0;
}

/* Asked when it matters: programs take a filter long after their start. */
static bool
is_filtered(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    return read_status_file(tid, "status", text) != 0 && status_number(text, "\nSeccomp:\t") != 0;
}

/* Whether a thread is one of a process, and not of another that got its number. */
static bool
is_thread_of(pid_t pid, pid_t tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", (int)pid, (int)tid);
    return access(path, F_OK) == 0;
}

bool
thread_is_untraced(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    return read_status_file(tid, "status", text) == 0 || strstr(text, "TracerPid:\t0\n") != NULL;
}

/* ---- Registers ---- */

bool
read_registers(pid_t pid, struct user_regs_struct *regs)
{
    struct iovec area = {regs, sizeof *regs};
    return ptrace_call(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0 &&
           area.iov_len == sizeof *regs;
}

bool
write_registers(pid_t pid, const struct user_regs_struct *regs)
{
    struct iovec area = {(void *)regs, sizeof *regs};
    return ptrace_call(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0;
}

static enum held_status
read_state(struct held *h)
{
    struct iovec area = {h->xstate, sizeof h->xstate};

    if (!read_registers(h->tid, &h->regs) ||
        ptrace_call(PTRACE_GETREGSET, h->tid, (void *)NT_X86_XSTATE, &area) < 0)
        return errno == ESRCH ? HELD_GONE : HELD_NOT_64_BIT;
    h->xstate_bytes = area.iov_len;
    return h->regs.cs == USER_CODE_64 ? HELD_OK : HELD_NOT_64_BIT;
}

/* As the kernel's struct ptrace_rseq_configuration. */
struct rseq_registration {
    uint64_t area;
    uint32_t size, signature, flags, pad;
};

/* Whether it can be read without a change to the target, or a wait for whoever supplies its pages. */
static bool
is_present(pid_t tid, uint64_t address)
{
    char path[64];
    uint64_t entry = 0;

    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)tid);
    int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return false;
    ssize_t got = pread(pagemap, &entry, sizeof entry, (off_t)((address >> PAGE_SHIFT) * 8));
    close(pagemap);
    return got == (ssize_t)sizeof entry && (entry & PAGE_PRESENT) != 0;
}

static bool
is_in_rseq(struct held *h)
{
    struct rseq_registration rseq = {0};
    struct {
        uint32_t version, flags;
        uint64_t start_ip, post_commit_offset, abort_ip;
    } section;
    uint64_t section_address = 0;

    h->rseq_address = 0;
    if (ptrace_call(PTRACE_GET_RSEQ_CONFIGURATION, h->tid, (void *)sizeof rseq, &rseq) < 0 ||
        rseq.area == 0)
        return false;
    h->rseq_address = rseq.area;
    if (!is_present(h->tid, rseq.area) ||
        !remote_copy(h->tid, rseq.area + RSEQ_SECTION_OFFSET, &section_address,
                   sizeof section_address) ||
        section_address == 0)
        return false;
    if (!is_present(h->tid, section_address) ||
        !is_present(h->tid, section_address + sizeof section - 1))
        return true; /* who knows */
    return remote_copy(h->tid, section_address, &section, sizeof section) &&
           h->regs.rip - section.start_ip < section.post_commit_offset;
}

/* ---- System calls that our interrupt broke off ---- */

/* The program sees a short count, which it may meet at any time, but which it met because of us. */
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
    if (wait_on(h->tid, &status) < 0) {
        h->is_traced = false;
        return false;
    }
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

/* Whether a system call was broken off. The kernel restarts most by itself when the thread is let go;
 * epoll_wait and its like, which it ends with EINTR, are set up to be made again. */
static bool
settle_syscall(struct held *h)
{
    struct user_regs_struct again = h->regs;

    h->cut_short = is_short_transfer(&h->regs);
    if ((long)h->regs.orig_rax < 0)
        return false;
    switch (-(long)h->regs.rax) {
    case ERESTARTSYS:
    case ERESTARTNOINTR:
    case ERESTARTNOHAND:
        return true;
    case ERESTART_RESTARTBLOCK:
        if (is_filtered(h->tid))
            restart_under_filter(h);
        return true;
    case EINTR:
        if (closes_descriptor(h->regs.orig_rax) || has_deliverable_signal(h->tid))
            return true; /* a signal did it, not we */
        again.rip -= 2;
        again.rax = again.orig_rax;
        write_registers(h->tid, &again);
        return true;
    default:
        return false;
    }
}

bool
held_settle_call(struct held *h)
{
    return settle_syscall(h);
}

static enum held_status
wait_for_interrupt(struct held *h)
{
    int status;

    for (;;) {
        if (wait_on(h->tid, &status) < 0) {
            h->is_traced = false;
            return HELD_GONE;
        }
        if (is_event_stop(status))
            return WSTOPSIG(status) == SIGTRAP ? HELD_OK : HELD_JOB_STOPPED;
        if (status >> 16 != 0)
            return HELD_UNEXPECTED;
        /* A signal of its own came first: hand it on, the interrupt is still to come. */
        if (ptrace_call(PTRACE_CONT, h->tid, NULL, (void *)(long)WSTOPSIG(status)) < 0)
            return HELD_GONE;
    }
}

/* ---- Holding ---- */

static void
begin_hold(struct held *h)
{
    h->since_seconds = now_seconds();
    h->holds++;
}

static void
end_hold(struct held *h)
{
    if (h->since_seconds == 0)
        return;
    double seconds = now_seconds() - h->since_seconds;
    h->held_seconds += seconds;
    h->longest_seconds = seconds > h->longest_seconds ? seconds : h->longest_seconds;
    h->since_seconds = 0;
}

enum held_status
held_stop(struct held *h, pid_t pid, pid_t tid)
{
    memset(h, 0, offsetof(struct held, xstate));
    memset(&h->xstate_bytes, 0, sizeof *h - offsetof(struct held, xstate_bytes));
    h->tid = tid;
    char state = thread_state(tid);
    if (state != 'R')
        return state == '\0' ? HELD_GONE : HELD_NOT_RUNNING;
    if (ptrace_call(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0) {
        h->error = errno;
        return errno == ESRCH ? HELD_GONE : HELD_REFUSED;
    }
    h->is_traced = true;
    /* Once it is ours its number stays its own; until then it may have gone to another thread. */
    const bool is_the_one = is_thread_of(pid, tid);
    ptrace_call(PTRACE_INTERRUPT, tid, NULL, NULL);
    enum held_status status = wait_for_interrupt(h); /* it may have to wait for a CPU itself */
    begin_hold(h);
    if (status == HELD_OK && !is_the_one)
        status = HELD_GONE;
    if (status == HELD_OK)
        status = read_state(h);
    if (status == HELD_OK) {
        if (settle_syscall(h))
            status = HELD_IN_SYSCALL;
        else if (is_in_rseq(h))
            status = HELD_IN_RSEQ;
    }
    if (status != HELD_OK)
        held_release(h);
    return status;
}

/* It was killed while it was held: an execve of a sibling waits until it is collected, or its parent. */
static void
collect_killed(pid_t tid)
{
    const struct timespec pause = {0, COLLECTING_NANOSECONDS};

    for (unsigned round = 0; round < COLLECTING_ROUNDS; round++) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_PID, (id_t)tid, &info, WEXITED | __WALL | WNOWAIT | WNOHANG) < 0)
            return;
        if (info.si_pid == tid) {
            collect(tid);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

void
held_release(struct held *h)
{
    if (h->is_traced && !h->is_asleep &&
        ptrace_call(PTRACE_DETACH, h->tid, NULL, (void *)(long)h->signal) < 0)
        collect_killed(h->tid);
    h->is_traced = h->is_asleep; /* a sleeper is let go by the end of our thread */
    end_hold(h);
}

enum held_call
held_to_call(struct held *h, struct alarm *alarm, double until_seconds)
{
    int status, result;

    if (ptrace_call(PTRACE_SYSCALL, h->tid, NULL, NULL) < 0)
        return CALL_GONE;
    end_hold(h);
    alarm_set(alarm, until_seconds);
    do
        result = held_wait(h->tid, &status);
    while (result == 1 && now_seconds() < until_seconds);
    if (result == 1)
        return CALL_LATE;
    if (result < 0) {
        h->is_traced = false;
        return CALL_GONE;
    }
    begin_hold(h);
    if (!is_syscall_stop(status)) {
        h->signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
        return CALL_SIGNAL;
    }
    return read_registers(h->tid, &h->regs) ? CALL_REACHED : CALL_GONE;
}

void
held_enter_call(struct held *h)
{
    h->is_asleep = ptrace_call(PTRACE_CONT, h->tid, NULL, NULL) == 0;
    end_hold(h);
}

bool
held_interrupt(struct held *h)
{
    int status, result;

    ptrace_call(PTRACE_INTERRUPT, h->tid, NULL, NULL);
    result = wait_on(h->tid, &status);
    /* It came to a call first, which our interrupt would now break off behind our back. */
    if (result == 0 && is_syscall_stop(status) &&
        ptrace_call(PTRACE_CONT, h->tid, NULL, NULL) == 0)
        result = wait_on(h->tid, &status);
    if (result < 0) {
        h->is_traced = false;
        return false;
    }
    begin_hold(h);
    if (!is_syscall_stop(status) && status >> 16 == 0)
        h->signal = WSTOPSIG(status);
    /* Where a signal came first, it is that which broke a call off. */
    if (read_registers(h->tid, &h->regs) && is_event_stop(status))
        settle_syscall(h);
    return true;
}
