#include "blocks.h"
#include "code_pages.h"
#include "emitter.h"
#include "lookup.h"
#include "superblock.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD_BLOCKS 16
#define TRANSITION_MAXIMUM_BYTES 64
/* Records from which the way of branches is known well enough, and the least share (1 in so many) of
 * those that were laid out without. */
#define GUIDING_RECORDS 100000
#define GUIDING_SHARE 4

/* ---- Links ---- */

/* Code that hands over from the registers that one block uses for itself to those of another. */
static void
emit_transition(struct emitter *e, const struct block *from, const struct block *to)
{
    const unsigned given[2] = {from->buffer_register, from->scratch_register};
    const unsigned taken[2] = {to->buffer_register, to->scratch_register};

    for (int i = 0; i < 2; i++)
        if (taken[i] != given[0] && taken[i] != given[1])
            emit_slot(e, 0x89, taken[i], SLOT_GPR(taken[i]));
    if (taken[0] != given[0])
        emit_copy(e, taken[0], given[0]);
    for (int i = 0; i < 2; i++)
        if (given[i] != taken[0] && given[i] != taken[1])
            emit_slot(e, 0x8b, given[i], SLOT_GPR(given[i]));
    emit_jump(e, to->warm);
}

/* Have an exit go to a block directly; without room for what that takes it stays a trap. */
static void
set_link(struct blocks *b, uint32_t exit, uint32_t to)
{
    struct exit *x = &b->exit[exit];
    const struct block *from = &b->block[x->block], *target = &b->block[to];
    struct emitter link = {b->area, x->link_at};
    const uint32_t transition_at = AREA_CODE + b->code_used;
    struct emitter transition = {b->area, transition_at};

    if (from->buffer_register == target->buffer_register &&
        from->scratch_register == target->scratch_register) {
        emit_jump(&link, target->warm);
    } else {
        if (b->code_used + TRANSITION_MAXIMUM_BYTES > AREA_CODE_BYTES)
            return;
        emit_transition(&transition, from, target);
        b->code_used = transition.at - AREA_CODE;
        emit_jump(&link, transition_at);
    }
    x->linked = to;
}

void
blocks_publish(struct blocks *b, uint32_t block)
{
    lookup_put(b->area, b->area_address, b->block[block].ip, b->block[block].cold);
}

/* ---- Translation ---- */

static enum translation
translate_one(struct blocks *b, uint64_t ip, uint32_t *found)
{
    if (!blocks_reserve_index(b))
        return TRANSLATION_NO_MEMORY;
    enum translation result = superblock_translate(b, ip);
    if (result == TRANSLATED) {
        *found = (uint32_t)b->count - 1;
        blocks_index(b, *found);
    }
    return result;
}

/* A trap costs as much as the translation of some dozens of instructions: so translate what may
 * come next at once, nearest first. */
static void
translate_ahead(struct blocks *b, uint32_t first)
{
    uint32_t end = (uint32_t)b->count + AHEAD_BLOCKS, found;

    for (uint32_t at = first; at < b->count; at++) {
        uint32_t exit = b->block[at].first_exit, last = exit + b->block[at].exits;
        for (; exit < last; exit++) {
            if (b->exit[exit].kind != EXIT_DIRECT)
                continue;
            found = blocks_find(b, b->exit[exit].target);
            if (found == NO_BLOCK &&
                (b->count >= end ||
                 translate_one(b, b->exit[exit].target, &found) != TRANSLATED))
                continue;
            set_link(b, exit, found);
        }
        uint64_t back = b->block[at].return_ip;
        if (back == 0)
            continue;
        found = blocks_find(b, back);
        if (found != NO_BLOCK ||
            (b->count < end && translate_one(b, back, &found) == TRANSLATED))
            blocks_publish(b, found);
    }
}

enum translation
blocks_translate(struct blocks *b, uint64_t ip, uint32_t *found)
{
    *found = blocks_find(b, ip);
    if (*found != NO_BLOCK)
        return TRANSLATED;
    enum translation result = translate_one(b, ip, found);
    if (result == TRANSLATED)
        translate_ahead(b, *found);
    return result;
}

enum translation
blocks_link(struct blocks *b, uint32_t exit, uint32_t *found)
{
    enum translation result = blocks_translate(b, b->exit[exit].target, found);
    if (result == TRANSLATED && b->exit[exit].linked == NO_BLOCK)
        set_link(b, exit, *found);
    return result;
}

/* ---- Laying out by what has been seen ---- */

