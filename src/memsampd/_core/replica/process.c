#include "core.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOWEST_ADDRESS 0x10000u
#define HIGHEST_ADDRESS 0x7ffffffff000u
#define OWN_UID 2061133857u /* nobody else's: no user may stop, read or pin it */
#define NOBODY 65534u
#define START_SECONDS 60.0 /* on a machine that is busy with other things */
#define START_LOOKS 1000   /* at least: we, or the whole machine, may have been stopped for long */
#define END_SECONDS 60.0   /* the same */

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP 2
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

/* ---- In the replica, before it has lost everything ---- */

/* What the child tells through the area. */
struct hello {
    volatile int32_t uffd, error;
    volatile uint64_t features;
    volatile int32_t is_ready;
};

static int
open_userfaultfd(struct hello *hello)
{
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM |
                    UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
    };
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

    if (uffd < 0 && errno == EINVAL) /* before Linux 5.11 */
        uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0)
        return -1;
    if (ioctl(uffd, UFFDIO_API, &api) < 0) { /* before Linux 5.19: no protections, pages are not kept */
        close(uffd);
        uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        api = (struct uffdio_api){.api = UFFD_API,
                                  .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM};
        if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0)
            return -1;
    }
    hello->features = api.features;
    return uffd;
}

/* Runs in a copy of memsampd that shares its table of descriptors: only system calls. */
static void __attribute__((noreturn))
become_replica(const struct area *area, uint64_t at, pid_t parent)
{
    struct hello *hello = (struct hello *)(area->bytes + AREA_SLOTS);
    const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "memsampd-replica");
    setsid();
    if (getppid() != parent)
        _exit(1);
    uint8_t *base = (uint8_t *)(uintptr_t)at;
    if (mmap(base, AREA_LOOKUP, PROT_READ | PROT_WRITE, flags, area->memfd, 0) != base ||
        mmap(base + AREA_LOOKUP, AREA_CODE - AREA_LOOKUP, PROT_READ, flags, area->memfd,
             AREA_LOOKUP) != base + AREA_LOOKUP ||
        mmap(base + AREA_CODE, AREA_CODE_BYTES, PROT_READ | PROT_EXEC, flags, area->memfd,
             AREA_CODE) != base + AREA_CODE ||
        mmap(base + AREA_BUFFER, BUFFER_BYTES, PROT_READ | PROT_WRITE, flags, area->memfd,
             AREA_BUFFER) != base + AREA_BUFFER ||
        (hello->uffd = open_userfaultfd(hello)) < 0) {
        hello->error = errno;
        hello->is_ready = 1;
        _exit(1);
    }
    hello->is_ready = 1;
    ((void (*)(void))(uintptr_t)(at + AREA_PARK))();
    _exit(1);
}

/* ---- Making it run system calls, while it still may ---- */

struct caller {
    struct process *p;
    struct user_regs_struct regs;
    int error; /* of the first call that failed; no further ones are made */
};

static long
call(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
     uint64_t a5)
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
        if (ptrace(PTRACE_CONT, c->p->pid, NULL, NULL) < 0) {
            c->error = ESRCH;
            return -1;
        }
        while ((waited = held_wait(c->p->pid, &status)) == 1)
            ;
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

/* A call that may fail. */
static bool
try_call(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3)
{
    if (c->error != 0)
        return false;
    call(c, number, a0, a1, a2, a3, 0, 0);
    bool good = c->error == 0;
    c->error = c->error == ESRCH ? ESRCH : 0;
    return good;
}

/* As the kernel's struct ptrace_rseq_configuration. */
static void
leave_rseq(struct caller *c)
{
    struct {
        uint64_t area;
        uint32_t size, signature, flags, pad;
    } rseq = {0};
    const long request = 0x420f; /* PTRACE_GET_RSEQ_CONFIGURATION */

    if (ptrace((enum __ptrace_request)request, c->p->pid, (void *)sizeof rseq, &rseq) >= 0 &&
        rseq.area != 0)
        try_call(c, SYS_rseq, rseq.area, rseq.size, 1, rseq.signature);
}

