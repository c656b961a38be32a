/* Reading pages of the target without bringing any in. */
#include "core.h"
#include "remote.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define LOOK_ACROSS 12u /* pages */

bool
remote_copy(pid_t pid, uint64_t address, void *bytes, size_t size)
{
    struct iovec mine = {bytes, size}, theirs = {(void *)(uintptr_t)address, size};
    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size;
}

bool
remote_copy_present(pid_t pid, uint64_t address, void *bytes, size_t size)
{
    bool is_present = true;
    uint64_t entry;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)pid);
    int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    for (uint64_t page = page_of(address); is_present && page < address + size; page += PAGE_BYTES)
        is_present = pread(pagemap, &entry, sizeof entry, (off_t)(page / PAGE_BYTES * 8)) ==
                         (ssize_t)sizeof entry && (entry & PRESENT);
    if (pagemap >= 0)
        close(pagemap);
    return is_present && remote_copy(pid, address, bytes, size);
}

/* What the page map says of some consecutive pages; false if it cannot be read. */
static bool
read_entries(struct remote *r, uint64_t page, size_t count, uint64_t *entry)
{
    const ssize_t bytes = (ssize_t)(8 * count);
    return pread(r->pagemap, entry, (size_t)bytes, (off_t)(page / PAGE_BYTES * 8)) == bytes;
}

static enum page_read
judge_page(struct remote *r, const struct remote_area *area, uint64_t entry)
{
    if (entry & PRESENT)
        return PAGE_READ;
    if (!(entry & SWAPPED) && area->is_anonymous && !area->is_shared && !r->supplies_pages)
        return PAGE_ZERO;
    return PAGE_UNREADABLE;
}

/* Our own page, through a pipe: a write from memory that cannot be read fails, where a load would kill;
 * the page of a clock that is not in use cannot. */
static bool
copy_clock_page(struct remote *r, const struct remote_area *area, uint64_t page, uint8_t *bytes)
{
    const void *ours = (const void *)(uintptr_t)(page + area->clock_offset);

    if (!r->shares_clock || (r->pipe[0] < 0 && pipe2(r->pipe, O_CLOEXEC | O_NONBLOCK) < 0))
        return false;
    ssize_t written = write(r->pipe[1], ours, PAGE_BYTES);
    return written > 0 && read(r->pipe[0], bytes, PAGE_BYTES) == written &&
           written == (ssize_t)PAGE_BYTES;
}

/* By the kernel, which fails where there is no memory for a page of a file; a store would kill. */
static bool
clear_page(uint8_t *place)
{
    static const uint8_t zeros[PAGE_BYTES];
    return remote_copy(getpid(), (uint64_t)(uintptr_t)zeros, place, PAGE_BYTES);
}

/* What the page map says of pages, those between that are not asked for included where there are few: one
 * more takes 0.1 us, another call 1.3. */
static void
look_up_pages(struct remote *r, const uint64_t *page, size_t count, uint64_t *entry)
{
    uint64_t span[REMOTE_BATCH];

    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && page[end] - page[end - 1] <= LOOK_ACROSS * PAGE_BYTES &&
                          page[end] - page[i] < sizeof span / sizeof span[0] * PAGE_BYTES;)
            end++;
        const size_t all = (page[end - 1] - page[i]) / PAGE_BYTES + 1;
        const bool is_read = read_entries(r, page[i], all, span); /* not where it has ended */
        for (size_t k = i; k < end; k++)
            entry[k] = is_read ? span[(page[k] - page[i]) / PAGE_BYTES] : SWAPPED;
    }
}

/* The next pages to be read, those that follow each other in one piece on both sides. Returns how many. */
static size_t
gather(const uint64_t *page, uint8_t *const *place, const size_t *which, size_t count,
       struct iovec *theirs, struct iovec *mine)
{
    size_t pieces = 0;

    for (size_t i = 0; i < count; i++) {
        const uint64_t from = page[which[i]];
        uint8_t *to = place[which[i]];
        struct iovec *last = pieces == 0 ? NULL : &theirs[pieces - 1];
        if (last != NULL && from == (uint64_t)(uintptr_t)last->iov_base + last->iov_len &&
            to == (uint8_t *)mine[pieces - 1].iov_base + last->iov_len) {
            last->iov_len += PAGE_BYTES;
            mine[pieces - 1].iov_len += PAGE_BYTES;
            continue;
        }
        theirs[pieces] = (struct iovec){(void *)(uintptr_t)from, PAGE_BYTES};
        mine[pieces++] = (struct iovec){to, PAGE_BYTES};
    }
    return pieces;
}