/* Where the last instruction before an exit went: out there `hits` times, along the path `stayed`. */
static int
note_exit(struct blocks *b, const struct exit *x, uint64_t stayed)
{
    const struct block *block = &b->block[x->block];
    if (x->instructions == 0)
        return 0;
    const struct instruction *at = &b->instruction[block->first_instruction + x->instructions - 1u];

    if (at->flow == FLOW_BRANCH)
        return at->is_followed ? profile_add(&b->profile, at->ip, 0, stayed, x->hits)
                               : profile_add(&b->profile, at->ip, 0, x->hits, stayed);
    if (x->kind != EXIT_INDIRECT)
        return 0;
    if (x->target != 0 && profile_add(&b->profile, at->ip, x->target, stayed, 0) < 0)
        return -1;
    if (x->candidate == NO_BLOCK)
        return 0;
    /* Of f * hits votes for and (1 - f) * hits against it, 2 * f - 1 are left. */
    uint64_t there = ((uint64_t)x->hits + x->votes) / 2;
    return profile_add(&b->profile, at->ip, b->block[x->candidate].ip, there, x->hits - there);
}

static int
note_block(struct blocks *b, const struct block *block)
{
    const struct exit *end = &b->exit[block->first_exit]; /* side exits follow in their order */
    uint64_t hits = end->hits;

    /* A branch just before the end has its own side exit, which says all. */
    if (end->kind == EXIT_INDIRECT && note_exit(b, end, 0) < 0)
        return -1;
    for (uint32_t i = block->exits; --i > 0;) {
        if (end[i].kind == EXIT_CROSSED)
            continue;
        if (note_exit(b, &end[i], hits) < 0)
            return -1;
        hits += end[i].hits;
    }
    return hits == 0 ? 0 : profile_add(&b->profile, block->ip | PROFILE_HEAD, 0, hits, 0);
}

bool
blocks_want_guiding(const struct blocks *b)
{
    const uint64_t *records = b->records;

    return records[0] >= GUIDING_RECORDS &&
           records[0] > (records[0] + records[1]) / GUIDING_SHARE;
}

/* Take the records into the profile; they count once. */
static int
note_blocks(struct blocks *b)
{
    profile_age(&b->profile);
    for (size_t i = 0; i < b->count; i++)
        if (note_block(b, &b->block[i]) < 0)
            return -1;
    for (struct exit *x = b->exit, *end = x + b->exits; x < end; x++) {
        x->hits = x->votes = 0;
        x->candidate = NO_BLOCK;
    }
    b->records[0] = b->records[1] = 0;
    return 0;
}

/* Whether it ran often, and was laid out without knowing that. */
static bool
is_outdated(const struct blocks *b, const struct block *block)
{
    const struct branch_profile *head = profile_get(&b->profile, block->ip | PROFILE_HEAD);

    return !block->is_dead && !block->is_guided && head != NULL && head->taken >= b->hot_executions;
}

/* Have the exits that go to blocks which are gone go to those that have taken their place. */
static void
link_anew(struct blocks *b)
{
    for (uint32_t i = 0; i < b->exits; i++) {
        struct exit *x = &b->exit[i];
        if (x->linked == NO_BLOCK || !b->block[x->linked].is_dead)
            continue;
        blocks_cut(b, x);
        const uint32_t found = blocks_find(b, x->target);
        if (found != NO_BLOCK)
            set_link(b, i, found);
    }
}

/* Translate again what begins at these addresses. */
static int
translate_anew(struct blocks *b, const uint64_t *head, size_t count)
{
    uint32_t found;

    for (size_t i = 0; i < count; i++) {
        const enum translation result = blocks_translate(b, head[i], &found);
        if (result == TRANSLATION_NO_MEMORY)
            return -1;
        if (result == TRANSLATED)
            blocks_publish(b, found);
        else
            lookup_drop(b->area, b->area_address, head[i]); /* why it cannot be is found out when it runs */
    }
    return 0;
}

int
blocks_guide(struct blocks *b)
{
    uint64_t *head = malloc((b->count + 1) * sizeof *head);
    size_t heads = 0;

    if (head == NULL || note_blocks(b) < 0) {
        free(head);
        return -1;
    }
    blocks_forget_written(b);
    for (size_t i = 0; i < b->count; i++)
        if (is_outdated(b, &b->block[i])) {
            b->block[i].is_dead = true;
            head[heads++] = b->block[i].ip;
        }
    if (b->index_capacity != 0)
        blocks_index_anew(b);
    const int result = translate_anew(b, head, heads);
    link_anew(b);
    free(head);
    return result;
}
