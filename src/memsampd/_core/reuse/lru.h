/* Exact LRU stack distances, and reuse distances, of a stream of lines of any length. */
#ifndef MEMSAMPD_LRU_H
#define MEMSAMPD_LRU_H

#include "front.h"
#include "histogram.h"
#include "line_table.h"
#include "slots.h"

typedef struct {
    slots slots;
    line_table lines;           /* line -> its slot */
    front front;
    uint64_t front_line[FRONT];
    uint64_t front_touched[FRONT];    /* time of the last touch */
    table_entry *front_entry[FRONT];
    uint64_t time;              /* accesses before this batch */
    uint64_t taken;             /* accesses at the last take */
    uint64_t cold;              /* first touches since then */
    histogram stack_distances;  /* since then: bounds are the sizes in lines */
    histogram reuse_distances;  /* since then */
    bool reuses;                /* whether these are wanted */
    bool ranks;                 /* whether some size is below FRONT: ranks in it matter */
} lru;

/* Zeroed before; the histograms' bounds are set. -1 without memory. */
int lru_init(lru *self);
void lru_free(lru *self);

/* Touch lines, or runs; each line's stack distance, -1 of a first touch, goes to `distances`, unless
 * that is NULL or these are runs. -1 without memory: what it holds is then no longer exact. */
int lru_feed(lru *self, const unsigned char *bytes, size_t count, bool runs, int64_t *distances);

/* Misses since the last take of each size; returns how many accesses there were. */
uint64_t lru_take_misses(lru *self, uint64_t *misses);

#endif
