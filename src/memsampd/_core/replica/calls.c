#include "core.h"
#include "calls.h"
#include "syscall_names.h"

#include <linux/futex.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define IOVECS 64
#define ADDRESS_BYTES 128 /* struct sockaddr_storage */

/* How many bytes the kernel writes where a pointer argument points. */
enum size_kind {
    SIZE_NONE = 0, /* the end of the list */
    SIZE_FIXED,    /* so many */
    SIZE_RESULT,   /* so many for each one of the result */
    SIZE_ARGUMENT, /* so many for each one of another argument */
    SIZE_VECTOR,   /* the result, spread over an array of struct iovec whose length is an argument */
};

struct output {
    uint8_t argument, kind, other;
    uint16_t bytes;
};

enum effect { EFFECT_MEMORY = 1, EFFECT_AREAS };

struct call {
    uint8_t effect;
    struct output output[3];
};

#define NOTHING {EFFECT_MEMORY, {{0}}}
#define ONE(...) {EFFECT_MEMORY, {{__VA_ARGS__}}}
#define AREAS {EFFECT_AREAS, {{0}}}

static const struct call table[] = {
    [SYS_read] = ONE(1, SIZE_RESULT, 0, 1),
    [SYS_pread64] = ONE(1, SIZE_RESULT, 0, 1),
    [SYS_readv] = ONE(1, SIZE_VECTOR, 2, 1),
    [SYS_preadv] = ONE(1, SIZE_VECTOR, 2, 1),
    [SYS_preadv2] = ONE(1, SIZE_VECTOR, 2, 1),
    [SYS_write] = NOTHING,
    [SYS_pwrite64] = NOTHING,
    [SYS_writev] = NOTHING,
    [SYS_pwritev] = NOTHING,
    [SYS_pwritev2] = NOTHING,
    [SYS_open] = NOTHING,
    [SYS_openat] = NOTHING,
    [SYS_creat] = NOTHING,
    [SYS_close] = NOTHING,
    [SYS_close_range] = NOTHING,
    [SYS_lseek] = NOTHING,
    [SYS_dup] = NOTHING,
    [SYS_dup2] = NOTHING,
    [SYS_dup3] = NOTHING,
    [SYS_stat] = ONE(1, SIZE_FIXED, 0, 144),
    [SYS_fstat] = ONE(1, SIZE_FIXED, 0, 144),
    [SYS_lstat] = ONE(1, SIZE_FIXED, 0, 144),
    [SYS_newfstatat] = ONE(2, SIZE_FIXED, 0, 144),
    [SYS_statx] = ONE(4, SIZE_FIXED, 0, 256),
    [SYS_statfs] = ONE(1, SIZE_FIXED, 0, 120),
    [SYS_fstatfs] = ONE(1, SIZE_FIXED, 0, 120),
    [SYS_access] = NOTHING,
    [SYS_faccessat] = NOTHING,
    [SYS_faccessat2] = NOTHING,
    [SYS_readlink] = ONE(1, SIZE_RESULT, 0, 1),
    [SYS_readlinkat] = ONE(2, SIZE_RESULT, 0, 1),
    [SYS_getdents64] = ONE(1, SIZE_RESULT, 0, 1),
    [SYS_getcwd] = ONE(0, SIZE_RESULT, 0, 1),
    [SYS_chdir] = NOTHING,
    [SYS_rename] = NOTHING,
    [SYS_renameat] = NOTHING,
    [SYS_renameat2] = NOTHING,
    [SYS_mkdir] = NOTHING,
    [SYS_mkdirat] = NOTHING,
    [SYS_rmdir] = NOTHING,
    [SYS_unlink] = NOTHING,
    [SYS_unlinkat] = NOTHING,
    [SYS_link] = NOTHING,
    [SYS_symlink] = NOTHING,
    [SYS_chmod] = NOTHING,
    [SYS_fchmod] = NOTHING,
    [SYS_fchmodat] = NOTHING,
    [SYS_utimensat] = NOTHING,
    [SYS_umask] = NOTHING,
    [SYS_truncate] = NOTHING,
    [SYS_ftruncate] = NOTHING,
    [SYS_fallocate] = NOTHING,
    [SYS_fsync] = NOTHING,
    [SYS_fdatasync] = NOTHING,
    [SYS_sync_file_range] = NOTHING,
    [SYS_fadvise64] = NOTHING,
    [SYS_flock] = NOTHING,
    [SYS_fcntl] = ONE(2, SIZE_FIXED, 0, 32),
    [SYS_sendfile] = ONE(2, SIZE_FIXED, 0, 8),
    [SYS_copy_file_range] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, 8}, {3, SIZE_FIXED, 0, 8}}},
    [SYS_splice] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, 8}, {3, SIZE_FIXED, 0, 8}}},
    [SYS_pipe] = ONE(0, SIZE_FIXED, 0, 8),
    [SYS_pipe2] = ONE(0, SIZE_FIXED, 0, 8),
    [SYS_poll] = ONE(0, SIZE_ARGUMENT, 1, 8),
    [SYS_ppoll] = {EFFECT_MEMORY, {{0, SIZE_ARGUMENT, 1, 8}, {2, SIZE_FIXED, 0, 16}}},
    [SYS_epoll_create1] = NOTHING,
    [SYS_epoll_ctl] = NOTHING,
    [SYS_epoll_wait] = ONE(1, SIZE_RESULT, 0, 12),
    [SYS_epoll_pwait] = ONE(1, SIZE_RESULT, 0, 12),
    [SYS_epoll_pwait2] = ONE(1, SIZE_RESULT, 0, 12),
    [SYS_eventfd2] = NOTHING,
    [SYS_timerfd_create] = NOTHING,
    [SYS_timerfd_settime] = ONE(3, SIZE_FIXED, 0, 32),
    [SYS_timerfd_gettime] = ONE(1, SIZE_FIXED, 0, 32),
    [SYS_getitimer] = ONE(1, SIZE_FIXED, 0, 32),
    [SYS_setitimer] = ONE(2, SIZE_FIXED, 0, 32),
    [SYS_timer_settime] = ONE(3, SIZE_FIXED, 0, 32),
    [SYS_timer_gettime] = ONE(1, SIZE_FIXED, 0, 32),
    [SYS_alarm] = NOTHING,
    [SYS_socket] = NOTHING,
    [SYS_socketpair] = ONE(3, SIZE_FIXED, 0, 8),
    [SYS_bind] = NOTHING,
    [SYS_listen] = NOTHING,
    [SYS_connect] = NOTHING,
    [SYS_shutdown] = NOTHING,
    [SYS_accept] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, ADDRESS_BYTES}, {2, SIZE_FIXED, 0, 4}}},
    [SYS_accept4] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, ADDRESS_BYTES}, {2, SIZE_FIXED, 0, 4}}},
    [SYS_getsockname] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, ADDRESS_BYTES}, {2, SIZE_FIXED, 0, 4}}},
    [SYS_getpeername] = {EFFECT_MEMORY, {{1, SIZE_FIXED, 0, ADDRESS_BYTES}, {2, SIZE_FIXED, 0, 4}}},
    [SYS_setsockopt] = NOTHING,
    [SYS_getsockopt] = {EFFECT_MEMORY, {{3, SIZE_FIXED, 0, 256}, {4, SIZE_FIXED, 0, 4}}},
    [SYS_sendto] = NOTHING,
    [SYS_sendmsg] = NOTHING,
    [SYS_sendmmsg] = ONE(1, SIZE_ARGUMENT, 2, 64),
    [SYS_recvfrom] = {EFFECT_MEMORY,
                      {{1, SIZE_RESULT, 0, 1},
                       {4, SIZE_FIXED, 0, ADDRESS_BYTES},
                       {5, SIZE_FIXED, 0, 4}}},
    [SYS_recvmsg] = NOTHING, /* see message_outputs */
    [SYS_futex] = ONE(0, SIZE_FIXED, 0, 4),
    [SYS_sched_yield] = NOTHING,
    [SYS_nanosleep] = ONE(1, SIZE_FIXED, 0, 16),
    [SYS_clock_nanosleep] = ONE(3, SIZE_FIXED, 0, 16),
    [SYS_clock_gettime] = ONE(1, SIZE_FIXED, 0, 16),
    [SYS_clock_getres] = ONE(1, SIZE_FIXED, 0, 16),
    [SYS_gettimeofday] = {EFFECT_MEMORY, {{0, SIZE_FIXED, 0, 16}, {1, SIZE_FIXED, 0, 8}}},
    [SYS_time] = ONE(0, SIZE_FIXED, 0, 8),
    [SYS_times] = ONE(0, SIZE_FIXED, 0, 32),
    [SYS_getrusage] = ONE(1, SIZE_FIXED, 0, 144),
    [SYS_getrlimit] = ONE(1, SIZE_FIXED, 0, 16),
    [SYS_prlimit64] = ONE(3, SIZE_FIXED, 0, 16),
    [SYS_sysinfo] = ONE(0, SIZE_FIXED, 0, 112),
    [SYS_uname] = ONE(0, SIZE_FIXED, 0, 390),
    [SYS_getrandom] = ONE(0, SIZE_RESULT, 0, 1),
    [SYS_getcpu] = {EFFECT_MEMORY, {{0, SIZE_FIXED, 0, 4}, {1, SIZE_FIXED, 0, 4}}},
    [SYS_sched_getaffinity] = ONE(2, SIZE_RESULT, 0, 1),
    [SYS_sched_setaffinity] = NOTHING,
    [SYS_getpriority] = NOTHING,
    [SYS_setpriority] = NOTHING,
    [SYS_getpid] = NOTHING,
    [SYS_gettid] = NOTHING,
    [SYS_getppid] = NOTHING,
    [SYS_getuid] = NOTHING,
    [SYS_geteuid] = NOTHING,
    [SYS_getgid] = NOTHING,
    [SYS_getegid] = NOTHING,
    [SYS_getpgrp] = NOTHING,
    [SYS_getpgid] = NOTHING,
    [SYS_getsid] = NOTHING,
    [SYS_kill] = NOTHING,
    [SYS_tgkill] = NOTHING,
    [SYS_rt_sigprocmask] = ONE(2, SIZE_FIXED, 0, 8),
    [SYS_rt_sigaction] = ONE(2, SIZE_FIXED, 0, 32),
    [SYS_rt_sigpending] = ONE(0, SIZE_FIXED, 0, 8),
    [SYS_sigaltstack] = ONE(1, SIZE_FIXED, 0, 24),
    [SYS_semop] = NOTHING,
    [SYS_semtimedop] = NOTHING,
    [SYS_membarrier] = NOTHING,
    [SYS_set_robust_list] = NOTHING,
    [SYS_memfd_create] = NOTHING,
    [SYS_mlock] = NOTHING,
    [SYS_munlock] = NOTHING,
    [SYS_brk] = AREAS,
    [SYS_mmap] = AREAS,
    [SYS_munmap] = AREAS,
    [SYS_mremap] = AREAS,
    [SYS_mprotect] = AREAS,
    [SYS_madvise] = AREAS,
    [SYS_ioctl] = ONE(2, SIZE_FIXED, 0, 64), /* of known requests */
};

