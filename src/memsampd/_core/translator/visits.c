#include "visits.h"

#include <stdlib.h>
#include <string.h>

void
visits_begin(struct visits *v)
{
    v->first += v->count + 1; /* so that 0 is of no burst */
    v->count = v->ran.count = 0;
}

void
visits_free(struct visits *v)
{
    free(v->item);
    free(v->ran.ip);
    free(v->ran.times);
    memset(v, 0, sizeof *v);
}

bool
visits_add(struct visits *v, struct blocks *b, uint32_t exit)
{
    if (!blocks_grow((void **)&v->item, &v->capacity, v->count + 1, sizeof *v->item))
        return false;
    b->exit[exit].visit = v->first + v->count;
    v->item[v->count++] = (struct visit){exit, b->exit[exit].hits, 0};
    return true;
}

void
visits_repeat(struct visits *v, const struct blocks *b, uint32_t exit, uint64_t repeats)
{
    v->item[b->exit[exit].visit - v->first].repeats += repeats;
}

static bool
reserve(struct ran *ran, size_t more)
{
    size_t ip_capacity = ran->capacity, times_capacity = ran->capacity;
    bool grown = blocks_grow((void **)&ran->ip, &ip_capacity, ran->count + more, 8) &&
                 blocks_grow((void **)&ran->times, &times_capacity, ran->count + more, 8);
    if (grown)
        ran->capacity = times_capacity;
    return grown;
}

static const struct visit *
visit_of(const struct visits *v, const struct exit *x)
{
    return x->visit >= v->first ? &v->item[x->visit - v->first] : NULL;
}

/* The first instruction of an exit that may repeat itself. */
static uint32_t
repeated_instruction(const struct blocks *b, const struct exit *x)
{
    for (size_t a = x->first_access; a < (size_t)x->first_access + x->accesses; a++)
        if (b->accesses.operand[a].source == ACCESS_SPECIAL &&
            b->special[b->accesses.delta[a]].recipe.flags & RECIPE_REPEATED)
            return b->accesses.instruction[a];
    return 0;
}

/* Its code was used in the present burst. */
static void
note_code(struct blocks *b, const struct block *block)
{
    const struct instruction *at = &b->instruction[block->first_instruction];
    uint64_t last = 0;

    for (uint32_t i = 0; i < block->instructions; i++) {
        if (page_of(at[i].ip) == last)
            continue;
        last = page_of(at[i].ip);
        struct code_page *page = keyed_get(&b->pages, sizeof *page, last);
        if (page != NULL)
            page->burst = b->burst;
    }
}

/* Each exit tells that all instructions up to it ran. Room is there. */
static void
collect_block(struct visits *v, const struct blocks *b, const struct block *block)
{
    const struct exit *first = &b->exit[block->first_exit];
    uint64_t *times = v->ran.times + v->ran.count;

    memset(times, 0, 8 * (size_t)block->instructions);
    for (const struct exit *x = first; x < first + block->exits; x++) {
        const struct visit *visit = visit_of(v, x);
        if (visit == NULL || x->kind == EXIT_CROSSED || x->instructions == 0)
            continue;
        times[x->instructions - 1] += x->hits - visit->hits_before;
    }
    for (uint32_t i = block->instructions; i-- > 1;)
        times[i - 1] += times[i];
    for (const struct exit *x = first; x < first + block->exits; x++)
        if (visit_of(v, x) != NULL && visit_of(v, x)->repeats != 0)
            times[repeated_instruction(b, x)] += visit_of(v, x)->repeats;
    for (uint32_t i = 0; i < block->instructions && times[i] != 0; i++)
        v->ran.ip[v->ran.count++] = b->instruction[block->first_instruction + i].ip;
}

static void
add_ran(struct ran *ran, uint64_t ip, uint64_t times)
{
    ran->ip[ran->count] = ip;
    ran->times[ran->count++] = times;
}

bool
visits_add_part(struct visits *v, struct blocks *b, const struct exit *part, uint64_t repeats,
                bool is_over)
{
    const struct block *block = &b->block[part->block];
    const struct instruction *at = &b->instruction[block->first_instruction];
    const uint32_t repeated = repeated_instruction(b, part);

    if (!reserve(&v->ran, part->instructions + (size_t)1))
        return false;
    for (uint32_t i = 0; i < part->instructions && is_over; i++)
        add_ran(&v->ran, at[i].ip, 1);
    const bool is_among_them = repeated < part->instructions && is_over;
    if (repeats > is_among_them)
        add_ran(&v->ran, at[repeated].ip, repeats - is_among_them);
    note_code(b, block);
    return true;
}

/* Whether no exit before it in its block was taken: so that each block is collected once. */
static bool
is_first_taken(const struct visits *v, const struct blocks *b, uint32_t exit)
{
    for (uint32_t e = b->block[b->exit[exit].block].first_exit; e < exit; e++)
        if (visit_of(v, &b->exit[e]) != NULL)
            return false;
    return true;
}

bool
visits_collect(struct visits *v, struct blocks *b)
{
    for (size_t i = 0; i < v->count; i++) {
        const uint32_t exit = v->item[i].exit;
        const struct block *block = &b->block[b->exit[exit].block];
        b->records[block->is_guided] += b->exit[exit].hits - v->item[i].hits_before;
        if (!is_first_taken(v, b, exit))
            continue;
        if (!reserve(&v->ran, block->instructions))
            return false;
        collect_block(v, b, block);
        note_code(b, block);
    }
    v->first += v->count;
    v->count = 0;
    return true;
}
