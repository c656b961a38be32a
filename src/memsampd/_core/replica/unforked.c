#include "core.h"
#include "tracee.h"
#include "unforked.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
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

/* A clone that is as large has all that the target has: what it lacks is looked for no further. */
static unsigned long
pages_mapped(int statm)
{
    char text[32];
    ssize_t got = pread(statm, text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = '\0';
    return strtoul(text, NULL, 10);
}

/* The list of areas, or nothing where it is longer than there is room. */
static void
read_list(struct unforked *u)
{
    size_t length = 0;

    for (ssize_t got; length < UNFORKED_MAPS_BYTES; length += (size_t)got) {
        got = read(u->maps, u->maps_text + length, UNFORKED_MAPS_BYTES - length);
        if (got <= 0)
            break;
    }
    u->maps_text[length < UNFORKED_MAPS_BYTES ? length : 0] = '\0';
}

void
unforked_read(struct unforked *u, pid_t tid)
{
    double begun = tracee_now_seconds();
    uint8_t *to = u->buffer;

    u->target_pages = pages_mapped(u->statm);
    for (size_t i = 0; i < u->count; i++) {
        const struct unforked_area *area = &u->areas[i];
        u->state[i] = read_area(u, tid, area, to) ? UNFORKED_READ : UNFORKED_LOST;
        to += area->end - area->start;
    }
    if (u->count != 0)
        read_list(u);
    u->seconds = tracee_now_seconds() - begun;
}

static bool
is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

/* What is not zero; the rest is fresh memory as it is. */
static bool
write_piece(pid_t pid, uint64_t start, uint64_t end, uint8_t *from)
{
    size_t size = end - start;

    for (size_t at = 0, stop; at < size; at = stop + PAGE_BYTES) {
        for (stop = at; stop < size && !is_zero(from + stop); stop += PAGE_BYTES)
            continue;
        if (stop > at && !transfer(process_vm_writev, pid, start + at, from + at, stop - at))
            return false;
    }
    return true;
}

/* With the permissions of the moment of the stop: programs that make code change them all the time. */
static bool
rebuild_piece(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
              uint64_t start, uint64_t end, const char *perms, uint8_t *from)
{
    const uint64_t protection = (perms[0] == 'r' ? PROT_READ : 0) |
                                (perms[1] == 'w' ? PROT_WRITE : 0) |
                                (perms[2] == 'x' ? PROT_EXEC : 0);
    const uint64_t map[6] = {
        start, end - start, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, (uint64_t)-1, 0};
    const uint64_t protect[6] = {start, end - start, protection};
    const uint64_t unmap[6] = {start, end - start};
    long result;

    if (tracee_inject_shadow(pid, regs, syscall_address, SYS_mmap, map, &result) != TRACEE_OK)
        return false;
    if (write_piece(pid, start, end, from) &&
        (protection == (PROT_READ | PROT_WRITE) ||
         tracee_inject_shadow(pid, regs, syscall_address, SYS_mprotect, protect, &result) ==
             TRACEE_OK))
        return true;
    tracee_inject_shadow(pid, regs, syscall_address, SYS_munmap, unmap, &result);
    return false;
}

/* Those pieces of an area that the target had at the stop: it may have unmapped some since we planned.
 * `line` moves on through the target's areas. Whether there was any. */
static bool
rebuild_area(pid_t pid, const struct user_regs_struct *regs, uint64_t syscall_address,
             const struct unforked_area *area, uint8_t *from, const char **line)
{
    unsigned long start, end;
    char perms[5];
    bool is_there = false;

    for (const char *next; sscanf(*line, "%lx-%lx %4s", &start, &end, perms) == 3; *line = next) {
        if ((next = strchr(*line, '\n')) == NULL || start >= area->end)
            break;
        next++;
        if (end <= area->start)
            continue;
        uint64_t low = start > area->start ? start : area->start;
        uint64_t high = end < area->end ? end : area->end;
        is_there |= rebuild_piece(pid, regs, syscall_address, low, high, perms,
                                  from + (low - area->start));
        if (end > area->end)
            break; /* the next area may lie in it, too */
    }
    return is_there;
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
