/* Counting the reuse distances of one burst while it comes in.
 *
 * Distances below EXACT are counted for all lines. Of accesses that return later, or not at all, it is
 * known how many there are, but how late only those of a sample of the lines return.
 */
#ifndef MEMSAMPD_COUNTING_H
#define MEMSAMPD_COUNTING_H

#include "bins.h"
#include "line_sample.h"
#include "recent_lines.h"
#include "scattered.h"
#include "stack_samples.h"

typedef struct reuse_counter {
    recent_table recent;
    bool is_crowded;        /* with lines that all want the same places: making more is no use */
    uint64_t start;         /* time of the first access: earlier ones are of other bursts */
    uint64_t now;           /* of the next access */
    uint32_t exact[EXACT];  /* reuses by distance, but for repeats */
    uint64_t repeats;       /* reuses at distance 0 within marks */
    line_sample sample;     /* of lines that are not among the recent, and of reuses from EXACT on */
    stack_samples stacks;
    scattered_lines scattered;
    bool is_broken;         /* memory ran out half-way: what it holds is no longer exact */
} counter;

/* Zeroed before. -1 without memory. */
int counter_init(counter *self, uint64_t seed);
int counter_begin(counter *self); /* another burst */
void counter_free(counter *self);

/* Histograms of the burst so far, BINS each. */
void counter_sum_up(const counter *self, uint64_t *reuses, uint64_t *censored);

#endif
