#include "superblock.h"
#include "copies.h"
#include "dependences.h"
#include "lookup.h"
#include "recording.h"

#include <string.h>

#define BLOCK_MAXIMUM_CODE 16384

/* Where the path can be left before its end. */
struct side {
    uint32_t jump_at; /* the 32-bit displacement of the jump to the exit */
    uint64_t target;  /* of an indirect one: what it is not */
    bool is_indirect;
    uint16_t accesses, words, instructions, prefetches;
};

struct builder {
    struct blocks *b;
    struct emitter e;
    struct block block;
    uint32_t number;
    struct path path;
    struct recording recording;
    uint16_t prefetches;
    struct side side[PATH_MAXIMUM_INSTRUCTIONS];
    unsigned sides;
    bool out_of_memory;
};

/* ---- Exits ---- */

/* A side exit whose jump has been emitted just now. */
static void
add_side(struct builder *u, unsigned number, uint64_t target, bool is_indirect)
{
    u->side[u->sides++] = (struct side){
        .jump_at = u->e.at - 4,
        .target = target,
        .is_indirect = is_indirect,
        .accesses = u->recording.accesses,
        .words = u->recording.words,
        .instructions = (uint16_t)(number + 1),
        .prefetches = u->prefetches,
    };
}

static struct exit *
add_exit(struct builder *u, enum exit_kind kind, uint64_t target)
{
    struct blocks *b = u->b;
    static struct exit lost;

    if (!blocks_grow((void **)&b->exit, &b->exit_capacity, b->exits + 1, sizeof *b->exit)) {
        u->out_of_memory = true;
        return &lost;
    }
    struct exit *x = &b->exit[b->exits++];
    *x = (struct exit){.target = target,
                       .block = u->number,
                       .linked = NO_BLOCK,
                       .candidate = NO_BLOCK,
                       .accesses = u->recording.accesses,
                       .words = u->recording.words,
                       .instructions = (uint16_t)u->path.count,
                       .prefetches = u->prefetches,
                       .kind = (uint8_t)kind};
    u->block.exits++;
    return x;
}

static void
finish_record(struct builder *u, const struct exit *x)
{
    unsigned buffer = u->path.pair.buffer;
    emit_store_constant(&u->e, buffer, 0, record_word(x, (size_t)(x - u->b->exit)));
    emit_move(&u->e, 0x8d, buffer, buffer, 8 * x->words);
    if (u->block.body_end == 0) /* the record is whole: what follows only goes on */
        u->block.body_end = u->e.at;
}

static void
restore_pair(struct builder *u)
{
    emit_slot(&u->e, 0x8b, u->path.pair.buffer, SLOT_GPR(u->path.pair.buffer));
    emit_slot(&u->e, 0x8b, u->path.pair.scratch, SLOT_GPR(u->path.pair.scratch));
}

static void
emit_exit(struct builder *u, struct exit *x)
{
    finish_record(u, x);
    x->link_at = u->e.at;
    blocks_cut(u->b, x);
    u->e.at += LINK_BYTES;
}

/* The target is in the scratch register. */
static void
emit_indirect_exit(struct builder *u, struct exit *x)
{
    struct emitter *e = &u->e;
    unsigned a = u->path.pair.buffer, t = u->path.pair.scratch;

    finish_record(u, x);
    emit_slot(e, 0x89, t, SLOT_TARGET);
    emit_slot(e, 0x89, a, SLOT_BUFFER);
    emit_slot(e, 0x89, RCX, SLOT_RCX);
    emit_hash(e, a, RCX, t);
    emit_lea(e, a, RCX, a, 8, 0, false);
    emit_move(e, 0x8b, RCX, a, 0);
    emit_lea(e, RCX, RCX, t, 1, 0, false);
    emit_byte(e, 0xe3); /* jrcxz over what a miss does */
    emit_byte(e, 0);
    uint32_t behind = e->at;
    restore_pair(u);
    emit_jump(e, AREA_CODE); /* see lookup_init */
    e->area[behind - 1] = (uint8_t)(e->at - behind);
    emit_slot(e, 0x8b, RCX, SLOT_RCX);
    emit_move(e, 0x8b, a, a, 8 << AREA_LOOKUP_BITS);
    emit_slot(e, 0x89, a, SLOT_JUMP);
    restore_pair(u);
    emit_jump_slot(e, SLOT_JUMP);
}

