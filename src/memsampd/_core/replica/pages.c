#include "core.h"
#include "ascending.h"
#include "pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FORGET_AFTER 8     /* bursts: no use of it is known any more */
#define FORGET_EVERY 16
#define LEAST_RANK_OF_LAST 5u /* of pages that the last burst touched */
#define FIRST_SHARE 0.7
#define FIRST_SHARE_OF_OLD 0.25 /* of those that the last burst did not touch: tried once */
/* A page that is supplied in vain costs less than a tenth of what one that is missed does. Every so many
 * bursts the unlikely ones are tried all the same. */
#define LEAST_SHARE 0.1
#define LEAST_PREDICTED 0.2 /* of pages of earlier bursts, which are supplied at once, in the hold */
#define TRY_EVERY 16
#define TRIED_PAGES 64u /* of these */
#define LEAST_AROUND 0.06 /* of fifteen neighbours one: as much as a miss costs */
#define LEARNING 0.3
#define LEARNING_BY_MANY 0.8
#define MANY_PAGES 256u
#define FIRST_SECONDS_A_PAGE 4e-6
#define PREDICTED_BATCH 64u
#define PAGES_AROUND 4u
#define BLOCK_PAGES REMOTE_BATCH
#define DENSE_MISSES 8u /* in a block of memory: more will follow, sooner or later */
#define FIRST_SECONDS_A_READ 2e-6
#define LEAST_STORES 4u /* in a block */
#define PAGE_OF_ADDRESS 0x7ffffffff000u

