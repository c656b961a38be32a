#include "core.h"
#include "process.h"
#include "birth.h"
#include "sandbox.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_SECONDS 60.0 /* on a machine that is busy with other things */
#define START_LOOKS 1000   /* at least: we, or the whole machine, may have been stopped for long */
#define END_SECONDS 60.0   /* the same */

static void
say(struct process *p, const char *what)
{
    snprintf(p->trouble, sizeof p->trouble, "%s", what);
}

/* Whether the kernel can show a page that is kept, read-only if it can do so with others. */
static void
try_keeping(struct process *p)
{
    static const uint8_t zeros[PAGE_BYTES];
    const uint64_t page = p->part[0].start;

    if (!p->can_keep)
        return;
    p->can_keep = frames_write(&p->frames, page, zeros, PAGE_BYTES) && process_show_again(p, page, false);
    process_drop_all(p);
}

static bool
wait_until_ready(struct process *p, struct hello *hello)
{
    const struct timespec pause = {0, 20000};
    double give_up = now_seconds() + START_SECONDS;
    int status, looks = 0;

    while (!hello->is_ready && (now_seconds() < give_up || looks++ < START_LOOKS)) {
        if (waitpid(p->pid, &status, __WALL | WNOHANG) == p->pid) {
            p->pid = 0;
            errno = ECHILD;
            return false;
        }
        nanosleep(&pause, NULL);
    }
    if (!hello->is_ready || hello->error != 0) {
        errno = hello->error != 0 ? hello->error : ETIME;
        return false;
    }
    return true;
}

