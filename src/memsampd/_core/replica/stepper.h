/* The replica, instruction by instruction: slow and exact, the reference for translated code. */
#ifndef MEMSAMPD_STEPPER_H
#define MEMSAMPD_STEPPER_H

#include "recipe.h"
#include "rows.h"
#include "runner.h"

struct stepper {
    struct keyed recipes;
    struct rows rows;
    uint64_t instructions, prefetches;
    uint8_t *xstate;
};

int stepper_init(struct stepper *s); /* -1: no memory */
void stepper_free(struct stepper *s);

/* Put the replica where a held thread is, itself and not a translation. */
bool stepper_enter(struct runner *r, const struct held *h);

/* Step until there are so many rows, or something ends it. "decode": a recipe is wanted for the
 * instruction at `*ip`; "memory": there is none. */
const char *stepper_run(struct stepper *s, struct runner *r, size_t max_rows, double until_seconds,
                        uint64_t *ip, long *number);

#endif
