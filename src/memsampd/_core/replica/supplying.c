/* Pages are read in the target and shown to the replica, beforehand and again where they may have changed. */
#include "core.h"
#include "ascending.h"
#include "supplying.h"

#include <stdlib.h>

#define PREDICTED_BATCH 64u

void
pages_read(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
           size_t count, struct batch *batch)
{
    for (size_t i = 0; i < count; i++) {
        batch->place[i] = process_place(process, address[i], pages_find(p, address[i])->era);
        batch->is_placed[i] = batch->place[i] != NULL;
        if (!batch->is_placed[i])
            batch->place[i] = p->bytes + i * PAGE_BYTES;
    }
    remote_read_pages(remote, address, count, batch->place, batch->result, batch->is_writable);
}

size_t
pages_show(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
           size_t count, const struct batch *batch)
{
    bool is_open[REMOTE_BATCH];
    size_t there = 0;

    for (size_t i = 0; i < count; i++) { /* a store into what may be code is to be noticed */
        const struct remote_area *area = remote_find(remote, address[i]);
        is_open[i] = batch->is_writable[i] && area != NULL && !area->is_executable;
    }
    for (size_t i = 0, end; i < count; i = end) {
        end = i + 1;
        if (batch->result[i] == PAGE_UNREADABLE)
            continue;
        while (end < count && address[end] == address[end - 1] + PAGE_BYTES &&
               batch->result[end] != PAGE_UNREADABLE && is_open[end] == is_open[i] &&
               batch->is_placed[end] == batch->is_placed[i])
            end++;
        const uint8_t *bytes = batch->is_placed[i] ? NULL : batch->place[i];
        size_t done = process_supply(process, address[i], bytes, end - i, is_open[i]);
        for (size_t k = i; k < i + done; k++) {
            struct page *page = pages_take(p, address[k]);
            if (page == NULL)
                continue;
            page->era = process->era;
            const struct remote_area *area = remote_find(remote, address[k]);
            p->shared += area != NULL && area->is_shared;
            if (p->gifts < PAGES_SLOTS)
                p->given[p->gifts++] = (uint32_t)(page - p->slot);
            page->flags = (uint8_t)(PAGE_IS_HERE | (batch->is_writable[k] ? PAGE_IS_WRITABLE : 0) |
                                    (batch->is_writable[k] && !is_open[k] ? PAGE_IS_GUARDED : 0) |
                                    (area != NULL && area->is_shared ? PAGE_IS_SHARED : 0));
        }
        there += done;
    }
    p->here += there;
    return there;
}

size_t
pages_supply(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
             size_t count)
{
    struct batch batch;

    if (p->used + count > PAGES_KNOWN_MOST) /* what is not noted here might be written over later */
        return 0;
    pages_read(p, process, remote, address, count, &batch);
    return pages_show(p, process, remote, address, count, &batch);
}

/* The next pages to be supplied beforehand, `most` at most: those that it has are passed over. */
static size_t
next_wanted(struct pages *p, uint64_t *wanted, size_t most)
{
    size_t count = 0;

    for (; p->tried < p->wanted && count < most; p->tried++)
        if (!(pages_find(p, p->order[p->tried])->flags & PAGE_IS_HERE))
            wanted[count++] = p->order[p->tried];
    qsort(wanted, count, sizeof *wanted, ascending_uint64); /* of two ranks, perhaps */
    return count;
}

void
pages_predict(struct pages *p, struct process *process, struct remote *remote, double seconds)
{
    const double started = now_seconds();
    const uint64_t before = p->predicted;
    uint64_t wanted[PREDICTED_BATCH];
    double spent = 0.0;

    while (p->here < PAGES_MOST) {
        const double left = (seconds - spent) / p->seconds_a_page;
        const size_t most = left >= PREDICTED_BATCH ? PREDICTED_BATCH : (size_t)(left > 0 ? left : 0);
        const size_t count = next_wanted(p, wanted, most);
        if (count == 0)
            break;
        p->predicted += pages_supply(p, process, remote, wanted, count);
        for (size_t i = 0; i < count; i++)
            p->rank[pages_find(p, wanted[i])->rank].given++;
        spent = now_seconds() - started;
    }
    if (p->predicted - before >= PREDICTED_BATCH)
        p->seconds_a_page += 0.25 * (spent / (double)(p->predicted - before) - p->seconds_a_page);
}

/* Read pages again that the replica has; drop those that cannot be read. */
static void
refresh(struct pages *p, struct process *process, struct remote *remote, uint64_t *address,
        size_t count)
{
    struct batch batch;

    qsort(address, count, sizeof *address, ascending_uint64);
    pages_read(p, process, remote, address, count, &batch);
    for (size_t i = 0; i < count; i++) {
        struct page *page = pages_find(p, address[i]);
        if (batch.result[i] != PAGE_UNREADABLE &&
            (batch.is_placed[i] || process_refresh(process, address[i], batch.place[i])))
            continue;
        process_drop(process, address[i], address[i] + PAGE_BYTES);
        p->here -= page->flags & PAGE_IS_HERE; /* it may be there twice */
        page->flags = 0;
    }
}

void
pages_mark_written(struct pages *p, uint64_t start, uint64_t end)
{
    start = page_of(start);
    for (uint64_t at = start; at < end && at - start < (uint64_t)PAGES_MOST * PAGE_BYTES;
         at += PAGE_BYTES) {
        struct page *page = pages_find(p, at);
        if (page->address == 0 || !(page->flags & PAGE_IS_HERE))
            continue;
        p->stale += !(page->flags & PAGE_IS_STALE);
        page->flags |= PAGE_IS_STALE;
    }
}

void
pages_refresh(struct pages *p, struct process *process, struct remote *remote, bool all)
{
    const uint8_t wanted = PAGE_IS_STALE | PAGE_IS_SHARED | (all ? PAGE_IS_WRITABLE : 0);
    uint64_t address[REMOTE_BATCH];
    size_t count = 0;

    if (p->stale == 0 && p->shared == 0 && !all)
        return;
    for (size_t i = 0; i < p->gifts; i++) {
        struct page *page = &p->slot[p->given[i]];
        if (!(page->flags & PAGE_IS_HERE) || !(page->flags & wanted))
            continue;
        page->flags &= (uint8_t)~PAGE_IS_STALE;
        address[count++] = page->address;
        if (count == REMOTE_BATCH) {
            refresh(p, process, remote, address, count);
            count = 0;
        }
    }
    refresh(p, process, remote, address, count);
    p->stale = 0;
}

void
pages_drop(struct pages *p, struct process *process, uint64_t start, uint64_t end)
{
    start = page_of(start);
    bool any = false;
    for (size_t i = 0; i < p->gifts; i++) {
        struct page *page = &p->slot[p->given[i]];
        if (page->flags & PAGE_IS_HERE && page->address - start < end - start) {
            page->flags = 0;
            p->here--;
            any = true;
        }
    }
    if (any)
        process_drop(process, start, page_of(end + PAGE_BYTES - 1));
}