/* What it still has beside the translator's area: mappings that the kernel has sealed. */
static void
find_parts(struct process *p)
{
    const uint64_t area_end = p->area_address + AREA_BYTES + GUARD_BYTES;
    char line[512], path[64];
    uint64_t start, end, from = LOWEST_ADDRESS;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)p->pid);
    FILE *maps = fopen(path, "re");

    p->parts = 0;
    while (maps != NULL && p->parts < PROCESS_PARTS - 1 && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &end) != 2 || start >= HIGHEST_ADDRESS)
            continue;
        if (start > from)
            p->part[p->parts++] = (struct process_part){from, start};
        from = end;
        if (from >= p->area_address && from < area_end)
            from = area_end; /* behind the buffer nothing is mapped: its end must fault */
    }
    if (maps != NULL)
        fclose(maps);
    if (from < HIGHEST_ADDRESS)
        p->part[p->parts++] = (struct process_part){from, HIGHEST_ADDRESS};
}

static void
map_memory(struct caller *c, bool may_execute)
{
    struct process *p = c->p;
    const uint64_t protection = PROT_READ | PROT_WRITE | (may_execute ? PROT_EXEC : 0);

    try_call(c, SYS_munmap, LOWEST_ADDRESS, p->area_address - LOWEST_ADDRESS, 0, 0);
    const uint64_t end = p->area_address + AREA_BYTES;
    if (!try_call(c, SYS_munmap, end, HIGHEST_ADDRESS - end, 0, 0)) {
        /* Some of it is sealed: take the rest away one by one. */
        char line[512], path[64];
        uint64_t start, stop;
        snprintf(path, sizeof path, "/proc/%d/maps", (int)p->pid);
        FILE *maps = fopen(path, "re");
        while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
            if (sscanf(line, "%" SCNx64 "-%" SCNx64, &start, &stop) == 2 && start >= end &&
                stop <= HIGHEST_ADDRESS)
                try_call(c, SYS_munmap, start, stop - start, 0, 0);
        if (maps != NULL)
            fclose(maps);
    }
    find_parts(p);
    for (size_t i = 0; i < p->parts; i++) {
        struct process_part *part = &p->part[i];
        struct uffdio_register request = {
            .range = {part->start, part->end - part->start},
            .mode = UFFDIO_REGISTER_MODE_MISSING |
                    (p->can_protect ? UFFDIO_REGISTER_MODE_WP : 0) |
                    (p->can_keep ? UFFDIO_REGISTER_MODE_MINOR : 0),
        };
        call(c, SYS_mmap, part->start, part->end - part->start, protection,
             MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, (uint64_t)p->frames.file, part->start);
        if (c->error == 0 && ioctl(p->uffd, UFFDIO_REGISTER, &request) < 0)
            c->error = errno;
    }
}

/* Traced again for each burst, and killed at its end and by our death (whose signal needs the right to send
 * one, too), it is to be of another user only if we may do both to those. */
static bool
may_have_other_user(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[2] = {{0}};
    const uint32_t needed = 1u << CAP_SYS_PTRACE | 1u << CAP_KILL;

    return geteuid() == 0 && syscall(SYS_capget, &header, held) == 0 &&
           (held[0].effective & needed) == needed;
}

