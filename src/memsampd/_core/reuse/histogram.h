/* Counts of integers between bounds: bin b holds those at which b of the bounds have been reached. */
#ifndef MEMSAMPD_HISTOGRAM_H
#define MEMSAMPD_HISTOGRAM_H

#include "models.h"

#define MAX_BOUNDS 255
#define QUICK 4096 /* integers whose bin comes from a table */

typedef struct {
    unsigned bounds;
    uint64_t bound[MAX_BOUNDS + 1];  /* ascending from 1 or more; behind them UINT64_MAX */
    uint8_t quick[QUICK];
    uint8_t octave[64];              /* bounds reached at 2^i */
    uint64_t counts[MAX_BOUNDS + 1];
} histogram;

static inline void
histogram_clear(histogram *self)
{
    memset(self->counts, 0, sizeof self->counts);
}

static inline void
histogram_init(histogram *self, const uint64_t *bounds, unsigned count)
{
    unsigned reached = 0;
    histogram_clear(self);
    self->bounds = count;
    memcpy(self->bound, bounds, count * sizeof *bounds);
    for (unsigned i = count; i <= MAX_BOUNDS; i++)
        self->bound[i] = UINT64_MAX;
    for (unsigned value = 0; value < QUICK; value++) {
        while (self->bound[reached] <= value)
            reached++;
        self->quick[value] = (uint8_t)reached;
    }
    reached = 0;
    for (unsigned i = 0; i < 64; i++) {
        while (self->bound[reached] <= UINT64_C(1) << i)
            reached++;
        self->octave[i] = (uint8_t)reached;
    }
}

/* Count an integer below UINT64_MAX. */
ALWAYS_INLINE void
histogram_add(histogram *self, uint64_t value)
{
    unsigned bin;
    if (value < QUICK) {
        bin = self->quick[value];
    } else {
        bin = self->octave[63 - __builtin_clzll(value)];
        while (bin < self->bounds && self->bound[bin] <= value)
            bin++;
    }
    self->counts[bin]++;
}

#endif
