#include "course.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CHECKPOINT ((uint64_t)1 << 20)
#define ARRIVALS_MAXIMUM 64
/* What a stop of the twin costs of certainty, and what beginning and ending do. */
#define STOP_COST 2.0
#define BASE_COST 10.0

void
course_begin(struct course *c, uint64_t limit)
{
    struct course_counts *all[3] = {&c->now, &c->earlier, &c->earliest};

    c->limit = limit;
    c->rows = 0;
    c->checkpoint = FIRST_CHECKPOINT;
    c->is_void = false;
    for (int i = 0; i < 3; i++) {
        all[i]->rows = 0;
        all[i]->point = (struct course_point){0, 0, 0};
        if (c->exits != 0) {
            memset(all[i]->hits, 0, c->exits * sizeof *all[i]->hits);
            memset(all[i]->last, 0, c->exits * sizeof *all[i]->last);
        }
    }
}

void
course_free(struct course *c)
{
    struct course_counts *all[3] = {&c->now, &c->earlier, &c->earliest};
    for (int i = 0; i < 3; i++) {
        free(all[i]->hits);
        free(all[i]->last);
    }
    memset(c, 0, sizeof *c);
}

static int
reserve(struct course *c, size_t exits)
{
    struct course_counts *all[3] = {&c->now, &c->earlier, &c->earliest};
    size_t bigger = c->exits == 0 ? 65536 : c->exits;

    if (exits <= c->exits)
        return 0;
    while (bigger < exits)
        bigger *= 2;
    for (int i = 0; i < 3; i++) {
        uint32_t *hits = realloc(all[i]->hits, bigger * sizeof *hits);
        all[i]->hits = hits != NULL ? hits : all[i]->hits;
        uint64_t *last = realloc(all[i]->last, bigger * sizeof *last);
        all[i]->last = last != NULL ? last : all[i]->last;
        if (hits == NULL || last == NULL)
            return -1;
        memset(hits + c->exits, 0, (bigger - c->exits) * sizeof *hits);
        memset(last + c->exits, 0, (bigger - c->exits) * sizeof *last);
    }
    c->exits = bigger;
    return 0;
}

static uint64_t
block_hits(const struct course_counts *counts, const struct block *block, uint64_t *last)
{
    uint64_t hits = 0;

    *last = 0;
    for (uint32_t e = block->first_exit; e < block->first_exit + block->exits; e++) {
        if (counts->hits[e] == 0)
            continue;
        hits += counts->hits[e];
        *last = counts->last[e] > *last ? counts->last[e] : *last;
    }
    return hits;
}

/* Whether another block that ran contains the instruction, too: then its hits are not all. */
static bool
is_inside_another(const struct course *c, const struct blocks *b, uint64_t ip)
{
    uint64_t last;

    for (size_t i = 0; i < b->count; i++) {
        const struct block *block = &b->block[i];
        if (block_hits(&c->now, block, &last) != 0 && blocks_contain(b, block, ip))
            return true;
    }
    return false;
}

/* The best instruction at which to stop, for a twin that stands where `since` has its point: its
 * arrivals counted from there. */
static struct course_point
best_point(const struct course *c, const struct blocks *b, const struct course_counts *since)
{
    struct course_point best = {0, 0, 0};
    double best_worth = 0.0;

    for (size_t i = 0; i < b->count; i++) {
        const struct block *block = &b->block[i];
        uint64_t last, before, last_before = 0;
        if (block->is_dead || block->instructions == 0)
            continue;
        uint64_t hits = block_hits(&c->now, block, &last);
        if (since != NULL) {
            before = block_hits(since, block, &last_before);
            /* Between the point and the moment of the counts it must not have been executed; at the
             * point itself the twin has yet to execute it. */
            if (last_before > since->point.rows || block->ip == since->point.ip)
                continue;
            hits -= before;
        }
        if (hits == 0 || hits > ARRIVALS_MAXIMUM || last >= c->rows)
            continue;
        uint64_t start = since != NULL ? since->point.rows : 0;
        double worth = (double)(last - start) / (BASE_COST + STOP_COST * (double)hits);
        if (last > start && worth > best_worth && !is_inside_another(c, b, block->ip)) {
            best_worth = worth;
            best = (struct course_point){block->ip, (uint32_t)hits, last};
        }
    }
    return best;
}

static void
keep_checkpoint(struct course *c, const struct blocks *b)
{
    struct course_counts oldest = c->earliest;

    c->earliest = c->earlier;
    c->earlier = oldest;
    memcpy(c->earlier.hits, c->now.hits, c->exits * sizeof *c->now.hits);
    memcpy(c->earlier.last, c->now.last, c->exits * sizeof *c->now.last);
    c->earlier.rows = c->rows;
    c->earlier.point = best_point(c, b, NULL);
    c->checkpoint *= 2;
}

int
course_add(struct course *c, const struct blocks *b, uint32_t exit, uint64_t rows)
{
    if (c->exits < b->exits && reserve(c, b->exits) < 0)
        return -1;
    c->now.hits[exit]++;
    c->now.last[exit] = c->rows;
    c->rows += rows;
    if (c->rows >= c->checkpoint)
        keep_checkpoint(c, b);
    return 0;
}

void
course_points(struct expansion *x, struct course_point *lead_in, struct course_point *end)
{
    const struct course *c = &x->course;
    const struct course_counts *since = c->earliest.rows != 0 ? &c->earliest : &c->earlier;

    *lead_in = *end = (struct course_point){0, 0, 0};
    if (c->is_void || c->exits == 0)
        return;
    if (since->rows != 0 && since->point.arrivals != 0)
        *lead_in = since->point;
    *end = best_point(c, x->blocks, lead_in->arrivals != 0 ? since : NULL);
}
