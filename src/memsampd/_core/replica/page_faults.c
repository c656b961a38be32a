/* What the replica gets when it touches a page that it lacks: that, and what it is likely to touch next. */
#include "core.h"
#include "page_faults.h"
#include "supplying.h"

#include <stdlib.h>

/* A page that is supplied in vain costs 2.5 us of CPU time where it comes with its neighbours, 4 where it does
 * not; one that is missed costs 20. */
#define LEAST_SHARE 0.12
#define PAGES_AROUND 4u
#define DENSE_MISSES 8u /* in a block of memory: more will follow, sooner or later */
#define UNEVEN_BYTES 256 /* by which steps of the same length may differ */

static bool
is_worth_supplying(const struct pages *p, unsigned rank)
{
    const bool may_be = rank != PAGES_NEAR || pages_may_try(p, rank, p->rank[rank].given);

    return (may_be && p->rank[rank].share >= LEAST_SHARE) || p->burst % PAGES_TRY_EVERY == 0;
}

/* Where a miss is as far from the last one as that was from the one before: by rows of a matrix, for instance.
 * Steps of less than two pages leave out few. */
static bool
steps_evenly(const struct page_stream *s, uint64_t missed)
{
    const int64_t off = (int64_t)(missed - s->at) - s->gap;

    return llabs(s->gap) >= (int64_t)(2 * PAGE_BYTES) && llabs(off) < UNEVEN_BYTES &&
           page_of(missed) != s->last + PAGE_BYTES && page_of(missed) != s->last - PAGE_BYTES;
}

/* Where a miss comes next behind one of the last ones, in the direction of that stream. */
static bool
follows(const struct page_stream *s, uint64_t page)
{
    const uint64_t up = page - s->last, down = s->last - page;

    return s->last != 0 && ((s->step >= 0 && up != 0 && up <= PAGES_AHEAD * PAGE_BYTES) ||
                            (s->step <= 0 && down != 0 && down <= PAGES_AHEAD * PAGE_BYTES));
}

/* The stream that a miss belongs to; perhaps its first. */
static struct page_stream *
find_stream(struct pages *p, uint64_t missed)
{
    for (size_t i = 0; i < PAGES_STREAMS; i++) { /* the latest one first */
        const size_t which = (p->latest + PAGES_STREAMS - i) % PAGES_STREAMS;
        struct page_stream *s = &p->stream[which];
        const bool is_even = steps_evenly(s, missed);
        if (!is_even && !follows(s, page_of(missed)))
            continue;
        s->step = missed > s->at ? 1 : -1;
        s->even = is_even ? s->even + 1 : 0;
        s->gap = is_even ? s->gap : (int64_t)(missed - s->at);
        s->run++;
        s->at = missed;
        s->last = page_of(missed);
        p->latest = which;
        return s;
    }
    const uint64_t before = p->stream[p->latest].at;
    p->latest = (p->latest + 1) % PAGES_STREAMS;
    p->stream[p->latest] = (struct page_stream){
        .last = page_of(missed),
        .at = missed,
        .gap = before == 0 ? 0 : (int64_t)(missed - before),
    };
    return &p->stream[p->latest];
}

/* How many pages to read where one was missed: more and more where one follows the other. */
static size_t
pages_wanted(const struct pages *p, const struct page_stream *stream)
{
    const unsigned run = stream->even != 0 ? stream->even : stream->run;

    if (run == 0 || !is_worth_supplying(p, PAGES_FOLLOWING))
        return 1;
    return run < 4 ? (size_t)1 << run : PAGES_AHEAD;
}

static bool
is_near_wanted(struct pages *p, const struct remote_area *area, uint64_t page)
{
    return page - area->start < area->end - area->start && !(pages_find(p, page)->flags & PAGE_IS_HERE);
}

/* Whether so many pages were missed one by one in a block of memory that all of it is to be read. */
static bool
is_dense(struct pages *p, uint64_t missed)
{
    const uint64_t number = missed / (BLOCK_PAGES * PAGE_BYTES);
    struct page_block *block = &p->block[number * 0x9e3779b97f4a7c15u >> 54];

    if (block->number != number || block->burst != p->burst) {
        *block = (struct page_block){.number = number, .burst = p->burst};
        p->blocks_met++;
    }
    return ++block->missed >= DENSE_MISSES && p->blocks_met <= p->blocks_most &&
           is_worth_supplying(p, PAGES_DENSE);
}

/* Those of a stream in even steps, ascending, which goes on behind them. */
static size_t
pages_in_steps(struct pages *p, const struct remote_area *area, size_t count, uint64_t *wanted)
{
    struct page_stream *stream = &p->stream[p->latest];
    const uint64_t missed = stream->at, last = missed + (count - 1) * (uint64_t)stream->gap;
    const uint64_t lowest = stream->gap > 0 ? missed : last;
    size_t there = 0;

    for (size_t i = 0; i < count; i++) {
        const uint64_t page = page_of(lowest + i * (uint64_t)llabs(stream->gap));
        if (page == page_of(missed) || is_near_wanted(p, area, page))
            wanted[there++] = page;
    }
    stream->at = last;
    return there;
}

