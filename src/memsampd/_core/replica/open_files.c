#include "open_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kernel itself moves no more at once: it would cut the call short. */
#define CALL_MAXIMUM_BYTES 0x7ffff000u
/* Of what we copy: more would keep the shadow, and whoever waits for it, too long. */
#define COPY_MAXIMUM_BYTES ((size_t)4 << 20)
#define SEGMENTS_MAXIMUM 16
#define USER_END 0x7ffffffff000u
/* Every file system takes offsets up to here. */
#define OFFSET_SURE INT32_MAX

/* Memory of the shadow, as a call names it. */
struct segments {
    struct iovec at[SEGMENTS_MAXIMUM];
    size_t count;
    uint64_t bytes;
};

static struct open_file *
find(const struct emulation *state, uint32_t number)
{
    for (size_t i = 0; i < state->file_count; i++) {
        if ((uint32_t)state->files[i].number == number)
            return &state->files[i];
    }
    return NULL;
}

/* What our descriptor stands for now, if it still is the file that it was opened for. */
static bool
examine(const struct open_file *file, struct stat *now)
{
    return fstat(file->descriptor, now) == 0 && now->st_dev == file->device &&
           now->st_ino == file->inode;
}

static bool
is_readable(const struct open_file *file)
{
    return (file->flags & O_ACCMODE) != O_WRONLY &&
           (file->marks & (FILE_IS_NULL | FILE_WRITTEN)) == 0;
}

static bool
is_writable(const struct open_file *file)
{
    return (file->flags & O_ACCMODE) != O_RDONLY;
}

/* Two descriptors of one file may be duplicates, which share an offset: nobody told us. */
static void
move_to(struct emulation *state, struct open_file *file, int64_t offset)
{
    if (file->offset == offset)
        return;
    for (size_t i = 0; i < state->file_count; i++) {
        struct open_file *other = &state->files[i];
        if (other->device == file->device && other->inode == file->inode && other != file)
            other->marks |= FILE_ADRIFT;
    }
    file->offset = offset;
}

/* ---- the shadow's memory -------------------------------------------------------------------- */

static bool
add_segment(const struct emulation *state, struct segments *s, uint64_t address, uint64_t size)
{
    if (size > CALL_MAXIMUM_BYTES - s->bytes || address > USER_END - size ||
        emulation_forbids(state, address, address + size))
        return false;
    s->at[s->count++] = (struct iovec){(void *)(uintptr_t)address, size};
    s->bytes += size;
    return true;
}

static bool
read_vector(pid_t pid, const struct emulation *state, struct segments *s, uint64_t address,
            uint64_t count)
{
    struct iovec vector[SEGMENTS_MAXIMUM];
    size_t size = count * sizeof *vector;
    struct iovec mine = {vector, size}, theirs = {(void *)(uintptr_t)address, size};

    if (count < 1 || count > SEGMENTS_MAXIMUM ||
        process_vm_readv(pid, &mine, 1, &theirs, 1, 0) != (ssize_t)size)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!add_segment(state, s, (uint64_t)(uintptr_t)vector[i].iov_base, vector[i].iov_len))
            return false;
    return true;
}

/* A call uses the first bytes of its memory alone. */
static void
shorten(struct segments *s, uint64_t bytes)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->at[i].iov_len > bytes)
            s->at[i].iov_len = bytes;
        bytes -= s->at[i].iov_len;
    }
}

static bool
fetch(pid_t pid, const struct segments *from, void *bytes, size_t size)
{
    struct iovec mine = {bytes, size};
    return process_vm_readv(pid, &mine, 1, from->at, from->count, 0) == (ssize_t)size;
}