/* An address space limit of ours would hold for it. */
static void
lift_address_limit(pid_t pid)
{
    struct rlimit limit;

    if (prlimit(pid, RLIMIT_AS, NULL, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
        if (prlimit(pid, RLIMIT_AS, &limit, NULL) < 0 &&
            prlimit(pid, RLIMIT_AS, NULL, &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            prlimit(pid, RLIMIT_AS, &limit, NULL);
        }
    }
}

/* Make a process that has said hello a replica; false with errno and `trouble` set. */
static bool
furnish(struct process *p, const struct area *area, bool may_execute)
{
    struct caller c = {.p = p, .error = 0};

    lift_address_limit(p->pid);
    if (!process_seize(p) || !read_registers(p->pid, &c.regs))
        c.error = ESRCH;
    sandbox_map_memory(&c, may_execute);
    say(p, "an address space");
    if (c.error == 0) {
        try_keeping(p);
        sandbox_confine(&c, area);
        say(p, "its sandbox");
    }
    errno = c.error;
    return c.error == 0;
}

/* The same of one that was just made, when it is ready. */
static bool
grow_up(struct process *p, const struct area *area, bool may_execute, bool may_keep)
{
    struct hello *hello = hello_of(area);

    if (!wait_until_ready(p, hello)) {
        say(p, "a userfaultfd");
        return false;
    }
    p->uffd = hello->uffd;
    p->can_protect = hello->features & UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    p->can_keep = may_keep && hello->features & UFFD_FEATURE_MINOR_SHMEM;
    return furnish(p, area, may_execute);
}

int
process_create(struct process *p, const struct area *area, uint64_t area_address, bool may_execute,
               bool may_keep)
{
    pid_t parent = getpid();

    memset(p, 0, sizeof *p);
    p->uffd = -1;
    p->area_address = area_address;
    p->era = 1;
    memset((void *)hello_of(area), 0, sizeof(struct hello));
    if (frames_create(&p->frames, HIGHEST_ADDRESS, may_execute) < 0) {
        say(p, "a file for its memory");
        return -1;
    }
    /* No signal at its end; descriptors shared until it has opened what we need. */
    p->pid = (pid_t)syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
    if (p->pid == 0)
        become_replica(area, area_address, parent);
    if (p->pid < 0) {
        p->pid = 0;
        say(p, "a process");
        process_destroy(p);
        return -1;
    }
    if (!grow_up(p, area, may_execute, may_keep)) {
        int error = errno; /* its end may change it */
        process_destroy(p);
        errno = error;
        return -1;
    }
    process_park(p);
    p->trouble[0] = '\0';
    return 0;
}

/* ---- Its end ---- */

static bool
is_collected(pid_t pid)
{
    int status;
    pid_t got = waitpid(pid, &status, __WALL | WNOHANG);

    if (got == pid)
        return WIFEXITED(status) || WIFSIGNALED(status);
    return got < 0 && errno == ECHILD;
}

static bool
wait_until(bool (*is_so)(pid_t), pid_t pid, double seconds)
{
    const struct timespec pause = {0, 50000};
    const double give_up = now_seconds() + seconds;

    while (!is_so(pid)) {
        if (now_seconds() >= give_up)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

void
process_destroy(struct process *p)
{
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        wait_until(is_collected, p->pid, END_SECONDS); /* if not, it ends with the thread that made it */
    }
    if (p->uffd >= 0)
        close(p->uffd);
    frames_close(&p->frames);
    p->pid = 0;
    p->uffd = -1;
    p->is_ours = false;
}

bool
process_is_dead(const struct process *p)
{
    const char state = p->pid > 0 ? thread_state(p->pid) : '\0';
    return state == '\0' || state == 'Z' || state == 'X';
}

bool
process_seize(struct process *p)
{
    int status;

    if (p->pid <= 0 ||
        ptrace(PTRACE_SEIZE, p->pid, NULL, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD)) < 0)
        return false;
    ptrace(PTRACE_INTERRUPT, p->pid, NULL, NULL);
    for (;;) {
        if (tracee_wait(p->pid, &status) < 0)
            return false;
        if (is_event_stop(status))
            return p->is_ours = true;
        ptrace(PTRACE_CONT, p->pid, NULL, NULL); /* a signal came first */
    }
}

/* A signal that it raised itself, and that was not reported before the stop, would kill it when it is
 * let go: have it reported. */
static void
take_pending_signals(pid_t pid)
{
    struct __ptrace_peeksiginfo_args first = {.off = 0, .flags = 0, .nr = 1};
    siginfo_t info;
    int status;

    while (ptrace(PTRACE_PEEKSIGINFO, pid, &first, &info) == 1) {
        if (ptrace(PTRACE_CONT, pid, NULL, NULL) < 0)
            return;
        if (tracee_wait(pid, &status) < 0)
            return;
    }
}

/* Have it lose sight of all pages. If it cannot, they are not kept. */
static void
hide_all(struct process *p, const struct user_regs_struct *regs)
{
    struct caller c = {.p = p, .regs = *regs, .error = 0};

    for (size_t i = 0; i < p->parts; i++)
        caller_call(&c, SYS_madvise, p->part[i].start, p->part[i].end - p->part[i].start, MADV_DONTNEED, 0, 0, 0);
    p->has_seen = c.error != 0;
}

void
process_park(struct process *p)
{
    struct user_regs_struct regs;

    if (!p->is_ours)
        return;
    p->is_ours = false;
    if (!read_registers(p->pid, &regs))
        return;
    if (p->has_seen)
        hide_all(p, &regs);
    regs.rip = p->area_address + AREA_PARK;
    regs.orig_rax = (unsigned long)-1;
    write_registers(p->pid, &regs);
    take_pending_signals(p->pid);
    ptrace(PTRACE_DETACH, p->pid, NULL, NULL);
}

/* ---- Its CPU time ---- */

double
process_cpu_seconds(const struct process *p)
{
    clockid_t clock;

    return p->pid > 0 && clock_getcpuclockid(p->pid, &clock) == 0 ? clock_seconds(clock) : 0;
}

double
process_cpu_since(struct process *p)
{
    double before = p->told_cpu_seconds, now = process_cpu_seconds(p);

    p->told_cpu_seconds = now > before ? now : before;
    return p->told_cpu_seconds - before;
}
