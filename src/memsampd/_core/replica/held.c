#include "core.h"
#include "held.h"
#include "remote.h"

#include <elf.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define USER_CODE_64 0x33
#define RSEQ_SECTION_OFFSET 8
/* A thread that was killed while it was held is collected within some of these. */
#define COLLECTING_NANOSECONDS 50000L
#define COLLECTING_ROUNDS 200
/* To be woken takes as long as many short calls: it is looked for so long whether the thread stands. Where
 * that was in vain some times, it may need the CPU that we look from. */
#define LOOKING_SECONDS 0.00005
#define VAIN_LOOKS 3
/* Of a wait, where it cannot be known for how long the thread ran. */
#define LONGEST_DELAY_SECONDS 0.0001

const char *
held_status_name(enum held_status status)
{
    static const char *const names[] = {
        "ok",          "gone",    "refused",    "not-running", "in-syscall",
        "job-stopped", "in-rseq", "not-64-bit", "not-reached", "unexpected",
    };
    return names[status];
}

/* ---- What it is in ---- */

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
    if (!read_rseq(h->tid, &rseq))
        return false;
    h->rseq_address = rseq.area;
    if (!remote_copy_present(h->tid, rseq.area + RSEQ_SECTION_OFFSET, &section_address,
                             sizeof section_address) ||
        section_address == 0)
        return false;
    if (!remote_copy_present(h->tid, section_address, &section, sizeof section))
        return true; /* who knows */
    return h->regs.rip - section.start_ip < section.post_commit_offset;
}

/* ---- Holding ---- */

bool
held_await_stop(struct held *h, int *status)
{
    const double give_up = now_seconds() + h->patience_seconds;
    int result;

    while ((result = held_wait(h->tid, status)) == 1)
        if (now_seconds() >= give_up || *h->is_cancelled) {
            h->is_asleep = true;
            return false;
        }
    h->is_traced = result == 0;
    return h->is_traced;
}

static enum held_status
wait_for_interrupt(struct held *h)
{
    int status;

    for (;;) {
        if (!held_await_stop(h, &status))
            return h->is_asleep ? HELD_IN_SYSCALL : HELD_GONE;
        if (is_event_stop(status))
            return WSTOPSIG(status) == SIGTRAP ? HELD_OK : HELD_JOB_STOPPED;
        if (status >> 16 != 0)
            return HELD_UNEXPECTED;
        /* A signal of its own came first: hand it on. Where it was already on its way out of the kernel, its
         * stop has used up the interrupt. */
        ptrace_call(PTRACE_INTERRUPT, h->tid, NULL, NULL);
        if (ptrace_call(PTRACE_CONT, h->tid, NULL, (void *)(long)WSTOPSIG(status)) < 0)
            return HELD_GONE;
    }
}

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
held_stop(struct held *h, const struct remote *target, pid_t tid, double patience_seconds,
          const volatile int *is_cancelled)
{
    memset(h, 0, offsetof(struct held, xstate));
    memset(&h->xstate_bytes, 0, sizeof *h - offsetof(struct held, xstate_bytes));
    h->pid = target->pid;
    h->tid = tid;
    h->patience_seconds = patience_seconds;
    h->is_cancelled = is_cancelled;
    char state = thread_state(tid);
    if (state != 'R')
        return state == '\0' ? HELD_GONE : HELD_NOT_RUNNING;
    if (ptrace_call(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0) {
        h->error = errno;
        return errno == ESRCH ? HELD_GONE : HELD_REFUSED;
    }
    h->is_traced = true;
    /* Once it is ours its number stays its own; until then it may have gone to another thread. That is not
     * stopped, as it would have to be for a detach: a wait of its own would be broken off. */
    if (!thread_is_of(target->pid, tid) || !remote_is_there(target)) {
        h->is_asleep = true;
        return HELD_GONE;
    }
    ptrace_call(PTRACE_INTERRUPT, tid, NULL, NULL);
    enum held_status status = wait_for_interrupt(h); /* it may have to wait for a CPU itself */
    if (h->is_asleep)
        return status;
    begin_hold(h);
    if (status == HELD_OK)
        status = read_state(h);
    if (status == HELD_OK) {
        if (held_settle_call(h))
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
            tracee_collect(tid);
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

void
held_begin_calls(struct held *h)
{
    h->run_times_fd = run_times_open(h->tid);
    if (!run_times_read(h->run_times_fd, &h->run_times))
        held_end_calls(h);
}

void
held_end_calls(struct held *h)
{
    if (h->run_times_fd >= 0)
        close(h->run_times_fd);
    h->run_times_fd = -1;
}

/* Whether it stands again after a short time, or is gone. */
static bool
stands_soon(struct held *h)
{
    const double give_up = now_seconds() + LOOKING_SECONDS;

    if (h->vain_looks >= VAIN_LOOKS)
        return false;
    do {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_PID, (id_t)h->tid, &info, WEXITED | WSTOPPED | __WALL | WNOWAIT | WNOHANG) < 0 ||
            info.si_pid != 0) {
            h->vain_looks = 0;
            return true;
        }
    } while (now_seconds() < give_up);
    h->vain_looks++;
    return false;
}

/* Add what it was kept from its work since it was let go: the time in which it did not run. Where it slept,
 * or others had its CPU, that is not ours: then it is as much as at other times. */
static void
add_delay(struct held *h, double seconds)
{
    struct run_times now;
    double delay = fmin(seconds, LONGEST_DELAY_SECONDS);

    if (run_times_read(h->run_times_fd, &now)) {
        if (now.starts - h->run_times.starts == 1) {
            delay = fmax(seconds - (now.run_seconds - h->run_times.run_seconds), 0.0);
            h->delay_seconds += delay;
            h->delays++;
        } else if (h->delays > 0) {
            delay = h->delay_seconds / h->delays;
        }
        h->run_times = now;
    }
    h->held_seconds += delay;
}

enum held_call
held_to_call(struct held *h, struct alarm *alarm, double until_seconds)
{
    int status, result;

    if (ptrace_call(PTRACE_SYSCALL, h->tid, NULL, NULL) < 0)
        return CALL_GONE;
    end_hold(h);
    const double let_go = now_seconds();
    if (!stands_soon(h))
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
    add_delay(h, h->since_seconds - let_go);
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
    int status;

    ptrace_call(PTRACE_INTERRUPT, h->tid, NULL, NULL);
    bool stands = held_await_stop(h, &status);
    /* It came to a call first, which our interrupt would now break off behind our back, or whose stop has
     * used it up. */
    if (stands && is_syscall_stop(status)) {
        ptrace_call(PTRACE_INTERRUPT, h->tid, NULL, NULL);
        if (ptrace_call(PTRACE_CONT, h->tid, NULL, NULL) == 0)
            stands = held_await_stop(h, &status);
    }
    if (!stands)
        return false;
    begin_hold(h);
    if (!is_syscall_stop(status) && status >> 16 == 0)
        h->signal = WSTOPSIG(status);
    /* Where a signal came first, it is that which broke a call off. */
    if (read_registers(h->tid, &h->regs) && is_event_stop(status))
        held_settle_call(h);
    return true;
}
