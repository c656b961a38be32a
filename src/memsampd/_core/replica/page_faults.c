/* What the replica gets when it touches a page that it lacks: that, and what it is likely to touch next. */
#include "core.h"
#include "page_faults.h"
#include "supplying.h"

#define LEAST_SHARE 0.1 /* a page that is supplied in vain costs less than a tenth of one that is missed */
#define LEAST_AROUND 0.06 /* of fifteen neighbours one: as much as a miss costs */
#define PAGES_AROUND 4u
#define DENSE_MISSES 8u /* in a block of memory: more will follow, sooner or later */

static bool
is_worth_supplying(const struct pages *p, unsigned rank, double least_share)
{
    return p->rank[rank].share >= least_share || p->burst % PAGES_TRY_EVERY == 0;
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
        if (!follows(s, missed))
            continue;
        s->step = missed > s->last ? 1 : -1;
        s->run++;
        s->last = missed;
        p->latest = which;
        return s;
    }
    p->latest = (p->latest + 1) % PAGES_STREAMS;
    p->stream[p->latest] = (struct page_stream){.last = missed};
    return &p->stream[p->latest];
}

/* How many pages to read where one was missed: more and more where one follows the other. */
static size_t
pages_wanted(const struct pages *p, const struct page_stream *stream)
{
    if (stream->run == 0 || !is_worth_supplying(p, PAGES_FOLLOWING, LEAST_SHARE))
        return 1;
    return stream->run < 4 ? (size_t)1 << stream->run : PAGES_AHEAD;
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

    if (block->number != number || block->burst != p->burst)
        *block = (struct page_block){.number = number, .burst = p->burst};
    return ++block->missed >= DENSE_MISSES && is_worth_supplying(p, PAGES_DENSE, LEAST_SHARE);
}

/* The pages to be read where one was missed, ascending: those that come next where it goes through
 * memory, all of a block where it goes about in that, else its neighbours, as long as it is worth while. */
static size_t
pages_near(struct pages *p, const struct remote_area *area, uint64_t missed, uint64_t *wanted)
{
    const struct page_stream *stream = find_stream(p, missed);
    const bool may_be_far = p->reads_around && p->here < PAGES_AROUND_MOST &&
                            is_worth_supplying(p, PAGES_NEAR, LEAST_AROUND);
    size_t count = pages_wanted(p, stream), there = 0;
    uint64_t at = missed;

    p->ahead_rank = PAGES_FOLLOWING;
    if (count > 1) {
        at -= stream->step < 0 ? (count - 1) * PAGE_BYTES : 0;
    } else if (p->reads_blocks && p->here < PAGES_AROUND_MOST && is_dense(p, missed)) {
        count = BLOCK_PAGES;
        at = missed & ~(uint64_t)(count * PAGE_BYTES - 1);
        p->ahead_rank = PAGES_DENSE;
    } else if (may_be_far || is_worth_supplying(p, PAGES_NEAR, LEAST_SHARE)) {
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
    if (p->here >= PAGES_MOST)
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
    const size_t there = pages_near(p, area, first, wanted);
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