int
pages_init(struct pages *p)
{
    memset(p, 0, sizeof *p);
    p->seconds_a_page = FIRST_SECONDS_A_PAGE;
    p->seconds_a_read = FIRST_SECONDS_A_READ;
    for (unsigned i = 0; i < PAGES_ALL_RANKS; i++)
        p->rank[i].share = i < LEAST_RANK_OF_LAST ? FIRST_SHARE_OF_OLD : FIRST_SHARE;
    p->slot = calloc(PAGES_SLOTS, sizeof *p->slot);
    p->live = malloc(PAGES_SLOTS * sizeof *p->live);
    p->order = malloc(PAGES_SLOTS * sizeof *p->order);
    p->given = malloc(PAGES_SLOTS * sizeof *p->given);
    void *bytes = mmap(NULL, REMOTE_BATCH * PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    p->bytes = bytes == MAP_FAILED ? NULL : bytes;
    return p->slot != NULL && p->live != NULL && p->order != NULL && p->given != NULL &&
                   p->bytes != NULL ? 0 : -1;
}

void
pages_free(struct pages *p)
{
    free(p->slot);
    free(p->live);
    free(p->order);
    free(p->given);
    if (p->bytes != NULL)
        munmap(p->bytes, REMOTE_BATCH * PAGE_BYTES);
    memset(p, 0, sizeof *p);
}

static struct page *
find(struct pages *p, uint64_t address)
{
    size_t at = (size_t)(address * 0x9e3779b97f4a7c15u >> 40) & (PAGES_SLOTS - 1);

    while (p->slot[at].address != 0 && p->slot[at].address != address)
        at = (at + 1) & (PAGES_SLOTS - 1);
    return &p->slot[at];
}

/* Its slot, made if need be; NULL: the table is full. */
static struct page *
take(struct pages *p, uint64_t address)
{
    struct page *page = find(p, address);

    if (page->address == 0) {
        if (p->used >= PAGES_SLOTS / 4 * 3)
            return NULL;
        p->live[p->used++] = (uint32_t)(page - p->slot);
        *page = (struct page){.address = address};
    }
    return page;
}

/* How likely a page is to be touched, 0..12: by when it was, and how often, in the last bursts. */
static unsigned
likeliness(const struct pages *p, const struct page *page)
{
    uint32_t age = p->burst - 1 - page->last_burst; /* the present one has not begun */
    unsigned uses = age < FORGET_AFTER ? (unsigned)(page->uses << age) & 0xff : 0;

    return uses == 0 ? 0 : (unsigned)__builtin_popcount(uses) + (uses & 1 ? LEAST_RANK_OF_LAST - 1 : 0);
}

/* Forget what was not touched for long, or, with little room left, what is least likely. */
static void
forget_old(struct pages *p)
{
    const bool is_full = p->used > PAGES_SLOTS / 2;
    const size_t before = p->used;

    if ((!is_full && p->burst % FORGET_EVERY != 0) || before == 0)
        return;
    struct page *old = malloc(before * sizeof *old);
    if (old == NULL)
        return;
    for (size_t i = 0; i < before; i++) {
        old[i] = p->slot[p->live[i]];
        p->slot[p->live[i]] = (struct page){0};
    }
    p->used = 0;
    for (unsigned rank = PAGES_RANKS; rank-- > 1;)
        for (size_t i = 0; i < before && p->used < PAGES_SLOTS / 3; i++)
            if (likeliness(p, &old[i]) == rank)
                *take(p, old[i].address) = old[i];
    free(old);
}

/* How many of the predicted pages of each rank were touched. */
static void
learn_shares(struct pages *p)
{
    for (unsigned i = 0; i < PAGES_ALL_RANKS; i++) {
        const bool are_many = p->rank[i].given >= MANY_PAGES;
        if (p->rank[i].given != 0 && !(p->is_cut && i == PAGES_DENSE))
            p->rank[i].share += (are_many ? LEARNING_BY_MANY : LEARNING) *
                                ((double)p->rank[i].used / p->rank[i].given - p->rank[i].share);
        p->rank[i].given = p->rank[i].used = 0;
    }
}

static bool
is_worth_supplying(const struct pages *p, unsigned rank)
{
    return p->rank[rank].share >= LEAST_SHARE || p->burst % TRY_EVERY == 0;
}

/* Whether another page of a rank is to be supplied before it is touched, if so many of them are. */
static bool
is_worth_predicting(const struct pages *p, unsigned rank, size_t many)
{
    return rank != 0 && (p->rank[rank].share >= LEAST_PREDICTED ||
                         (p->burst % TRY_EVERY == 0 && many < TRIED_PAGES));
}

/* The likely ones first; those of one rank by address, as they are read in one go. */
static void
rank_pages(struct pages *p)
{
    size_t many[PAGES_RANKS] = {0}, end[PAGES_RANKS];

    for (size_t i = 0; i < p->used; i++) {
        struct page *page = &p->slot[p->live[i]];
        const unsigned rank = likeliness(p, page);
        page->rank = (uint8_t)(is_worth_predicting(p, rank, many[rank]) ? rank : 0);
        many[page->rank]++;
    }
    p->wanted = 0;
    for (unsigned rank = PAGES_RANKS; rank-- > 1;) {
        end[rank] = p->wanted;
        p->wanted += many[rank];
    }
    for (size_t i = 0; i < p->used; i++) {
        const struct page *page = &p->slot[p->live[i]];
        if (page->rank != 0)
            p->order[end[page->rank]++] = page->address;
    }
    for (unsigned rank = 1; rank < PAGES_RANKS; rank++)
        qsort(p->order + end[rank] - many[rank], many[rank], sizeof *p->order, ascending_uint64);
}

void
pages_begin(struct pages *p)
{
    for (size_t i = 0; i < p->gifts; i++)
        p->slot[p->given[i]].flags = 0;
    learn_shares(p);
    p->burst++;
    p->here = p->gifts = p->shared = p->stale = p->wanted = p->tried = 0;
    p->latest = 0;
    p->is_dry = p->is_cut = false;
    memset(p->stream, 0, sizeof p->stream);
    for (size_t i = 0; i < PAGES_STORED_BLOCKS; i++)
        p->stored[i].stores -= p->stored[i].stores / 4;
    p->predicted = p->missed = 0;
    forget_old(p);
    rank_pages(p);
}

/* What the target's pages hold now. */
struct batch {
    uint8_t result[REMOTE_BATCH];
    uint8_t *place[REMOTE_BATCH];
    bool is_placed[REMOTE_BATCH]; /* where the replica has it; else to be copied there */
    bool is_writable[REMOTE_BATCH];
};

static void
read_batch(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
           size_t count, struct batch *batch)
{
    for (size_t i = 0; i < count; i++) {
        batch->place[i] = process_place(process, address[i], find(p, address[i])->era);
        batch->is_placed[i] = batch->place[i] != NULL;
        if (!batch->is_placed[i])
            batch->place[i] = p->bytes + i * PAGE_BYTES;
    }
    remote_read_pages(remote, address, count, batch->place, batch->result, batch->is_writable);
}

/* Show the replica pages that were read, run by run. Returns how many of them are there. */
static size_t
show(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
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
            struct page *page = take(p, address[k]);
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

/* Read pages and supply them. Returns how many of them are there. */
static size_t
supply(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
       size_t count)
{
    struct batch batch;

    if (p->used + count > PAGES_SLOTS / 4 * 3) /* what is not noted here might be written over later */
        return 0;
    read_batch(p, process, remote, address, count, &batch);
    return show(p, process, remote, address, count, &batch);
}

/* The next pages to be supplied beforehand, `most` at most: those that it has are passed over. */
static size_t
next_wanted(struct pages *p, uint64_t *wanted, size_t most)
{
    size_t count = 0;

    for (; p->tried < p->wanted && count < most; p->tried++)
        if (!(find(p, p->order[p->tried])->flags & PAGE_IS_HERE))
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
        p->predicted += supply(p, process, remote, wanted, count);
        for (size_t i = 0; i < count; i++)
            p->rank[find(p, wanted[i])->rank].given++;
        spent = now_seconds() - started;
    }
    if (p->predicted - before >= PREDICTED_BATCH)
        p->seconds_a_page += 0.25 * (spent / (double)(p->predicted - before) - p->seconds_a_page);
}

/* ---- Memory that is stored to: a replica that goes on finds there what the target did meanwhile ---- */

void
pages_note_stores(struct pages *p, const uint64_t *address, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t number = address[i] / (BLOCK_PAGES * PAGE_BYTES);
        struct stored_block *block = &p->stored[number * 0x9e3779b97f4a7c15u >> 56];
        if (block->number == number)
            block->stores++;
        else if (block->stores == 0)
            *block = (struct stored_block){.number = number, .stores = 1};
        else
            block->stores--;
    }
}

