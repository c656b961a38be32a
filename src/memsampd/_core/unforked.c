#include "core.h"
#include "tracee.h"
#include "unforked.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define PAGES_AT_ONCE 512u
#define PAGEMAP_TOUCHED ((uint64_t)3 << 62) /* present, or in swap */

/* From one process's memory, or into it; whether all of it could be. */
static bool
transfer(ssize_t (*call)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                         unsigned long, unsigned long),
         pid_t pid, uint64_t address, uint8_t *bytes, size_t size)
{
    struct iovec mine = {bytes, size}, theirs = {(void *)(uintptr_t)address, size};
    return call(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size;
}

/* Pages that were never touched are not read: that would map zeros there, or wake a handler of
 * userfaultfd, which may be the very thread that is stopped. */
static bool
read_area(struct unforked *u, pid_t tid, const struct unforked_area *area, uint8_t *to)
{
    uint64_t entries[PAGES_AT_ONCE];
    size_t pages = (area->end - area->start) / PAGE_BYTES;

    for (size_t first = 0; first < pages; first += PAGES_AT_ONCE) {
        size_t count = pages - first < PAGES_AT_ONCE ? pages - first : PAGES_AT_ONCE;
        off_t at = (off_t)((area->start / PAGE_BYTES + first) * sizeof *entries);
        ssize_t wanted = (ssize_t)(count * sizeof *entries);
        if (pread(u->pagemap, entries, (size_t)wanted, at) != wanted)
            return false;
        for (size_t page = 0, end; page < count; page = end + 1) {
            for (end = page; end < count && (entries[end] & PAGEMAP_TOUCHED) != 0; end++)
                continue;
            size_t offset = (first + page) * PAGE_BYTES, size = (end - page) * PAGE_BYTES;
            if (size != 0 && !transfer(process_vm_readv, tid, area->start + offset, to + offset,
                                       size))
                return false;
            u->bytes_read += size;
        }
    }
    return true;
}

void
unforked_read(struct unforked *u, pid_t tid)
{
    double begun = tracee_now_seconds();
    uint8_t *to = u->buffer;

    for (size_t i = 0; i < u->count; i++) {
        const struct unforked_area *area = &u->areas[i];
        u->state[i] = read_area(u, tid, area, to) ? UNFORKED_READ : UNFORKED_LOST;
        to += area->end - area->start;
    }
    size_t length = 0;
    for (ssize_t got; u->count != 0 && length < UNFORKED_MAPS_BYTES - 1; length += (size_t)got) {
        got = read(u->maps, u->maps_text + length, UNFORKED_MAPS_BYTES - 1 - length);
        if (got <= 0)
            break;
    }
    u->maps_text[length] = '\0';
    u->seconds = tracee_now_seconds() - begun;
}

static bool
is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* What is not zero; the rest is fresh memory as it is. */
static bool
write_area(pid_t pid, const struct unforked_area *area, uint8_t *from)
{
    size_t size = area->end - area->start;

    for (size_t at = 0, end; at < size; at = end + PAGE_BYTES) {
        for (end = at; end < size && !is_zero(from + end); end += PAGE_BYTES)
            continue;
        if (end > at && !transfer(process_vm_writev, pid, area->start + at, from + at, end - at))
            return false;
    }
    return true;
}

/* The permissions of the moment of the stop: programs that make code change them all the time.
 * `line` moves on through the target's areas. */
static bool
protect_area(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
             const struct unforked_area *area, const char **line)
{
    unsigned long start, end;
    char perms[5];
    long result;

    for (const char *next; sscanf(*line, "%lx-%lx %4s", &start, &end, perms) == 3; *line = next) {
        if ((next = strchr(*line, '\n')) == NULL || start >= area->end)
            break;
        next++;
        if (end <= area->start)
            continue;
        uint64_t from = start > area->start ? start : area->start;
        uint64_t to = end < area->end ? end : area->end;
        uint64_t protection = (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) |
                              (perms[2] == 'x' ? PROT_EXEC : 0);
        const uint64_t protect[6] = {from, to - from, protection};
        if (protection != (PROT_READ | PROT_WRITE) &&
            tracee_inject_shadow(pid, regs, syscall_address, SYS_mprotect, protect, &result) !=
                TRACEE_OK)
            return false;
        if (end > area->end)
            break; /* the next area may lie in it, too */
    }
    return true;
}

static bool
rebuild_area(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
             const struct unforked_area *area, uint8_t *from, const char **line)
{
    const uint64_t size = area->end - area->start;
    const uint64_t map[6] = {
        area->start, size, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, (uint64_t)-1, 0};
    const uint64_t unmap[6] = {area->start, size};
    long result;

    if (tracee_inject_shadow(pid, regs, syscall_address, SYS_mmap, map, &result) != TRACEE_OK)
        return false;
    if (write_area(pid, area, from) && protect_area(pid, regs, syscall_address, area, line))
        return true;
    tracee_inject_shadow(pid, regs, syscall_address, SYS_munmap, unmap, &result);
    return false;
}

void
unforked_rebuild(struct unforked *u, pid_t pid, const struct user_regs_struct *regs,
                 uint64_t syscall_address)
{
    uint8_t *from = u->buffer;
    const char *line = u->maps_text;

    for (size_t i = 0; i < u->count; i++) {
        const struct unforked_area *area = &u->areas[i];
        if (u->state[i] == UNFORKED_READ &&
            rebuild_area(pid, regs, syscall_address, area, from, &line))
            u->state[i] = UNFORKED_REBUILT;
        from += area->end - area->start;
    }
}
