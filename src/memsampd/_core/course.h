/* Counting what a burst does, for its native twin: see struct course. */
#ifndef MEMSAMPD_COURSE_H
#define MEMSAMPD_COURSE_H

#include "expansion.h"

void course_begin(struct course *c, uint64_t limit);

/* Make room for so many exits; -1: no memory. */
int course_reserve(struct course *c, size_t exits);

/* Keep the counts of this moment. */
void course_keep(struct course *c);

/* A record that left by `exit` and has so many rows; -1: no memory. */
static inline int
course_add(struct course *c, const struct blocks *b, uint32_t exit, uint64_t rows)
{
    if (exit >= c->exits && course_reserve(c, b->exits) < 0)
        return -1;
    struct exit_count *count = &c->now.exit[exit];
    count->hits++;
    count->last = c->rows;
    c->rows += rows;
    if (c->rows >= c->checkpoint)
        course_keep(c);
    return 0;
}

#endif