/* No descriptor, no privilege, no call but pause and the one that loses sight of pages. */
static void
confine(struct caller *c, const struct area *area)
{
    static const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pause, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct {
        struct sock_fprog program;
        struct rlimit none;
        struct __user_cap_header_struct header;
        struct __user_cap_data_struct capabilities[2];
        struct sock_filter filter[sizeof filter / sizeof filter[0]];
    } *letter = (void *)(area->bytes + AREA_SLOTS);
    const uint64_t at = c->p->area_address + AREA_SLOTS;

    memcpy(letter->filter, filter, sizeof filter);
    letter->program.len = sizeof filter / sizeof filter[0];
    letter->program.filter = (void *)(uintptr_t)(at + offsetof(__typeof__(*letter), filter));
    letter->none = (struct rlimit){0, 0};
    letter->header = (struct __user_cap_header_struct){.version = _LINUX_CAPABILITY_VERSION_3};
    memset(letter->capabilities, 0, sizeof letter->capabilities);
    try_call(c, SYS_setrlimit, RLIMIT_CORE, at + offsetof(__typeof__(*letter), none), 0, 0);
    call(c, SYS_close_range, 0, ~0u, 2 /* CLOSE_RANGE_UNSHARE */, 0, 0, 0);
    if (may_have_other_user()) {
        try_call(c, SYS_setgroups, 0, 0, 0, 0);
        if (!try_call(c, SYS_setresgid, OWN_UID, OWN_UID, OWN_UID, 0) ||
            !try_call(c, SYS_setresuid, OWN_UID, OWN_UID, OWN_UID, 0)) {
            try_call(c, SYS_setresgid, NOBODY, NOBODY, NOBODY, 0);
            try_call(c, SYS_setresuid, NOBODY, NOBODY, NOBODY, 0);
        }
        try_call(c, SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0);
    }
    /* Not root may have some, too; and without the others' ids root would have kept its own. */
    call(c, SYS_capset, at + offsetof(__typeof__(*letter), header),
         at + offsetof(__typeof__(*letter), capabilities), 0, 0, 0, 0);
    /* A change of identity has taken this away. */
    call(c, SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
    call(c, SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    call(c, SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, at, 0, 0, 0);
    memset(letter, 0, sizeof *letter);
}

/* ---- Its life ---- */

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
    p->can_keep = frames_write(&p->frames, page, zeros) && process_show_again(p, page, false);
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

int
process_create(struct process *p, const struct area *area, uint64_t area_address, bool may_execute,
               bool may_keep)
{
    struct hello *hello = (struct hello *)(area->bytes + AREA_SLOTS);
    pid_t parent = getpid();

    memset(p, 0, sizeof *p);
    p->uffd = -1;
    p->area_address = area_address;
    p->era = 1;
    memset((void *)hello, 0, sizeof *hello);
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
    bool is_ready = wait_until_ready(p, hello);
    int error = errno;
    p->uffd = is_ready ? hello->uffd : -1;
    p->can_protect = hello->features & UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    p->can_keep = may_keep && hello->features & UFFD_FEATURE_MINOR_SHMEM;
    struct caller c = {.p = p, .error = 0};
    if (is_ready) {
        lift_address_limit(p->pid);
        if (!process_seize(p) || !read_registers(p->pid, &c.regs))
            c.error = ESRCH;
        leave_rseq(&c);
        map_memory(&c, may_execute);
        say(p, "an address space");
        if (c.error == 0) {
            try_keeping(p);
            confine(&c, area);
            say(p, "its sandbox");
        }
        error = c.error;
    } else {
        say(p, "a userfaultfd");
    }
    if (!is_ready || c.error != 0) {
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
    int status, waited;

    if (p->pid <= 0 ||
        ptrace(PTRACE_SEIZE, p->pid, NULL, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD)) < 0)
        return false;
    ptrace(PTRACE_INTERRUPT, p->pid, NULL, NULL);
    for (;;) {
        while ((waited = held_wait(p->pid, &status)) == 1)
            ;
        if (waited < 0)
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
    int status, waited;

    while (ptrace(PTRACE_PEEKSIGINFO, pid, &first, &info) == 1) {
        if (ptrace(PTRACE_CONT, pid, NULL, NULL) < 0)
            return;
        while ((waited = held_wait(pid, &status)) == 1)
            ;
        if (waited < 0)
            return;
    }
}

/* Have it lose sight of all pages. If it cannot, they are not kept. */
static void
hide_all(struct process *p, const struct user_regs_struct *regs)
{
    struct caller c = {.p = p, .regs = *regs, .error = 0};

    for (size_t i = 0; i < p->parts; i++)
        call(&c, SYS_madvise, p->part[i].start, p->part[i].end - p->part[i].start, MADV_DONTNEED, 0, 0, 0);
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

/* ---- Its memory ---- */

uint8_t *
process_place(struct process *p, uint64_t page, uint8_t era)
{
    return p->can_keep && era == p->era ? frames_place(&p->frames, page) : NULL;
}

/* Pages of which the file has none: in one go they are made, written and shown. Returns how many were, or 0
 * with errno set. */
static size_t
copy_pages(struct process *p, uint64_t page, const uint8_t *bytes, size_t count, bool is_writable)
{
    struct uffdio_copy copy = {
        .dst = page,
        .src = (uint64_t)(uintptr_t)bytes,
        .len = count * PAGE_BYTES,
        .mode = UFFDIO_COPY_MODE_DONTWAKE |
                (p->can_protect && !is_writable ? UFFDIO_COPY_MODE_WP : 0),
    };

    p->has_seen = p->can_keep;
    if (ioctl(p->uffd, UFFDIO_COPY, &copy) == 0)
        return count;
    return copy.copy > 0 ? (size_t)copy.copy / PAGE_BYTES : 0;
}

/* Pages that the file has. */
static size_t
show_pages(struct process *p, uint64_t page, size_t count, bool is_writable)
{
    struct uffdio_continue show = {
        .range = {page, count * PAGE_BYTES},
        .mode = UFFDIO_CONTINUE_MODE_DONTWAKE |
                (p->can_protect && !is_writable ? UFFDIO_CONTINUE_MODE_WP : 0),
    };

    p->has_seen = true;
    if (ioctl(p->uffd, UFFDIO_CONTINUE, &show) == 0)
        return count;
    return show.mapped > 0 ? (size_t)show.mapped / PAGE_BYTES : 0;
}

size_t
process_supply(struct process *p, uint64_t page, const uint8_t *bytes, size_t count,
               bool is_writable)
{
    size_t done = 0;

    while (done < count) {
        const uint64_t at = page + done * PAGE_BYTES;
        const uint8_t *from = bytes == NULL ? NULL : bytes + done * PAGE_BYTES;
        size_t more = from == NULL ? show_pages(p, at, count - done, is_writable)
                                   : copy_pages(p, at, from, count - done, is_writable);
        if (more == 0 && errno == EEXIST && from != NULL && p->can_keep) /* one that was kept */
            more = frames_write(&p->frames, at, from) ? show_pages(p, at, 1, is_writable) : 0;
        if (more == 0 && errno != EEXIST && errno != EAGAIN)
            break;
        done += more != 0 ? more : errno == EEXIST;
    }
    return done;
}

bool
process_show_again(struct process *p, uint64_t page, bool is_writable)
{
    return p->can_keep && show_pages(p, page, 1, is_writable) == 1;
}

bool
process_refresh(struct process *p, uint64_t page, const uint8_t *bytes)
{
    return frames_write(&p->frames, page, bytes);
}

bool
process_unprotect(struct process *p, uint64_t page)
{
    struct uffdio_writeprotect change = {.range = {page, PAGE_BYTES},
                                         .mode = UFFDIO_WRITEPROTECT_MODE_DONTWAKE};
    return !p->can_protect || ioctl(p->uffd, UFFDIO_WRITEPROTECT, &change) == 0;
}

void
process_drop(struct process *p, uint64_t start, uint64_t end)
{
    end = end > HIGHEST_ADDRESS ? HIGHEST_ADDRESS : end;
    if (start < end)
        frames_drop(&p->frames, start, end);
}

static void
begin_era(struct process *p)
{
    p->era = p->era == UINT8_MAX ? 1 : p->era + 1;
}

void
process_drop_all(struct process *p)
{
    process_drop(p, 0, HIGHEST_ADDRESS);
    p->has_seen = false;
    begin_era(p);
}

void
process_end_burst(struct process *p)
{
    if (p->has_seen || !p->can_keep)
        process_drop_all(p);
    else if (!frames_keep(&p->frames, HIGHEST_ADDRESS))
        begin_era(p);
}

double
process_cpu_seconds(const struct process *p)
{
    clockid_t clock;
    struct timespec used = {0, 0};

    if (p->pid > 0 && clock_getcpuclockid(p->pid, &clock) == 0)
        clock_gettime(clock, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

double
process_cpu_since(struct process *p)
{
    double before = p->told_cpu_seconds, now = process_cpu_seconds(p);

    p->told_cpu_seconds = now > before ? now : before;
    return p->told_cpu_seconds - before;
}
