#include "core.h"
#include "caller.h"

#include <errno.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

long
caller_call(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3,
            uint64_t a4, uint64_t a5)
{
    struct user_regs_struct regs = c->regs;
    int status, waited;

    if (c->error != 0)
        return -1;
    regs.rip = c->p->area_address + AREA_CALL;
    regs.rax = (unsigned long)number;
    regs.orig_rax = (unsigned long)-1;
    regs.rdi = a0, regs.rsi = a1, regs.rdx = a2, regs.r10 = a3, regs.r8 = a4, regs.r9 = a5;
    if (!write_registers(c->p->pid, &regs)) {
        c->error = ESRCH;
        return -1;
    }
    do { /* an interrupt may be due still */
        if (ptrace_call(PTRACE_CONT, c->p->pid, NULL, NULL) < 0) {
            c->error = ESRCH;
            return -1;
        }
        waited = tracee_wait(c->p->pid, &status);
    } while (waited == 0 && is_event_stop(status));
    if (waited < 0 || WSTOPSIG(status) != SIGTRAP || !read_registers(c->p->pid, &regs) ||
        regs.rip != c->p->area_address + AREA_CALL + 3) {
        c->error = ESRCH;
        return -1;
    }
    if ((long)regs.rax < 0 && (long)regs.rax >= -4095) {
        c->error = (int)-(long)regs.rax;
        return -1;
    }
    return (long)regs.rax;
}

bool
caller_try(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3)
{
    if (c->error != 0)
        return false;
    caller_call(c, number, a0, a1, a2, a3, 0, 0);
    bool good = c->error == 0;
    c->error = c->error == ESRCH ? ESRCH : 0;
    return good;
}
