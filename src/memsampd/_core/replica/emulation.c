#include "emulation.h"
#include "open_files.h"
#include "tracee.h"

#include "syscall_names.h"

#include <asm/prctl.h>
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define RESUME_FLAG 0x10000u
#define KERNEL_SIGNAL_SET_BYTES 8
#define ROBUST_LIST_HEAD_BYTES 24
#define CPU_SET_BYTES 1024
#define SIGNAL_BIT(number) ((uint64_t)1 << ((number) - 1))

const char *
syscall_name(uint64_t number)
{
    return number < sizeof syscall_names / sizeof *syscall_names ? syscall_names[number] : NULL;
}

/* ---- the state ------------------------------------------------------------------------------ */

void
emulation_end(struct emulation *state)
{
    free(state->forbidden);
    free(state->files);
    memset(state, 0, sizeof *state);
}

int
emulation_forbid(struct emulation *state, uint64_t start, uint64_t end)
{
    struct address_range *more =
        realloc(state->forbidden, (state->forbidden_count + 1) * sizeof *more);
    if (more == NULL)
        return -1;
    state->forbidden = more;
    more[state->forbidden_count++] = (struct address_range){start, end};
    return 0;
}

bool
emulation_forbids(const struct emulation *state, uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < state->forbidden_count; i++) {
        if (start < state->forbidden[i].end && state->forbidden[i].start < end)
            return true;
    }
    return false;
}

