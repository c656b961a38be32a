/* The pages that bursts touched lately: which they are, and how likely each is to be needed again. */
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
#define LEAST_PREDICTED 0.2 /* of pages of earlier bursts, which are supplied at once, in the hold */
#define TRIED_PAGES 64u /* of the unlikely ones, when they are tried */
#define LEARNING 0.3
#define LEARNING_BY_MANY 0.8
#define MANY_PAGES 256u
#define FIRST_SECONDS_A_PAGE 4e-6
#define FIRST_SECONDS_A_READ 2e-6
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

struct page *
pages_find(struct pages *p, uint64_t address)
{
    size_t at = (size_t)(address * 0x9e3779b97f4a7c15u >> 40) & (PAGES_SLOTS - 1);

    while (p->slot[at].address != 0 && p->slot[at].address != address)
        at = (at + 1) & (PAGES_SLOTS - 1);
    return &p->slot[at];
}

struct page *
pages_take(struct pages *p, uint64_t address)
{
    struct page *page = pages_find(p, address);

    if (page->address == 0) {
        if (p->used >= PAGES_KNOWN_MOST)
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
                *pages_take(p, old[i].address) = old[i];
    free(old);
}

/* How many of the predicted pages of each rank were touched. */
static void
learn_shares(struct pages *p)
{
    for (unsigned i = 0; i < PAGES_ALL_RANKS; i++) {
        const bool is_sure = p->rank[i].given >= MANY_PAGES && !(p->is_cut && i == PAGES_DENSE);
        p->rank[i].is_known |= p->rank[i].given >= TRIED_PAGES;
        if (p->rank[i].given != 0)
            p->rank[i].share += (is_sure ? LEARNING_BY_MANY : LEARNING) *
                                ((double)p->rank[i].used / p->rank[i].given - p->rank[i].share);
        p->rank[i].given = p->rank[i].used = 0;
    }
}

/* Whether another page of a rank is to be supplied before it is touched, if so many of them are. */
static bool
is_worth_predicting(const struct pages *p, unsigned rank, size_t many)
{
    if (rank != 0 && p->rank[rank].share >= LEAST_PREDICTED)
        return pages_may_try(p, rank, many);
    return rank != 0 && p->burst % PAGES_TRY_EVERY == 0 && many < TRIED_PAGES;
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
    p->latest = p->blocks_met = 0;
    p->is_dry = p->is_cut = false;
    memset(p->stream, 0, sizeof p->stream);
    for (size_t i = 0; i < PAGES_STORED_BLOCKS; i++)
        p->stored[i].stores -= p->stored[i].stores / 4;
    p->predicted = p->missed = 0;
    forget_old(p);
    rank_pages(p);
}

void
pages_note_use(struct pages *p, uint64_t address)
{
    struct page *page = pages_find(p, address);

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
            pages_note_use(p, page);
        last = page;
    }
}
