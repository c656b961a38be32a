/* The table of pages: which ones the replica has, and which it is likely to need next time. */
#ifndef MEMSAMPD_PAGES_H
#define MEMSAMPD_PAGES_H

#include "process.h"

#define PAGES_SLOTS 65536u
#define PAGES_KNOWN_MOST (PAGES_SLOTS / 4 * 3) /* slots in use */
#define PAGES_MOST 32768u /* in a burst: 128 MiB */
#define PAGES_AROUND_MOST (PAGES_MOST / 4 * 3) /* from then on only those that are needed */
#define PAGES_AHEAD 16u
#define PAGES_RANKS 13u /* of likeliness: see likeliness() */
#define PAGES_NEAR PAGES_RANKS           /* the rank of pages near one that was missed */
#define PAGES_FOLLOWING (PAGES_RANKS + 1) /* and of those to which a stream of misses leads */
#define PAGES_DENSE (PAGES_RANKS + 2)    /* and of those in a block of memory with several misses */
#define PAGES_ALL_RANKS (PAGES_RANKS + 3)
#define PAGES_FIRST 512u   /* supplied of a rank of which it is not known yet how many are touched */
#define PAGES_TRY_EVERY 16 /* bursts: even what is unlikely to be needed is supplied */
#define BLOCK_PAGES REMOTE_BATCH /* pages of a block of memory: 2 MiB */
#define PAGES_BLOCKS 1024u
#define PAGES_STREAMS 8u
#define PAGES_STORED_BLOCKS 256u

enum page_flag {
    PAGE_IS_HERE = 1,     /* the replica has it */
    PAGE_IS_WRITABLE = 2, /* as the target may write to it */
    PAGE_IS_GUARDED = 4,  /* read-only in the replica all the same: its area can be executed */
    PAGE_IS_SHARED = 8,   /* other processes may write to it */
    PAGE_IS_STALE = 16,   /* the system has written to it since */
    PAGE_IS_READ = 32,    /* in the hold, and not shown to the replica yet */
};

struct page {
    uint64_t address;    /* 0: free slot */
    uint32_t last_burst; /* up to which `uses` tells */
    uint8_t uses;        /* a bit for each of the last 8 bursts: it was touched; the lowest is the last */
    uint8_t flags;       /* of the present burst */
    uint8_t rank;        /* for which it was supplied in this burst; else 0 */
    uint8_t era;         /* of the frames when one was made for it, if that matters: see process_place */
};

/* Misses that follow each other through memory. */
struct page_stream {
    uint64_t last; /* page that was missed, or supplied since; 0: none */
    uint64_t at;   /* the address missed last; in even steps, the one foreseen in that page */
    int64_t gap;   /* bytes from the miss before it; 0: there was none */
    unsigned even; /* how often in a row that was the same */
    int step;      /* up 1, down -1; not known yet: 0 */
    unsigned run;  /* how many followed the first */
};

/* A piece of memory in which pages were missed one by one. */
struct page_block {
    uint64_t number;
    uint32_t burst, missed;
};

/* A piece of memory that bursts store to. */
struct stored_block {
    uint64_t number;
    uint32_t stores; /* in what was looked at; those of earlier bursts count less and less */
};

struct pages {
    struct page *slot;     /* PAGES_SLOTS, open addressing */
    uint32_t *live;        /* the slots in use */
    size_t used;
    uint64_t *order;       /* the predicted ones, the likely ones first */
    size_t wanted;         /* how many these are */
    size_t tried;          /* of these, that were supplied or cannot be */
    double seconds_a_page; /* that supplying one took lately */
    struct {
        double share;         /* of the predicted ones that were touched, lately */
        bool is_known;        /* some have been supplied; else `share` is a guess */
        uint32_t given, used; /* in this burst */
    } rank[PAGES_ALL_RANKS];
    uint32_t *given;       /* slots of the pages that were supplied in this burst */
    size_t gifts;
    size_t shared;         /* supplied pages that other processes may write to */
    size_t stale;          /* at most so many are marked so */
    uint32_t burst;
    bool is_dry;           /* nobody will tell which of them are touched now */
    bool reads_around;     /* nobody waits: read many of the neighbours of a page that is missed */
    size_t blocks_most;    /* ... and all pages of blocks with several misses, unless more are met */
    size_t blocks_met;     /* in which pages were missed, in this burst */
    bool is_cut;           /* the burst ended too soon to tell which of these are needed */
    uint8_t *bytes;        /* REMOTE_BATCH pages */
    size_t here;           /* pages of the present burst */
    struct page_stream stream[PAGES_STREAMS]; /* for reading ahead where the program goes through memory */
    size_t latest; /* the stream of the last miss */
    struct page_block block[PAGES_BLOCKS]; /* by a hash; those of one place push each other out */
    struct stored_block stored[PAGES_STORED_BLOCKS]; /* by a hash, too */
    double seconds_a_read; /* that reading a page took lately */
    uint8_t ahead_rank; /* of the pages read beside the last one that was missed */
    uint64_t predicted, missed; /* of the present burst */
};

int pages_init(struct pages *p);
void pages_free(struct pages *p);

/* A new burst: the replica has none, and it is settled which ones are likely to be needed. */
void pages_begin(struct pages *p);

/* Whether another page of a rank may be supplied, if so many were: few of one of which nothing is known yet. */
static inline bool
pages_may_try(const struct pages *p, unsigned rank, size_t many)
{
    return p->rank[rank].is_known || many < PAGES_FIRST;
}

/* The slot of a page. Where there is none: a free one (`address` is 0); one that is made, or NULL if the table
 * is full. */
struct page *pages_find(struct pages *p, uint64_t address);
struct page *pages_take(struct pages *p, uint64_t address);

/* Note that a page was touched in this burst, if it is in the table. */
void pages_note_use(struct pages *p, uint64_t address);

/* The same of the pages of some lines of 1 << shift bytes, or of rows. */
void pages_note_lines(struct pages *p, const uint64_t *line, size_t count, unsigned shift);

#endif