static void
emit_side_exits(struct builder *u)
{
    for (unsigned i = 0; i < u->sides; i++) {
        int32_t displacement = (int32_t)(u->e.at - (u->side[i].jump_at + 4));
        memcpy(u->e.area + u->side[i].jump_at, &displacement, 4);
        const struct side *side = &u->side[i];
        struct exit *x = add_exit(u, side->is_indirect ? EXIT_INDIRECT : EXIT_DIRECT, side->target);
        x->accesses = side->accesses;
        x->words = side->words;
        x->instructions = side->instructions;
        x->prefetches = side->prefetches;
        if (side->is_indirect) {
            emit_slot(&u->e, 0x8b, RCX, SLOT_RCX);
            emit_indirect_exit(u, x);
        } else {
            emit_exit(u, x);
        }
    }
}

/* ---- The block ---- */

static void
emit_branch(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];

    copy_branch(&u->e, s);
    add_side(u, number, s->way == WAY_TAKEN ? s->ip + s->p.length : step_target(s), false);
}

/* Leave the path unless the scratch register holds the address where it goes on. */
static void
emit_guard(struct builder *u, unsigned number)
{
    struct emitter *e = &u->e;

    emit_slot(e, 0x89, RCX, SLOT_RCX);
    emit_constant(e, RCX, -u->path.step[number].next);
    emit_lea(e, RCX, RCX, u->path.pair.scratch, 1, 0, false);
    emit_byte(e, 0xe3); /* jrcxz over the jump */
    emit_byte(e, 5);
    emit_jump(e, e->at);
    add_side(u, number, u->path.step[number].next, true);
    emit_slot(e, 0x8b, RCX, SLOT_RCX);
}

static void
emit_last(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    uint64_t after = s->ip + s->p.length;

    copy_transfer(&u->e, s, u->path.pair.scratch);
    switch (s->form->flow) {
    case FLOW_JUMP:
        emit_exit(u, add_exit(u, EXIT_DIRECT, step_target(s)));
        break;
    case FLOW_CALL:
        u->block.return_ip = after;
        emit_exit(u, add_exit(u, EXIT_DIRECT, step_target(s)));
        break;
    case FLOW_CALL_INDIRECT:
        u->block.return_ip = after;
        emit_indirect_exit(u, add_exit(u, EXIT_INDIRECT, 0));
        break;
    case FLOW_JUMP_INDIRECT:
    case FLOW_RETURN:
        emit_indirect_exit(u, add_exit(u, EXIT_INDIRECT, 0));
        break;
    default: /* FLOW_STOP */
        emit_bytes(&u->e, s->p.bytes, s->p.length);
        emit_exit(u, add_exit(u, EXIT_UNSUPPORTED, after));
    }
}

static void
emit_step(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    struct blocks *b = u->b;

    if (!blocks_grow((void **)&b->instruction, &b->instruction_capacity, b->instructions + 1,
              sizeof *b->instruction)) {
        u->out_of_memory = true;
        return;
    }
    u->block.pages |= page_bit(s->ip) | page_bit(s->ip + INSTRUCTION_MAXIMUM_BYTES - 1);
    b->instruction[b->instructions++] =
        (struct instruction){s->ip, u->e.at, u->recording.accesses, u->prefetches, s->form->flow,
                             s->way == WAY_TAKEN, dependences_of(&s->p, s->form)};
    if (!recording_add(&u->recording, s, number)) {
        u->out_of_memory = true;
        return;
    }
    u->prefetches += (s->form->flags & RECIPE_PREFETCHES) != 0;
    if (s->way == WAY_END)
        return;
    if (s->form->flow == FLOW_NEXT)
        copy_instruction(&u->e, s, u->path.pair.scratch);
    else if (s->form->flow == FLOW_BRANCH || s->form->flow == FLOW_SHORT_BRANCH)
        emit_branch(u, number);
    else
        copy_transfer(&u->e, s, u->path.pair.scratch);
    if (s->way == WAY_GUESS)
        emit_guard(u, number);
    recording_follow(&u->recording, s);
}