static int
take_ranges(struct emulation *state, const char *ranges, Py_ssize_t bytes)
{
    if (bytes % (Py_ssize_t)sizeof(struct address_range) != 0) {
        PyErr_SetString(PyExc_ValueError, "forbidden ranges are pairs of addresses");
        return -1;
    }
    for (Py_ssize_t at = 0; at < bytes; at += (Py_ssize_t)sizeof(struct address_range)) {
        struct address_range range;
        memcpy(&range, ranges + at, sizeof range);
        if (emulation_forbid(state, range.start, range.end) < 0) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static int
take_files(struct emulation *state, const char *files, Py_ssize_t bytes)
{
    if (bytes % (Py_ssize_t)sizeof *state->files != 0) {
        PyErr_SetString(PyExc_ValueError, "malformed table of open files");
        return -1;
    }
    if (bytes == 0)
        return 0;
    state->files = malloc((size_t)bytes);
    if (state->files == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(state->files, files, (size_t)bytes);
    state->file_count = (size_t)bytes / sizeof *state->files;
    return 0;
}

int
emulation_begin(struct emulation *state, PyObject *identity)
{
    unsigned long long mask, pending, syscall_address;
    const char *ranges, *files;
    Py_ssize_t ranges_bytes, files_bytes;
    int locks_memory;

    emulation_end(state);
    if (identity == Py_None)
        return 0;
    if (!PyTuple_Check(identity)) {
        PyErr_SetString(PyExc_TypeError, "an emulation's identity is a tuple or None");
        return -1;
    }
    if (!PyArg_ParseTuple(identity, "iiiiKKpKy#y#:identity", &state->target_tid, &state->pid,
                          &state->tid, &state->ppid, &mask, &pending, &locks_memory,
                          &syscall_address, &ranges, &ranges_bytes, &files, &files_bytes))
        return -1;
    state->mask = mask;
    state->pending = pending;
    state->locks_memory = locks_memory;
    state->syscall_address = syscall_address;
    if (take_ranges(state, ranges, ranges_bytes) < 0)
        return -1;
    return take_files(state, files, files_bytes);
}

PyObject *
emulation_identity(const struct emulation *state)
{
    if (state->syscall_address == 0)
        Py_RETURN_NONE;
    return Py_BuildValue(
        "(iiiiKKNKNN)", state->target_tid, state->pid, state->tid, state->ppid,
        (unsigned long long)state->mask, (unsigned long long)state->pending,
        PyBool_FromLong(state->locks_memory), (unsigned long long)state->syscall_address,
        PyBytes_FromStringAndSize((const char *)state->forbidden,
                                  (Py_ssize_t)(state->forbidden_count * sizeof *state->forbidden)),
        PyBytes_FromStringAndSize((const char *)state->files,
                                  (Py_ssize_t)(state->file_count * sizeof *state->files)));
}

/* ---- the shadow's memory -------------------------------------------------------------------- */

static bool
read_memory(pid_t pid, uint64_t address, void *bytes, size_t size)
{
    struct iovec mine = {bytes, size}, theirs = {(void *)(uintptr_t)address, size};
    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size;
}

static bool
write_memory(pid_t pid, uint64_t address, const void *bytes, size_t size)
{
    struct iovec mine = {(void *)bytes, size}, theirs = {(void *)(uintptr_t)address, size};
    return process_vm_writev(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size;
}

struct area {
    uint64_t start, end;
    bool is_plain; /* private, anonymous, no code */
};

static bool
parse_area(const char *line, struct area *area)
{
    unsigned long start, end, inode;
    char perms[5];
    int path = 0;

    if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %n", &start, &end, perms, &inode, &path) != 4)
        return false;
    const char *name = line + path;
    bool is_anonymous = inode == 0 && (*name == '\0' || strncmp(name, "[heap]", 6) == 0 ||
                                       strncmp(name, "[stack]", 7) == 0 ||
                                       strncmp(name, "[anon:", 6) == 0);
    *area = (struct area){start, end, is_anonymous && perms[2] != 'x' && perms[3] == 'p'};
    return true;
}

/* Whether whatever is mapped in [start, start + length) is plain and not forbidden. The list is in
 * order of address, and read no further than it matters. */
static bool
is_plain(pid_t pid, const struct emulation *state, uint64_t start, uint64_t length)
{
    uint64_t end = start + length + PAGE_BYTES - 1;
    char path[32], *line = NULL;
    size_t room = 0;
    bool plain = true;
    struct area area;

    if (end < start || emulation_forbids(state, start, end &= ~(uint64_t)(PAGE_BYTES - 1)))
        return false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL)
        return false;
    while (plain && getline(&line, &room, maps) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (!parse_area(line, &area))
            plain = false;
        else if (area.start >= end)
            break;
        else if (area.end > start)
            plain = area.is_plain;
    }
    free(line);
    fclose(maps);
    return plain;
}

/* ---- calls that the shadow really makes ------------------------------------------------------ */

static enum emulated
inject(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs, long number,
       const uint64_t arguments[6], long *result)
{
    switch (tracee_inject_shadow(pid, regs, state->syscall_address, number, arguments, result)) {
    case TRACEE_OK:
        return EMULATED;
    case TRACEE_CALL_FAILED:
        break;
    default:
        return EMULATION_LOST;
    }
    switch (-*result) {
    case EFAULT: /* shared memory is read-only in the shadow */
    case ENOMEM: /* two copies may be charged for what one alone would get */
    case EAGAIN:
    case EINTR:
        return NOT_EMULATED;
    default:
        return -*result < 512 ? EMULATED : NOT_EMULATED;
    }
}

static enum emulated
execute(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs, long *result)
{
    const uint64_t arguments[6] = {regs->rdi, regs->rsi, regs->rdx, regs->r10, regs->r8, regs->r9};
    return inject(pid, state, regs, (long)regs->rax, arguments, result);
}

static enum emulated
execute_if(bool is_safe, pid_t pid, const struct emulation *state,
           const struct user_regs_struct *regs, long *result)
{
    return is_safe ? execute(pid, state, regs, result) : NOT_EMULATED;
}

/* The clocks of CPU time would tell the shadow's own. */
static bool
is_wall_clock(uint64_t clock)
{
    switch ((int)clock) {
    case CLOCK_REALTIME:
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
    case CLOCK_TAI:
        return true;
    default:
        return false;
    }
}

/* A tracer's traps and faults may have put the shadow's handlers of these back to the default. */
static bool
is_forced_signal(uint64_t number)
{
    return number == SIGTRAP || number == SIGSEGV || number == SIGBUS || number == SIGILL ||
           number == SIGFPE;
}

/* With one thread, and for memory of its own, a memory barrier has nobody to wait for. */
static bool
is_private_membarrier(const struct user_regs_struct *regs)
{
    switch (regs->rdi) {
    case MEMBARRIER_CMD_QUERY:
    case MEMBARRIER_CMD_PRIVATE_EXPEDITED:
    case MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED:
    case MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE:
    case MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE:
        return regs->rsi == 0;
    default:
        return false;
    }
}

static enum emulated
emulate_mmap(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs,
             long *result)
{
    const uint64_t known = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_FIXED_NOREPLACE |
                           MAP_NORESERVE | MAP_STACK | MAP_32BIT;
    const uint64_t needed = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t flags = regs->r10;

    if ((flags & ~known) != 0 || (flags & needed) != needed ||
        (regs->rdx & ~(uint64_t)(PROT_READ | PROT_WRITE)) != 0 ||
        ((flags & MAP_FIXED) && !is_plain(pid, state, regs->rdi, regs->rsi)))
        return NOT_EMULATED;
    enum emulated outcome = execute(pid, state, regs, result);
    if (outcome == EMULATED && *result > 0 &&
        emulation_forbids(state, (uint64_t)*result, (uint64_t)*result + regs->rsi))
        return NOT_EMULATED; /* the target has something there that the shadow has not */
    return outcome;
}

static enum emulated
emulate_mremap(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs,
               long *result)
{
    uint64_t flags = regs->r10;

    if ((flags & ~(uint64_t)(MREMAP_MAYMOVE | MREMAP_FIXED)) != 0 || state->locks_memory ||
        regs->rsi == 0 || !is_plain(pid, state, regs->rdi, regs->rsi) ||
        ((flags & MREMAP_FIXED) && !is_plain(pid, state, regs->r8, regs->rdx)))
        return NOT_EMULATED;
    enum emulated outcome = execute(pid, state, regs, result);
    if (outcome == EMULATED && *result > 0 &&
        emulation_forbids(state, (uint64_t)*result, (uint64_t)*result + regs->rdx))
        return NOT_EMULATED;
    return outcome;
}

static enum emulated
emulate_brk(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs,
            long *result)
{
    const uint64_t query[6] = {0};
    uint64_t wanted = regs->rdi;
    long now;

    enum emulated outcome = inject(pid, state, regs, SYS_brk, query, &now);
    if (outcome != EMULATED)
        return outcome;
    *result = now;
    if (wanted == 0 || wanted == (uint64_t)now)
        return EMULATED;
    uint64_t low = wanted < (uint64_t)now ? wanted : (uint64_t)now;
    uint64_t high = wanted < (uint64_t)now ? (uint64_t)now : wanted;
    low &= ~(uint64_t)(PAGE_BYTES - 1);
    if (!is_plain(pid, state, low, high - low))
        return NOT_EMULATED;
    outcome = execute(pid, state, regs, result);
    return outcome == EMULATED && (uint64_t)*result != wanted ? NOT_EMULATED : outcome;
}

static enum emulated
emulate_madvise(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs,
                long *result)
{
    switch (regs->rdx) {
    case MADV_DONTNEED:
    case MADV_FREE:
        if (state->locks_memory)
            return NOT_EMULATED;
        break;
    case MADV_NORMAL:
    case MADV_RANDOM:
    case MADV_SEQUENTIAL:
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_DONTDUMP:
    case MADV_DODUMP:
        break;
    default:
        return NOT_EMULATED;
    }
    return execute_if(is_plain(pid, state, regs->rdi, regs->rsi), pid, state, regs, result);
}

/* ---- answers that we know -------------------------------------------------------------------- */

static enum emulated
known(long value, long *result)
{
    *result = value;
    return EMULATED;
}

static enum emulated
emulate_sigprocmask(pid_t pid, struct emulation *state, const struct user_regs_struct *regs,
                    long *result)
{
    const uint64_t unblockable = SIGNAL_BIT(SIGKILL) | SIGNAL_BIT(SIGSTOP);
    uint64_t before = state->mask, after = before, set;

    if (regs->r10 != KERNEL_SIGNAL_SET_BYTES)
        return NOT_EMULATED;
    if (regs->rsi != 0) {
        if (!read_memory(pid, regs->rsi, &set, sizeof set))
            return NOT_EMULATED;
        switch ((int)regs->rdi) {
        case SIG_BLOCK:
            after = before | set;
            break;
        case SIG_UNBLOCK:
            after = before & ~set;
            break;
        case SIG_SETMASK:
            after = set;
            break;
        default:
            return NOT_EMULATED;
        }
        after &= ~unblockable;
        if (state->pending & before & ~after)
            return NOT_EMULATED; /* here the target would run a handler */
    }
    if (regs->rdx != 0 && !write_memory(pid, regs->rdx, &before, sizeof before))
        return NOT_EMULATED;
    state->mask = after;
    return known(0, result);
}

/* Whom a wake reaches we cannot know; who asks is hardly ever told the number by its C library. A
 * wait is only known where it does not come about. */
static enum emulated
emulate_futex(pid_t pid, const struct user_regs_struct *regs, long *result)
{
    uint32_t value;
    struct timespec timeout;

    if (regs->rdi % sizeof value != 0 || !read_memory(pid, regs->rdi, &value, sizeof value))
        return NOT_EMULATED;
    switch (regs->rsi & ~(uint64_t)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)) {
    case FUTEX_WAKE:
        return known(0, result);
    case FUTEX_WAKE_BITSET:
        return (uint32_t)regs->r9 != 0 ? known(0, result) : NOT_EMULATED;
    case FUTEX_WAIT:
        break;
    case FUTEX_WAIT_BITSET:
        if ((uint32_t)regs->r9 == 0)
            return NOT_EMULATED;
        break;
    default:
        return NOT_EMULATED;
    }
    if (regs->r10 != 0 &&
        (!read_memory(pid, regs->r10, &timeout, sizeof timeout) || timeout.tv_sec < 0 ||
         timeout.tv_nsec < 0 || timeout.tv_nsec > 999999999))
        return NOT_EMULATED;
    return value != (uint32_t)regs->rdx ? known(-EAGAIN, result) : NOT_EMULATED;
}

/* The shadow was put on other CPUs than the target. */
static enum emulated
emulate_getaffinity(pid_t pid, const struct emulation *state, const struct user_regs_struct *regs,
                    long *result)
{
    uint64_t set[CPU_SET_BYTES / sizeof(uint64_t)];
    size_t room = regs->rsi < sizeof set ? regs->rsi : sizeof set;

    *result = syscall(SYS_sched_getaffinity, state->target_tid, room, set);
    if (*result < 0 || !write_memory(pid, regs->rdx, set, (size_t)*result))
        return NOT_EMULATED;
    return EMULATED;
}

static enum emulated
emulate_getpriority(const struct emulation *state, long *result)
{
    *result = syscall(SYS_getpriority, PRIO_PROCESS, state->target_tid);
    return *result < 0 ? NOT_EMULATED : EMULATED;
}

static enum emulated
emulate_arch_prctl(pid_t pid, const struct user_regs_struct *regs, long *result)
{
    uint64_t base = regs->rdi == ARCH_GET_FS ? regs->fs_base : regs->gs_base;

    if ((regs->rdi != ARCH_GET_FS && regs->rdi != ARCH_GET_GS) ||
        !write_memory(pid, regs->rsi, &base, sizeof base))
        return NOT_EMULATED;
    return known(0, result);
}

/* Whether a call's argument names the caller itself. */
static bool
is_itself(const struct emulation *state, uint64_t id)
{
    return (int)id == 0 || (int)id == state->tid;
}

static enum emulated
answer(pid_t pid, struct emulation *state, const struct user_regs_struct *regs, long *result)
{
    switch (regs->rax) {
    case SYS_getpid:
        return known(state->pid, result);
    case SYS_gettid:
    case SYS_set_tid_address:
        return known(state->tid, result);
    case SYS_getppid:
        return known(state->ppid, result);
    case SYS_sched_yield:
        return known(0, result);
    case SYS_set_robust_list:
        return regs->rsi == ROBUST_LIST_HEAD_BYTES ? known(0, result) : NOT_EMULATED;
    case SYS_rt_sigprocmask:
        return emulate_sigprocmask(pid, state, regs, result);
    case SYS_futex:
        return emulate_futex(pid, regs, result);
    case SYS_arch_prctl:
        return emulate_arch_prctl(pid, regs, result);
    case SYS_sched_getaffinity:
        return is_itself(state, regs->rdi) ? emulate_getaffinity(pid, state, regs, result)
                                           : NOT_EMULATED;
    case SYS_getpriority:
        return (int)regs->rdi == PRIO_PROCESS && is_itself(state, regs->rsi)
                   ? emulate_getpriority(state, result)
                   : NOT_EMULATED;
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_lseek:
        return open_files_answer(pid, state, regs, result);
    case SYS_brk:
        return emulate_brk(pid, state, regs, result);
    case SYS_mmap:
        return emulate_mmap(pid, state, regs, result);
    case SYS_mremap:
        return emulate_mremap(pid, state, regs, result);
    case SYS_madvise:
        return emulate_madvise(pid, state, regs, result);
    case SYS_munmap:
        return execute_if(is_plain(pid, state, regs->rdi, regs->rsi), pid, state, regs, result);
    case SYS_mprotect:
        return execute_if((regs->rdx & ~(uint64_t)(PROT_READ | PROT_WRITE)) == 0 &&
                              is_plain(pid, state, regs->rdi, regs->rsi),
                          pid, state, regs, result);
    case SYS_clock_gettime:
    case SYS_clock_getres:
        return execute_if(is_wall_clock(regs->rdi), pid, state, regs, result);
    case SYS_rt_sigaction:
        return execute_if(!is_forced_signal(regs->rdi), pid, state, regs, result);
    case SYS_prlimit64:
        return execute_if((int)regs->rdi == 0 && regs->rdx == 0, pid, state, regs, result);
    case SYS_getpgid:
    case SYS_getsid:
        return execute_if((int)regs->rdi == 0, pid, state, regs, result);
    case SYS_membarrier:
        return execute_if(is_private_membarrier(regs), pid, state, regs, result);
    case SYS_getuid:
    case SYS_geteuid:
    case SYS_getgid:
    case SYS_getegid:
    case SYS_getresuid:
    case SYS_getresgid:
    case SYS_getgroups:
    case SYS_getpgrp:
    case SYS_getrlimit:
    case SYS_getcpu:
    case SYS_gettimeofday:
    case SYS_time:
    case SYS_uname:
    case SYS_sysinfo:
    case SYS_getcwd:
    case SYS_sigaltstack:
    case SYS_sched_get_priority_max:
    case SYS_sched_get_priority_min:
        return execute(pid, state, regs, result);
    default:
        return NOT_EMULATED;
    }
}

enum emulated
syscall_emulate(pid_t pid, struct emulation *state, struct user_regs_struct *regs)
{
    static const uint8_t instruction[2] = {0x0f, 0x05};
    uint8_t code[sizeof instruction];
    long result = 0;

    if (state->syscall_address == 0 || !read_memory(pid, regs->rip, code, sizeof code) ||
        memcmp(code, instruction, sizeof code) != 0)
        return NOT_EMULATED;
    enum emulated outcome = answer(pid, state, regs, &result);
    if (outcome != EMULATED)
        return outcome;
    regs->rax = (unsigned long)result;
    regs->rip += sizeof instruction;
    regs->rcx = regs->rip;
    regs->r11 = regs->eflags & ~(unsigned long)RESUME_FLAG;
    regs->orig_rax = (unsigned long)-1;
    state->calls++;
    return EMULATED;
}

static PyObject *
emulation_syscall_name(PyObject *module, PyObject *args)
{
    unsigned long long number;
    (void)module;

    if (!PyArg_ParseTuple(args, "K:syscall_name", &number))
        return NULL;
    const char *name = syscall_name(number);
    if (name == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(name);
}

static PyMethodDef emulation_methods[] = {
    {"syscall_name", emulation_syscall_name, METH_VARARGS, "Name of a system call, or None."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_emulation(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "FILE_IS_NULL", FILE_IS_NULL) < 0)
        return -1;
    return PyModule_AddFunctions(module, emulation_methods);
}
