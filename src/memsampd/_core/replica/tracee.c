#include "core.h"
#include "tracee.h"
#include "thread_status.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define ALARMS_BEFORE_LOOKING 4

long
ptrace_call(long request, pid_t tid, void *address, void *data)
{
    return ptrace((enum __ptrace_request)request, tid, address, data);
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

/* A main thread that has ended before others: nobody is told until they have. */
static bool
is_dead_leader(pid_t tid)
{
    siginfo_t info = {.si_pid = 0};

    return thread_state(tid) == 'Z' &&
           waitid(P_PID, (id_t)tid, &info, WEXITED | __WALL | WNOWAIT | WNOHANG) == 0 && info.si_pid == 0;
}

void
tracee_collect(pid_t tid)
{
    int status;

    /* The end of that is for the thread of ours that started it: subprocess, or process_destroy. */
    if (!thread_is_own_child(tid))
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
            tracee_collect(tid);
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
    if (thread_is_untraced(tid)) /* an execve of a sibling took it, and gave its number away */
        return -1;
    return is_dead_leader(tid) ? -1 : 1;
}

int
tracee_wait(pid_t tid, int *status)
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

bool
read_rseq(pid_t tid, struct rseq_registration *rseq)
{
    return ptrace_call(PTRACE_GET_RSEQ_CONFIGURATION, tid, (void *)sizeof *rseq, rseq) >= 0 &&
           rseq->area != 0;
}