static void
emit_block(struct builder *u)
{
    struct emitter *e = &u->e;
    struct path *path = &u->path;
    bool ends = path->count != 0 && path->step[path->count - 1].way == WAY_END;

    u->block.cold = e->at;
    emit_slot(e, 0x89, u->path.pair.buffer, SLOT_GPR(u->path.pair.buffer));
    emit_slot(e, 0x89, u->path.pair.scratch, SLOT_GPR(u->path.pair.scratch));
    emit_slot(e, 0x8b, u->path.pair.buffer, SLOT_BUFFER);
    u->block.warm = e->at;
    recording_begin(&u->recording, u->b, e, path->pair);
    for (unsigned i = 0; i < path->count && !u->out_of_memory; i++) {
        if (!recording_has_room(&u->recording)) {
            path->next_ip = path->step[i].ip;
            path->count = i;
            path->last_kind = EXIT_DIRECT;
            ends = false;
            break;
        }
        emit_step(u, i);
    }
    u->block.instructions = (uint16_t)path->count;
    if (ends)
        emit_last(u, path->count - 1);
    else
        emit_exit(u, add_exit(u, path->last_kind, path->next_ip));
    if (!ends && path->last_kind != EXIT_DIRECT) /* it ends for what stands there */
        u->block.pages |= page_bit(path->next_ip) |
                          page_bit(path->next_ip + INSTRUCTION_MAXIMUM_BYTES - 1);
    if (path->last_kind == EXIT_SYSCALL && !ends) {
        struct exit *crossed = add_exit(u, EXIT_CROSSED, 0);
        crossed->accesses = crossed->prefetches = 0;
        crossed->words = crossed->instructions = 1;
    }
    emit_side_exits(u);
    u->block.accesses = u->recording.accesses;
    u->block.end = e->at;
}

/* What an exit tells of its accesses, now that these are known. */
static void
sum_up_accesses(const struct accesses *a, const struct block *block, struct exit *x)
{
    x->first_access = block->first_access;
    x->stores = 0;
    x->is_plain = x->is_near = 1;
    x->has_segments = 0;
    for (size_t i = block->first_access; i < (size_t)block->first_access + x->accesses; i++) {
        x->stores += a->is_write[i];
        x->is_plain &= a->operand[i].source != ACCESS_SPECIAL;
        x->is_near &= a->operand[i].word < NEAR_WORDS;
        x->has_segments |= a->operand[i].source != ACCESS_WORD;
    }
    x->is_near &= x->is_plain;
}

enum translation
superblock_translate(struct blocks *b, uint64_t ip)
{
    struct builder u;

    u.b = b;
    u.sides = u.prefetches = 0;
    u.out_of_memory = false;
    memset(&u.block, 0, sizeof u.block);
    if (b->code_used + BLOCK_MAXIMUM_CODE > AREA_CODE_BYTES ||
        b->exits + PATH_MAXIMUM_INSTRUCTIONS + 2 > EXITS_MOST)
        return TRANSLATION_FULL;
    enum translation result = path_choose(b, ip, &u.path);
    if (result != TRANSLATED)
        return result;
    if (!blocks_grow((void **)&b->block, &b->capacity, b->count + 1, sizeof *b->block))
        return TRANSLATION_NO_MEMORY;
    u.e = (struct emitter){b->area, AREA_CODE + b->code_used};
    u.number = (uint32_t)b->count;
    u.block.ip = ip;
    u.block.buffer_register = u.path.pair.buffer;
    u.block.scratch_register = u.path.pair.scratch;
    u.block.is_guided = u.path.is_guided;
    u.block.is_passing = u.path.is_passing;
    b->has_passing |= u.path.is_passing;
    u.block.first_access = (uint32_t)b->accesses.count;
    u.block.first_instruction = (uint32_t)b->instructions;
    u.block.first_exit = (uint32_t)b->exits;
    emit_block(&u);
    if (u.out_of_memory)
        return TRANSLATION_NO_MEMORY;
    for (size_t i = u.block.first_exit; i < b->exits; i++)
        sum_up_accesses(&b->accesses, &u.block, &b->exit[i]);
    b->code_used = u.e.at - AREA_CODE;
    b->block[b->count++] = u.block;
    b->translated_instructions += u.path.count;
    return TRANSLATED;
}