bool
call_is_known(long number)
{
    return number >= 0 && (size_t)number < sizeof table / sizeof table[0] &&
           table[number].effect != 0;
}

static void
add(struct call_outputs *out, uint64_t start, uint64_t bytes)
{
    if (start == 0 || bytes == 0 || start + bytes < start || out->ranges == CALL_RANGES)
        return;
    out->range[out->ranges++] = (struct call_range){start, start + bytes};
}

/* So many bytes, spread over buffers. */
static bool
vector_outputs(struct remote *r, uint64_t address, uint64_t count, uint64_t bytes,
               struct call_outputs *out)
{
    struct iovec vector[IOVECS];

    if (count > IOVECS || !remote_copy(r->pid, address, vector, count * sizeof vector[0]))
        return count == 0;
    for (uint64_t i = 0; i < count && bytes != 0; i++) {
        uint64_t part = vector[i].iov_len < bytes ? vector[i].iov_len : bytes;
        add(out, (uint64_t)(uintptr_t)vector[i].iov_base, part);
        bytes -= part;
    }
    return true;
}

static bool
message_outputs(struct remote *r, uint64_t address, long result, struct call_outputs *out)
{
    struct msghdr message;

    add(out, address, sizeof message);
    if (result < 0)
        return true;
    if (!remote_copy(r->pid, address, &message, sizeof message))
        return false;
    add(out, (uint64_t)(uintptr_t)message.msg_name, message.msg_namelen);
    add(out, (uint64_t)(uintptr_t)message.msg_control, message.msg_controllen);
    return vector_outputs(r, (uint64_t)(uintptr_t)message.msg_iov, message.msg_iovlen,
                          (uint64_t)result, out);
}