/* The pages to be read where one was missed, ascending: those that come next where it goes through
 * memory, all of a block where it goes about in that, else its neighbours, as long as it is worth while. */
static size_t
pages_near(struct pages *p, const struct remote_area *area, uint64_t address, uint64_t *wanted)
{
    const struct page_stream *stream = find_stream(p, address);
    const bool may_be_far = p->reads_around && p->here < PAGES_AROUND_MOST;
    const uint64_t missed = page_of(address);
    size_t count = pages_wanted(p, stream), there = 0;
    uint64_t at = missed;

    p->ahead_rank = PAGES_FOLLOWING;
    if (count > 1 && stream->even != 0)
        return pages_in_steps(p, area, count, wanted);
    if (count > 1) {
        at -= stream->step < 0 ? (count - 1) * PAGE_BYTES : 0;
    } else if (may_be_far && is_dense(p, missed)) {
        count = BLOCK_PAGES;
        at = missed & ~(uint64_t)(count * PAGE_BYTES - 1);
        p->ahead_rank = PAGES_DENSE;
    } else if (is_worth_supplying(p, PAGES_NEAR)) {
        count = may_be_far ? PAGES_AHEAD : PAGES_AROUND;
        at = missed & ~(uint64_t)(count * PAGE_BYTES - 1);
        p->ahead_rank = PAGES_NEAR;
    }
    for (size_t i = 0; i < count; i++, at += PAGE_BYTES)
        if (at == missed || is_near_wanted(p, area, at))
            wanted[there++] = at;
    return there;
}

/* Pages that were supplied for that, beside the one that was missed. The stream goes on behind them. */
static void
note_ahead(struct pages *p, const uint64_t *page, size_t count, uint64_t missed)
{
    struct page_stream *stream = &p->stream[p->latest];

    for (size_t i = 0; i < count; i++) {
        struct page *ahead = pages_find(p, page[i]);
        if (page[i] == missed || ahead->address == 0 || !(ahead->flags & PAGE_IS_HERE))
            continue;
        if (!p->is_dry) {
            ahead->rank = p->ahead_rank;
            p->rank[p->ahead_rank].given++;
        }
        if (p->ahead_rank == PAGES_FOLLOWING && (page[i] > stream->last) == (stream->step > 0))
            stream->last = page[i];
    }
}

/* A page that the replica has: why did it fault? */
static enum page_fault
judge_fault(const struct page *page, struct process *process)
{
    const bool is_open = page->flags & PAGE_IS_WRITABLE && !(page->flags & PAGE_IS_GUARDED);

    if (process_show_again(process, page->address, is_open))
        return FAULT_SUPPLIED;
    return page->flags & PAGE_IS_GUARDED    ? FAULT_GUARDED
           : page->flags & PAGE_IS_WRITABLE ? FAULT_SUPPLIED
                                            : FAULT_FORBIDDEN;
}

enum page_fault
pages_fault(struct pages *p, struct process *process, struct remote *remote, uint64_t address)
{
    uint64_t wanted[BLOCK_PAGES];
    const uint64_t first = page_of(address);
    struct page *page = pages_find(p, first);

    if (page->address != 0 && page->flags & PAGE_IS_HERE)
        return judge_fault(page, process);
    if (p->here >= PAGES_MOST || p->used + BLOCK_PAGES > PAGES_KNOWN_MOST)
        return FAULT_FULL;
    const struct remote_area *area = remote_find(remote, first);
    if (area == NULL) {
        remote_forget(remote); /* it may have come since */
        area = remote_find(remote, first);
    }
    if (area == NULL)
        area = remote_find_growth(remote, first);
    if (area == NULL || !area->is_readable)
        return area == NULL || area->kind == AREA_PLAIN ? FAULT_UNMAPPED : FAULT_UNREADABLE;
    const size_t there = pages_near(p, area, address, wanted);
    pages_supply(p, process, remote, wanted, there);
    page = pages_find(p, first);
    if (page->address == 0 || !(page->flags & PAGE_IS_HERE))
        return FAULT_UNREADABLE;
    p->missed++;
    page->rank = 0; /* it was not predicted in time */
    pages_note_use(p, first);
    note_ahead(p, wanted, there, first);
    return FAULT_SUPPLIED;
}

void
pages_unguard(struct pages *p, struct process *process, uint64_t page)
{
    pages_find(p, page)->flags &= (uint8_t)~PAGE_IS_GUARDED;
    process_unprotect(process, page);
}