static int
by_stores(const void *a, const void *b)
{
    const uint32_t x = ((const struct stored_block *)a)->stores, y = ((const struct stored_block *)b)->stores;
    return x < y ? 1 : x == y ? 0 : -1;
}

/* Pages of a block that the replica lacks and that can be read to where it will have them. */
static size_t
pages_of_block(struct pages *p, struct process *process, uint64_t number, uint64_t *wanted)
{
    size_t count = 0;

    for (size_t i = 0; i < BLOCK_PAGES; i++) {
        const struct page *page = find(p, (number * BLOCK_PAGES + i) * PAGE_BYTES);
        if (page->address != 0 && !(page->flags & (PAGE_IS_HERE | PAGE_IS_READ)) &&
            process_place(process, page->address, page->era) != NULL)
            wanted[count++] = page->address;
    }
    return count;
}

static void
read_pages(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
           size_t count)
{
    struct batch batch;

    read_batch(p, process, remote, address, count, &batch);
    for (size_t i = 0; i < count; i++) {
        struct page *page = find(p, address[i]);
        if (batch.result[i] == PAGE_UNREADABLE || p->gifts >= PAGES_SLOTS)
            continue;
        p->given[p->gifts++] = (uint32_t)(page - p->slot);
        page->flags = (uint8_t)(PAGE_IS_READ | (batch.is_writable[i] ? PAGE_IS_WRITABLE : 0));
    }
}

void
pages_read_stored(struct pages *p, struct process *process, struct remote *remote, double seconds)
{
    const double started = now_seconds();
    struct stored_block block[PAGES_STORED_BLOCKS];
    uint64_t wanted[BLOCK_PAGES];
    double spent = 0.0;
    size_t read = 0;

    memcpy(block, p->stored, sizeof block);
    qsort(block, PAGES_STORED_BLOCKS, sizeof *block, by_stores);
    for (size_t i = 0; i < PAGES_STORED_BLOCKS && block[i].stores >= LEAST_STORES; i++) {
        const double room = (seconds - spent) / p->seconds_a_read;
        if (room < 1)
            break;
        size_t count = pages_of_block(p, process, block[i].number, wanted);
        count = (double)count < room ? count : (size_t)room;
        read_pages(p, process, remote, wanted, count);
        read += count;
        spent = now_seconds() - started;
    }
    if (read >= MANY_PAGES)
        p->seconds_a_read += LEARNING * (spent / (double)read - p->seconds_a_read);
}

void
pages_show_read(struct pages *p, struct process *process, struct remote *remote)
{
    struct batch batch;
    uint64_t address[REMOTE_BATCH];
    const size_t gifts = p->gifts;
    size_t count = 0;

    for (size_t i = 0; i < gifts; i++) {
        struct page *page = &p->slot[p->given[i]];
        if (page->flags & PAGE_IS_READ) {
            batch.result[count] = PAGE_READ;
            batch.is_placed[count] = true;
            batch.is_writable[count] = (page->flags & PAGE_IS_WRITABLE) != 0;
            address[count++] = page->address;
            page->flags = 0;
        }
        if (count == REMOTE_BATCH || i + 1 == gifts) {
            show(p, process, remote, address, count, &batch);
            count = 0;
        }
    }
}

