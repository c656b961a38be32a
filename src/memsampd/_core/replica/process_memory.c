/* The pages of a replica. */
#include "core.h"
#include "process.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP 2
#endif

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
            more = frames_write(&p->frames, at, from, PAGE_BYTES) ? show_pages(p, at, 1, is_writable) : 0;
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
    return frames_write(&p->frames, page, bytes, PAGE_BYTES);
}

static bool
set_protection(struct process *p, uint64_t page, uint64_t mode)
{
    struct uffdio_writeprotect change = {.range = {page, PAGE_BYTES}, .mode = mode};

    return !p->can_protect || ioctl(p->uffd, UFFDIO_WRITEPROTECT, &change) == 0;
}

bool
process_unprotect(struct process *p, uint64_t page)
{
    return set_protection(p, page, UFFDIO_WRITEPROTECT_MODE_DONTWAKE);
}

bool
process_protect(struct process *p, uint64_t page)
{
    return set_protection(p, page, UFFDIO_WRITEPROTECT_MODE_WP);
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