/* Read those that are present; what cannot be read all the same is told. */
static void
read_present(struct remote *r, const uint64_t *page, uint8_t *const *place, const size_t *which,
             size_t count, uint8_t *result)
{
    struct iovec theirs[REMOTE_BATCH], mine[REMOTE_BATCH];

    if (count == 1) { /* half of what process_vm_readv takes */
        if (pread(r->memory, place[which[0]], PAGE_BYTES, (off_t)page[which[0]]) != (ssize_t)PAGE_BYTES)
            result[which[0]] = PAGE_UNREADABLE;
        return;
    }
    for (size_t done = 0; done < count;) {
        const size_t pieces = gather(page, place, which + done, count - done, theirs, mine);
        const ssize_t got = process_vm_readv(r->pid, mine, pieces, theirs, pieces, 0);
        done += got > 0 ? (size_t)got / PAGE_BYTES : 0;
        if (done < count) /* this one cannot be read */
            result[which[done++]] = PAGE_UNREADABLE;
    }
}

/* What a running target has given back looks like memory that it has not touched yet. */
static void
check_zeros(struct remote *r, const uint64_t *page, size_t count, uint8_t *result)
{
    if (memchr(result, PAGE_ZERO, count) == NULL)
        return;
    remote_forget(r);
    for (size_t i = 0; i < count; i++) {
        if (result[i] != PAGE_ZERO)
            continue;
        const struct remote_area *area = remote_find(r, page[i]);
        if (area == NULL)
            area = remote_find_growth(r, page[i]);
        if (area == NULL || !area->is_readable || !area->is_anonymous)
            result[i] = PAGE_UNREADABLE;
    }
}

void
remote_read_pages(struct remote *r, const uint64_t *page, size_t count, uint8_t *const *place,
                  uint8_t *result, bool *is_writable)
{
    size_t which[REMOTE_BATCH], wanted = 0;
    uint64_t entry[REMOTE_BATCH];

    look_up_pages(r, page, count, entry);
    for (size_t i = 0; i < count; i++) {
        const struct remote_area *area = remote_find(r, page[i]);
        result[i] = PAGE_UNREADABLE;
        is_writable[i] = area != NULL && area->is_writable;
        if (area == NULL || !area->is_readable || area->kind == AREA_SPECIAL)
            continue;
        if (area->kind == AREA_CLOCK) {
            if (copy_clock_page(r, area, page[i], place[i]))
                result[i] = PAGE_READ;
            continue;
        }
        result[i] = (uint8_t)judge_page(r, area, entry[i]);
        if (result[i] == PAGE_ZERO && !clear_page(place[i]))
            result[i] = PAGE_UNREADABLE;
        else if (result[i] == PAGE_READ)
            which[wanted++] = i;
    }
    read_present(r, page, place, which, wanted, result);
    if (r->is_running)
        check_zeros(r, page, count, result);
}

void
remote_read_code(void *remote, const uint64_t *page, size_t count, uint8_t *bytes,
                 enum code_kind *kind)
{
    struct remote *r = remote;
    uint8_t result[CODE_BATCH], *place[CODE_BATCH] = {NULL};
    bool is_writable[CODE_BATCH];
    uint64_t entry;

    for (size_t i = 0; i < count; i++)
        place[i] = bytes + i * PAGE_BYTES;
    remote_read_pages(r, page, count, place, result, is_writable);
    for (size_t i = 0; i < count; i++) {
        kind[i] = CODE_UNREADABLE;
        if (result[i] != PAGE_READ &&
            (page[i] >> 63 != 0 || !read_entries(r, page[i], 1, &entry) || !(entry & PRESENT) ||
             pread(r->memory, bytes + i * PAGE_BYTES, PAGE_BYTES, (off_t)page[i]) !=
                 (ssize_t)PAGE_BYTES))
            continue;
        const struct remote_area *area = remote_find(r, page[i]);
        const bool is_stable =
            area != NULL && !area->is_writable && !area->is_anonymous && !area->is_shared;
        kind[i] = is_stable ? CODE_STABLE : CODE_VOLATILE;
    }
}
