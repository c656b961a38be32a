/* How long recorded code would take on an out-of-order core that is a model: what waits for what, from
 * instruction to instruction.
 *
 * An instruction begins when it was fetched, when there is room for it, and when what it needs is there; it
 * ends after its latency, in order for what comes behind. Branches that a small predictor guesses wrong
 * stop the fetching. Caches always hit on one of two cores; on the other one what is distant (not in a
 * cache of 32 KiB, and no neighbour of what was fetched lately) takes longer: how much longer all takes then
 * tells whether misses wait for each other.
 */
#ifndef MEMSAMPD_CORE_MODEL_H
#define MEMSAMPD_CORE_MODEL_H

#include "tables.h"

#include <stdbool.h>
#include <stdint.h>

struct core_model;

/* What some stretches of a burst came to, warming up left out. */
struct core_times {
    uint64_t instructions, accesses;
    uint64_t distant;       /* among the accesses */
    double near_cycles;     /* if all hit */
    double distant_cycles;  /* if those that are distant take DISTANT_CYCLES more */
};

#define DISTANT_CYCLES 200
#define CORE_MODEL_STORES 8192 /* the latest, that are kept */

struct core_model *core_model_create(void); /* NULL: no memory */

/* Run stretches of records through it. */
struct core_times core_model_run(struct core_model *m, const struct blocks *blocks,
                                 const uint64_t segment_base[3], const struct record_list *records);

/* Addresses that were stored to in the last run, or the latest of them. */
size_t core_model_stores(const struct core_model *m, const uint64_t **address);

#endif
