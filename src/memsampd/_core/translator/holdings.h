/* What registers hold, as far as straight-line code tells. */
#ifndef MEMSAMPD_HOLDINGS_H
#define MEMSAMPD_HOLDINGS_H

#include "path.h"

#define NO_VALUE 0xffffu
#define CONSTANT_VALUE 0xfffeu

/* A value of the block's plus a number. */
struct holding {
    unsigned value;
    int64_t offset;
};

struct holdings {
    struct holding of[16];
    unsigned values;
};

/* Where a block begins, each register holds a value of its own. */
void holdings_begin(struct holdings *h);

/* Behind an instruction of its path. */
void holdings_follow(struct holdings *h, const struct step *s);

#endif