/* Whether a futex call may write to its second word; to the others that argument is nothing. */
static bool
writes_second_word(uint64_t operation)
{
    switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAKE_OP:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_CMP_REQUEUE_PI:
        return true;
    default:
        return false;
    }
}

/* Memory that is other memory now. */
static void
area_outputs(const uint64_t argument[6], long number, long result, struct call_outputs *out)
{
    out->changes_areas = out->is_dropping = true;
    switch (number) {
    case SYS_mmap:
        if (result >= 0 || result < -4095)
            add(out, (uint64_t)result, argument[1]);
        break;
    case SYS_mremap:
        add(out, argument[0], argument[1]);
        if (result >= 0 || result < -4095)
            add(out, (uint64_t)result, argument[2]);
        break;
    case SYS_mprotect:
        out->is_no_code = (argument[2] & PROT_EXEC) == 0; /* before it is again we are told */
        add(out, argument[0], argument[1]);
        break;
    case SYS_munmap:
    case SYS_madvise:
        add(out, argument[0], argument[1]);
        break;
    default: /* brk: a heap that has shrunk, from its new end on */
        out->is_no_code = true;
        add(out, (uint64_t)result, (uint64_t)1 << 40);
    }
}

bool
call_outputs(struct remote *r, const struct user_regs_struct *regs, long number, long result,
             struct call_outputs *out)
{
    const uint64_t argument[6] = {regs->rdi, regs->rsi, regs->rdx, regs->r10, regs->r8, regs->r9};

