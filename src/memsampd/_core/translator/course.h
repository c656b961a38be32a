/* Counting what a burst does, for its native twin: see struct course. */
#ifndef MEMSAMPD_COURSE_H
#define MEMSAMPD_COURSE_H

#include "expansion.h"

void course_begin(struct course *c, uint64_t limit);

/* Make room for so many exits; -1: no memory. */
int course_reserve(struct course *c, size_t exits);

/* Keep the counts of this moment. */
void course_keep(struct course *c);

/* When the block of an exit that is taken for the first time ran for the first time. */
uint32_t course_first_stretch(const struct course *c, const struct blocks *b, uint32_t exit);

/* A stretch is over: see whether it was new code, and begin another. */
void course_look(struct course *c);

enum course_added { COURSE_GOES_ON, COURSE_CHANGED, COURSE_NO_MEMORY };

/* A record that left by `exit` and has so many rows. Changed: it, or it and those shortly before, are
 * no longer part of the course. */
static inline enum course_added
course_add(struct course *c, const struct blocks *b, uint32_t exit, uint64_t rows)
{
    if (c->has_changed)
        return COURSE_GOES_ON; /* it was told already */
    if (c->is_void) {
        c->rows += rows;
        return COURSE_GOES_ON;
    }
    if (exit >= c->exits && course_reserve(c, b->exits) < 0)
        return COURSE_NO_MEMORY;
    struct exit_count *count = &c->now.exit[exit];
    if (count->hits == 0)
        count->stretch = course_first_stretch(c, b, exit);
    /* What began in the midst of the last stretch is new still; in the first nothing is. */
    if (count->stretch != 0 && count->stretch + 1 >= c->stretch) {
        if (c->news.exit == NO_EXIT && count->hits == 0) {
            c->news.exit = exit;
            c->news.rows = c->rows;
        }
        c->news.count += rows;
    }
    count->hits++;
    count->last = c->rows;
    c->rows += rows;
    if (c->rows >= c->checkpoint)
        course_keep(c);
    if (c->rows >= c->stretch_end)
        course_look(c);
    return c->has_changed ? COURSE_CHANGED : COURSE_GOES_ON;
}

/* One is about to be added that repeats an instruction: `rows` beyond those that it always has, as
 * many as many stretches in one. */
enum course_added course_repeats(struct course *c, const struct blocks *b, uint32_t exit,
                                 uint64_t rows);

#endif