static void
note_use(struct pages *p, uint64_t address)
{
    struct page *page = find(p, address);

    if (page->address == 0)
        return;
    if (page->last_burst != p->burst) {
        uint32_t age = p->burst - page->last_burst;
        page->uses = (uint8_t)(age < FORGET_AFTER ? page->uses << age : 0);
        page->last_burst = p->burst;
        p->rank[page->rank].used += page->rank != 0 && page->flags & PAGE_IS_HERE;
    }
    page->uses |= 1;
}

void
pages_note_lines(struct pages *p, const uint64_t *line, size_t count, unsigned shift)
{
    uint64_t last = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t page = line[i] << shift & PAGE_OF_ADDRESS;
        if (page != last)
            note_use(p, page);
        last = page;
    }
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
    if (stream->run == 0 || !is_worth_supplying(p, PAGES_FOLLOWING))
        return 1;
    return stream->run < 4 ? (size_t)1 << stream->run : PAGES_AHEAD;
}

static bool
is_near_wanted(struct pages *p, const struct remote_area *area, uint64_t page)
{
    return page - area->start < area->end - area->start && !(find(p, page)->flags & PAGE_IS_HERE);
}

/* Whether so many pages were missed one by one in a block of memory that all of it is to be read. */
static bool
is_dense(struct pages *p, uint64_t missed)
{
    const uint64_t number = missed / (BLOCK_PAGES * PAGE_BYTES);
    struct page_block *block = &p->block[number * 0x9e3779b97f4a7c15u >> 54];

    if (block->number != number || block->burst != p->burst)
        *block = (struct page_block){.number = number, .burst = p->burst};
    return ++block->missed >= DENSE_MISSES && is_worth_supplying(p, PAGES_DENSE);
}

/* The pages to be read where one was missed, ascending: those that come next where it goes through
 * memory, all of a block where it goes about in that, else its neighbours, as long as it is worth while. */
static size_t
pages_near(struct pages *p, const struct remote_area *area, uint64_t missed, uint64_t *wanted)
{
    const struct page_stream *stream = find_stream(p, missed);
    const bool pays = p->rank[PAGES_NEAR].share >= LEAST_AROUND || p->burst % TRY_EVERY == 0;
    const bool may_be_far = p->reads_around && pays && p->here < PAGES_AROUND_MOST;
    size_t count = pages_wanted(p, stream), there = 0;
    uint64_t at = missed;

    p->ahead_rank = PAGES_FOLLOWING;
    if (count > 1) {
        at -= stream->step < 0 ? (count - 1) * PAGE_BYTES : 0;
    } else if (p->reads_blocks && p->here < PAGES_AROUND_MOST && is_dense(p, missed)) {
        count = BLOCK_PAGES;
        at = missed & ~(uint64_t)(count * PAGE_BYTES - 1);
        p->ahead_rank = PAGES_DENSE;
    } else if (may_be_far || is_worth_supplying(p, PAGES_NEAR)) {
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
        struct page *ahead = find(p, page[i]);
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
    struct page *page = find(p, first);

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
    supply(p, process, remote, wanted, there);
    page = find(p, first);
    if (page->address == 0 || !(page->flags & PAGE_IS_HERE))
        return FAULT_UNREADABLE;
    p->missed++;
    page->rank = 0; /* it was not predicted in time */
    note_use(p, first);
    note_ahead(p, wanted, there, first);
    return FAULT_SUPPLIED;
}

void
pages_unguard(struct pages *p, struct process *process, uint64_t page)
{
    find(p, page)->flags &= (uint8_t)~PAGE_IS_GUARDED;
    process_unprotect(process, page);
}

/* Read pages again that the replica has; drop those that cannot be read. */
static void
refresh(struct pages *p, struct process *process, struct remote *remote, uint64_t *address,
        size_t count)
{
    struct batch batch;

    qsort(address, count, sizeof *address, ascending_uint64);
    read_batch(p, process, remote, address, count, &batch);
    for (size_t i = 0; i < count; i++) {
        struct page *page = find(p, address[i]);
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
        struct page *page = find(p, at);
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