/* All or nothing: `before` is room for what was there. */
static bool
overwrite(pid_t pid, const struct segments *to, void *bytes, void *before, size_t size)
{
    struct iovec mine = {bytes, size};

    if (!fetch(pid, to, before, size))
        return false;
    ssize_t done = process_vm_writev(pid, &mine, 1, to->at, to->count, 0);
    if (done == (ssize_t)size)
        return true;
    if (done > 0) {
        mine = (struct iovec){before, (size_t)done};
        process_vm_writev(pid, &mine, 1, to->at, to->count, 0);
    }
    return false;
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool
read_fully(int descriptor, uint8_t *bytes, size_t size, int64_t offset)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = pread(descriptor, bytes + got, size - got, offset + (int64_t)got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* No more than the file has: what lies behind that in the buffer need not even exist. */
static enum emulated
read_at(pid_t pid, const struct open_file *file, struct segments *to, int64_t offset, long *result)
{
    struct stat now;

    if (!is_readable(file) || offset < 0 || offset > INT64_MAX - CALL_MAXIMUM_BYTES ||
        !examine(file, &now))
        return NOT_EMULATED;
    uint64_t left = now.st_size > offset ? (uint64_t)(now.st_size - offset) : 0;
    size_t size = left < to->bytes ? left : to->bytes;
    *result = (long)size;
    if (size == 0)
        return EMULATED;
    if (size > COPY_MAXIMUM_BYTES)
        return NOT_EMULATED;
    uint8_t *bytes = malloc(2 * size);
    if (bytes == NULL)
        return NOT_EMULATED;
    shorten(to, size);
    bool is_done = read_fully(file->descriptor, bytes, size, offset) &&
                   overwrite(pid, to, bytes, bytes + size, size);
    free(bytes);
    return is_done ? EMULATED : NOT_EMULATED;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Whether memory of the shadow is a piece of this file, on any device: it would not show a write. */
static bool
is_mapped(pid_t pid, uint64_t inode)
{
    char path[32], *line = NULL;
    unsigned long found;
    bool is_there = false;
    size_t room = 0;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL)
        return true;
    while (!is_there && getline(&line, &room, maps) > 0)
        is_there = sscanf(line, "%*s %*s %*s %*s %lu", &found) != 1 || found == inode;
    free(line);
    fclose(maps);
    return is_there;
}

static bool
has_no_size_limit(pid_t tid)
{
    struct rlimit limit;
    return prlimit(tid, RLIMIT_FSIZE, NULL, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

/* Whether a write to a regular file would be done; it is marked as written. */
static bool
mark_written(pid_t pid, struct emulation *state, const struct open_file *file)
{
    struct stat now;

    if (!examine(file, &now) || !has_no_size_limit(state->target_tid) ||
        ((file->marks & FILE_WRITTEN) == 0 && is_mapped(pid, file->inode)))
        return false;
    for (size_t i = 0; i < state->file_count; i++) {
        struct open_file *same = &state->files[i];
        if (same->device == file->device && same->inode == file->inode)
            same->marks |= FILE_WRITTEN;
    }
    return true;
}

static enum emulated
write_at(pid_t pid, struct emulation *state, const struct open_file *file,
         const struct segments *from, int64_t offset, long *result)
{
    if (!is_writable(file) || from->bytes > COPY_MAXIMUM_BYTES || offset < 0 ||
        offset > INT64_MAX - CALL_MAXIMUM_BYTES)
        return NOT_EMULATED;
    *result = (long)from->bytes;
    if (from->bytes == 0)
        return EMULATED;
    void *bytes = malloc(from->bytes);
    if (bytes == NULL)
        return NOT_EMULATED;
    bool is_there = fetch(pid, from, bytes, from->bytes);
    free(bytes);
    if (!is_there || ((file->marks & FILE_IS_NULL) == 0 && !mark_written(pid, state, file)))
        return NOT_EMULATED;
    return EMULATED;
}

/* ---- the offset ----------------------------------------------------------------------------- */

static enum emulated
transfer(pid_t pid, struct emulation *state, struct open_file *file, struct segments *memory,
         bool is_write, long *result)
{
    /* Where it writes does not matter; where it reads does. */
    if (!is_write && (file->marks & FILE_ADRIFT) != 0)
        return NOT_EMULATED;
    enum emulated outcome = is_write
                                ? write_at(pid, state, file, memory, file->offset, result)
                                : read_at(pid, file, memory, file->offset, result);
    if (outcome != EMULATED || (file->marks & FILE_IS_NULL) != 0)
        return outcome;
    move_to(state, file, file->offset + *result);
    if (is_write && (file->flags & O_APPEND) != 0)
        file->marks |= FILE_ADRIFT; /* at an end that others may have moved */
    return EMULATED;
}

static enum emulated
seek(struct emulation *state, struct open_file *file, int64_t distance, uint32_t whence,
     long *result)
{
    struct stat now;
    int64_t target;

    if ((file->marks & (FILE_IS_NULL | FILE_ADRIFT)) != 0 || !examine(file, &now))
        return NOT_EMULATED;
    switch (whence) {
    case SEEK_SET:
        target = distance;
        break;
    case SEEK_CUR:
        if (__builtin_add_overflow(file->offset, distance, &target))
            return NOT_EMULATED;
        break;
    case SEEK_END:
        if ((file->marks & FILE_WRITTEN) != 0 ||
            __builtin_add_overflow(now.st_size, distance, &target))
            return NOT_EMULATED;
        break;
    default:
        return NOT_EMULATED;
    }
    if (target < 0 ||
        (target > OFFSET_SURE && target > now.st_size && target > file->offset))
        return NOT_EMULATED;
    move_to(state, file, target);
    *result = target;
    return EMULATED;
}

enum emulated
open_files_answer(pid_t pid, struct emulation *state, const struct user_regs_struct *regs,
                  long *result)
{
    struct open_file *file = find(state, (uint32_t)regs->rdi);
    struct segments memory = {.count = 0};
    const long number = (long)regs->rax;

    if (file == NULL)
        return NOT_EMULATED;
    if (number == SYS_lseek)
        return seek(state, file, (int64_t)regs->rsi, (uint32_t)regs->rdx, result);
    if (number == SYS_readv || number == SYS_writev
            ? !read_vector(pid, state, &memory, regs->rsi, regs->rdx)
            : !add_segment(state, &memory, regs->rsi, regs->rdx))
        return NOT_EMULATED;
    if (number == SYS_pread64)
        return read_at(pid, file, &memory, (int64_t)regs->r10, result);
    if (number == SYS_pwrite64)
        return write_at(pid, state, file, &memory, (int64_t)regs->r10, result);
    return transfer(pid, state, file, &memory, number == SYS_write || number == SYS_writev,
                    result);
}