    out->ranges = 0;
    out->changes_areas = out->is_dropping = out->is_no_code = false;
    if (!call_is_known(number))
        return false;
    if (number == SYS_recvmsg)
        return message_outputs(r, argument[1], result, out);
    if (number == SYS_ioctl && argument[1] != FIONREAD && argument[1] != FIONBIO &&
        argument[1] != TCGETS && argument[1] != TIOCGWINSZ && argument[1] != TIOCGPGRP)
        return false;
    if (number == SYS_fcntl && argument[1] < 5) /* duplicates and flags: no pointer */
        return true;
    if (number == SYS_futex && writes_second_word(argument[1]))
        add(out, argument[4], 4);
    const struct call *call = &table[number];
    if (call->effect == EFFECT_AREAS) {
        area_outputs(argument, number, result, out);
        return true;
    }
    for (size_t i = 0; i < 3 && call->output[i].kind != SIZE_NONE; i++) {
        const struct output *o = &call->output[i];
        uint64_t at = argument[o->argument], many = result > 0 ? (uint64_t)result : 0;
        if (o->kind == SIZE_FIXED)
            add(out, at, o->bytes);
        else if (o->kind == SIZE_RESULT)
            add(out, at, many * o->bytes);
        else if (o->kind == SIZE_ARGUMENT)
            add(out, at, (argument[o->other] & 0xffffff) * o->bytes);
        else if (!vector_outputs(r, at, argument[o->other], many, out))
            return false;
    }
    return true;
}

const char *
syscall_name(uint64_t number)
{
    return number < sizeof syscall_names / sizeof *syscall_names ? syscall_names[number] : NULL;
}
