#include "superblock.h"
#include "dependences.h"
#include "emitter.h"
#include "lookup.h"
#include "path.h"

#include <string.h>

#define BLOCK_MAXIMUM_WORDS 400
_Static_assert(BLOCK_MAXIMUM_WORDS <= RECORD_MOST_WORDS, "a record's length is told in its first word");
#define WIDEST_INSTRUCTION_WORDS 40
#define BLOCK_MAXIMUM_CODE 16384
#define NO_VALUE 0xffffu
#define CONSTANT_VALUE 0xfffeu
#define FS_BASE_WORD 21

/* What a register holds, as far as straight-line code tells: a value of the block's plus a number. */
struct holding {
    unsigned value;
    int64_t offset;
};

/* An address that the record holds already. */
struct recorded {
    unsigned base, index, scale;
    int64_t base_offset, index_offset;
    uint16_t word;
};

/* Where the path can be left before its end. */
struct side {
    uint32_t jump_at; /* the 32-bit displacement of the jump to the exit */
    uint64_t target;  /* of an indirect one: what it is not */
    bool is_indirect, is_inverted;
    uint16_t accesses, words, instructions, prefetches;
};

struct builder {
    struct blocks *b;
    struct emitter e;
    struct block block;
    uint32_t number;
    struct path path;
    struct holding holding[16];
    unsigned values;
    struct recorded recorded[BLOCK_MAXIMUM_WORDS];
    unsigned recordeds;
    uint16_t words, prefetches;
    struct side side[PATH_MAXIMUM_INSTRUCTIONS];
    unsigned sides;
    bool out_of_memory;
};

/* ---- Recording ---- */

static void
record_register(struct builder *u, unsigned reg)
{
    emit_move(&u->e, 0x89, reg, u->block.buffer_register, 8 * u->words++);
}

/* The word from which an address follows, recording it if it is new; `*delta` completes it. */
static uint16_t
word_for(struct builder *u, unsigned base, unsigned index, unsigned scale, int64_t displacement,
         bool address_32, int64_t *delta)
{
    struct holding none = {NO_VALUE, 0};
    struct holding hb = base == NO_GPR ? none : u->holding[base];
    struct holding hi = index == NO_GPR ? none : u->holding[index];

    if (address_32) {
        emit_lea(&u->e, u->block.scratch_register, base, index, scale, (int32_t)displacement, true);
        record_register(u, u->block.scratch_register);
        *delta = 0;
        return (uint16_t)(u->words - 1);
    }
    if (index == NO_GPR && (base == NO_GPR || hb.value == CONSTANT_VALUE)) {
        *delta = hb.offset + displacement;
        return 0;
    }
    for (unsigned i = 0; i < u->recordeds; i++) {
        const struct recorded *r = &u->recorded[i];
        if (r->base != hb.value || r->index != hi.value || (index != NO_GPR && r->scale != scale))
            continue;
        *delta = displacement + hb.offset - r->base_offset +
                 (hi.offset - r->index_offset) * (int64_t)scale;
        return r->word;
    }
    *delta = displacement;
    if (index != NO_GPR) {
        emit_lea(&u->e, u->block.scratch_register, base, index, scale, 0, false);
        record_register(u, u->block.scratch_register);
    } else {
        record_register(u, base);
    }
    u->recorded[u->recordeds++] = (struct recorded){
        hb.value, hi.value, scale, hb.offset, hi.offset, (uint16_t)(u->words - 1)};
    return (uint16_t)(u->words - 1);
}

static void
add_access(struct builder *u, uint64_t ip, int64_t delta, uint16_t word, unsigned size_bytes,
           bool is_write, enum access_source source, unsigned instruction)
{
    struct accesses *a = &u->b->accesses;

    if (a->count + ACCESS_VECTOR >= a->capacity && !blocks_grow_accesses(a)) {
        u->out_of_memory = true;
        return;
    }
    a->ip[a->count] = ip;
    a->delta[a->count] = delta;
    a->operand[a->count] = (struct operand){
        word, (uint16_t)source, (uint16_t)(size_bytes != 0 ? size_bytes - 1 : 0), 0};
    a->size_bytes[a->count] = (uint16_t)size_bytes;
    a->instruction[a->count] = (uint16_t)instruction;
    a->is_write[a->count++] = is_write;
    u->block.accesses++;
}

/* The address of a reference in terms of this instruction's own registers. */
static void
settle_reference(const struct step *s, const struct form_reference *r,
                 struct recipe_reference *out)
{
    const struct parsed *p = &s->p;

    *out = r->reference;
    if (r->is_explicit) {
        out->displacement = r->reference.displacement - FORM_DISPLACEMENT + p->displacement;
        out->base = p->base;
        out->index = out->kind == REFERENCE_GATHER ? p->vector_index : p->index;
        out->scale = p->scale;
        if (p->is_rip_relative)
            out->displacement += (int64_t)(s->ip + p->length);
        /* pop to memory computes its address after it moved the stack pointer */
        if (p->opcode == 0x8f && p->map == 0 && p->base == RSP)
            out->displacement += s->form->stack_delta;
    } else if (p->map == 0 && p->encoding == ENCODING_LEGACY && p->opcode >= 0xa0 &&
               p->opcode <= 0xa3) {
        int64_t address = 0;
        unsigned bytes = s->form->immediate_bytes;
        memcpy(&address, p->bytes + p->length - bytes, bytes);
        out->displacement = address;
    }
    if (out->mask_kind == MASK_OPMASK)
        out->mask_register = p->opmask;
    else if (r->mask_field == FIELD_RM)
        out->mask_register = p->rm;
    else if (r->mask_field == FIELD_VVVV)
        out->mask_register = p->vvvv;
}

static void
record_plain(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    struct recipe_reference reference[RECIPE_REFERENCES];
    int64_t delta[RECIPE_REFERENCES];
    uint16_t word[RECIPE_REFERENCES];

    for (unsigned i = 0; i < s->form->references; i++) {
        struct recipe_reference *m = &reference[i];
        settle_reference(s, &s->form->reference[i], m);
        word[i] = word_for(u, m->base, m->index, m->scale, m->displacement, m->is_32_bit, &delta[i]);
    }
    for (int is_write = 0; is_write < 2; is_write++)
        for (unsigned i = 0; i < s->form->references; i++) {
            const struct recipe_reference *m = &reference[i];
            if (!(is_write ? m->stores : m->loads))
                continue;
            enum access_source source = m->segment == RECIPE_NO_REGISTER ? ACCESS_WORD
                                        : m->segment == FS_BASE_WORD     ? ACCESS_FS
                                                                         : ACCESS_GS;
            add_access(u, s->ip, delta[i], word[i], m->size_bytes, is_write, source, number);
        }
}

static bool
is_special(const struct form *f)
{
    for (unsigned i = 0; i < f->references; i++)
        if (f->reference[i].reference.kind != REFERENCE_PLAIN)
            return true;
    return f->flags & RECIPE_REPEATED;
}

static void
special_gpr(struct builder *u, struct special *x, unsigned reg)
{
    unsigned free_at = 0;

    if (reg == NO_GPR)
        return;
    for (; free_at < SPECIAL_GPRS && x->gpr[free_at] != NO_GPR; free_at++)
        if (x->gpr[free_at] == reg)
            return;
    x->gpr[free_at] = (uint8_t)reg;
    x->gpr_word[free_at] = u->words;
    record_register(u, reg);
}

static void
special_vector(struct builder *u, struct special *x, enum encoding encoding, unsigned number,
               unsigned size_bytes)
{
    unsigned i = x->vectors++;
    size_bytes = size_bytes <= 8 ? 8 : size_bytes <= 16 ? 16 : size_bytes <= 32 ? 32 : 64;
    x->vector[i] = (uint8_t)number;
    x->vector_bytes[i] = (uint8_t)size_bytes;
    x->vector_word[i] = u->words;
    if (size_bytes == 8)
        emit_store_opmask(&u->e, number, u->block.buffer_register, 8 * u->words);
    else
        emit_store_vector(&u->e, encoding, number, size_bytes, u->block.buffer_register,
                          8 * u->words);
    u->words = (uint16_t)(u->words + size_bytes / 8);
}

static void
special_reference(struct builder *u, struct special *x, const struct step *s,
                  struct recipe_reference *m)
{
    unsigned base = m->base, index = m->index;

    special_gpr(u, x, base);
    m->base = base == NO_GPR ? RECIPE_NO_REGISTER : gpr_words[base];
    if (m->kind == REFERENCE_GATHER) {
        unsigned bytes = m->lanes * m->index_bytes;
        special_vector(u, x, s->p.encoding, index, bytes < 16 ? 16 : bytes);
    } else {
        special_gpr(u, x, index);
        m->index = index == NO_GPR ? RECIPE_NO_REGISTER : gpr_words[index];
    }
    if (m->mask_kind == MASK_OPMASK) {
        special_vector(u, x, s->p.encoding, m->mask_register, 8);
    } else if (m->mask_kind == MASK_SIGNS) {
        unsigned bytes = m->lanes * m->lane_bytes;
        special_vector(u, x, s->p.encoding, m->mask_register, bytes < 16 ? 16 : bytes);
    }
    if (m->kind == REFERENCE_BIT) {
        special_gpr(u, x, s->p.reg);
        m->mask_register = gpr_words[s->p.reg & 15];
    }
    if (m->kind == REFERENCE_XSAVE || m->kind == REFERENCE_XSAVEC) {
        special_gpr(u, x, RAX);
        special_gpr(u, x, RDX);
    }
}

static void
record_special(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    struct blocks *b = u->b;
    struct special x;

    memset(&x, 0, sizeof x);
    memset(x.gpr, NO_GPR, sizeof x.gpr);
    x.recipe.ip = s->ip;
    x.recipe.flags = s->form->flags;
    x.recipe.references = s->form->references;
    if (s->form->flags & RECIPE_REPEATED)
        special_gpr(u, &x, RCX);
    for (unsigned i = 0; i < s->form->references; i++) {
        settle_reference(s, &s->form->reference[i], &x.recipe.reference[i]);
        special_reference(u, &x, s, &x.recipe.reference[i]);
    }
    if (s->form->flags & RECIPE_REPEATED) { /* written when the instruction is done */
        x.count_after_word = u->words++;
        x.pointer_after_word = u->words++;
    }
    if (!blocks_grow((void **)&b->special, &b->special_capacity, b->specials + 1, sizeof x)) {
        u->out_of_memory = true;
        return;
    }
    b->special[b->specials] = x;
    add_access(u, s->ip, (int64_t)b->specials++, 0, 0, false, ACCESS_SPECIAL, number);
}

/* ---- What registers hold ---- */

static void
forget(struct builder *u, unsigned reg)
{
    u->holding[reg] = (struct holding){u->values++, 0};
}

/* The instructions whose result is known relative to a value known before. */
static bool
follow_simple(struct builder *u, const struct step *s)
{
    const struct parsed *p = &s->p;
    unsigned operation = p->reg & 7;
    bool is_register = p->has_modrm && !p->has_memory;
    struct holding *h = u->holding;

    if (p->encoding != ENCODING_LEGACY || p->map != 0 || p->operand_16 || p->address_32)
        return false;
    if (p->opcode >= 0xb8 && p->opcode <= 0xbf && !p->rex_w) {
        h[p->rm] = (struct holding){CONSTANT_VALUE, (uint32_t)step_immediate(s)};
        return true;
    }
    if ((p->opcode == 0x31 || p->opcode == 0x33) && is_register && p->reg == p->rm) {
        h[p->rm] = (struct holding){CONSTANT_VALUE, 0};
        return true;
    }
    if (!p->rex_w)
        return false;
    switch (p->opcode) {
    case 0x81:
    case 0x83:
        if (!is_register || (operation != 0 && operation != 5))
            return false;
        h[p->rm].offset += operation == 0 ? step_immediate(s) : -step_immediate(s);
        return true;
    case 0xff:
        if (!is_register || operation > 1)
            return false;
        h[p->rm].offset += operation == 0 ? 1 : -1;
        return true;
    case 0x89:
        if (is_register)
            h[p->rm] = h[p->reg];
        return is_register;
    case 0x8b:
        if (is_register)
            h[p->reg] = h[p->rm];
        return is_register;
    case 0x8d:
        if (p->is_rip_relative) {
            h[p->reg] = (struct holding){CONSTANT_VALUE,
                                         (int64_t)(s->ip + p->length) + p->displacement};
            return true;
        }
        if (p->base == NO_GPR || p->index != NO_GPR)
            return false;
        h[p->reg] = h[p->base];
        h[p->reg].offset += p->displacement;
        return true;
    default:
        return false;
    }
}

/* Bytes that a return takes off the stack beyond its address. */
static uint16_t
popped_arguments(const struct step *s)
{
    uint16_t bytes = 0;
    if (s->form->immediate_bytes == 2)
        memcpy(&bytes, s->p.bytes + s->p.length - 2, 2);
    return bytes;
}

static void
follow(struct builder *u, const struct step *s)
{
    const struct form *f = s->form;
    unsigned written = f->implicit_written;

    if (f->stack_delta != 0) {
        u->holding[RSP].offset += f->stack_delta;
        written &= ~(1u << RSP);
        if (f->flow == FLOW_RETURN)
            u->holding[RSP].offset += popped_arguments(s);
    }
    if (follow_simple(u, s))
        return;
    if (f->written & FIELD_REG)
        written |= 1u << (s->p.reg & 15);
    if (f->written & FIELD_RM || s->p.has_opcode_register)
        written |= 1u << (s->p.rm & 15);
    if (f->written & FIELD_VVVV)
        written |= 1u << (s->p.vvvv & 15);
    if (s->p.is_legacy_byte_reg)
        written |= (written >> 4 & 15); /* perhaps ah to bh */
    if (s->p.has_opcode_register && f->stack_delta < 0)
        written &= ~(1u << s->p.rm); /* push only reads */
    for (unsigned reg = 0; reg < 16; reg++)
        if (written >> reg & 1)
            forget(u, reg);
}

/* ---- Copying ---- */

/* The instruction with [scratch] in place of its [rip + displacement]. */
static void
copy_rip_relative(struct builder *u, const struct step *s)
{
    const struct parsed *p = &s->p;
    unsigned base = u->block.scratch_register, high = base >> 3;
    struct emitter *e = &u->e;
    const uint8_t *prefix = p->bytes + p->prefix_at;
    unsigned first = p->prefix_at != 0xff ? p->prefix_at
                                          : p->opcode_at - (p->map > 1 ? 2u : p->map);

    emit_constant(e, base, s->ip + p->length + (uint64_t)p->displacement);
    emit_bytes(e, p->bytes, first);
    if (p->encoding == ENCODING_LEGACY) {
        if (p->prefix_at != 0xff)
            emit_byte(e, (prefix[0] & ~3u) | high);
        else if (high)
            emit_byte(e, 0x41);
        unsigned skip = first + (p->prefix_at != 0xff ? 1 : 0);
        emit_bytes(e, p->bytes + skip, p->opcode_at - skip);
    } else if (prefix[0] == 0xc5) {
        emit_byte(e, 0xc4);
        emit_byte(e, (prefix[1] & 0x80u) | 0x40u | (high ? 0 : 0x20u) | 1);
        emit_byte(e, prefix[1] & 0x7fu);
    } else {
        emit_byte(e, prefix[0]);
        emit_byte(e, (prefix[1] & ~0x20u) | 0x40u | (high ? 0 : 0x20u));
        emit_bytes(e, prefix + 2, p->encoding == ENCODING_EVEX ? 2 : 1);
    }
    emit_byte(e, p->opcode);
    emit_byte(e, 0x40u | (p->reg & 7u) << 3 | (base & 7));
    if ((base & 7) == RSP)
        emit_byte(e, 0x24);
    emit_byte(e, 0);
    emit_bytes(e, p->bytes + p->length - s->form->immediate_bytes, s->form->immediate_bytes);
}

static void
copy_instruction(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    const struct parsed *p = &s->p;

    if (p->is_rip_relative && p->opcode == 0x8d && p->map == 0 && p->rex_w &&
        p->encoding == ENCODING_LEGACY)
        emit_constant(&u->e, p->reg, s->ip + p->length + (uint64_t)p->displacement);
    else if (p->is_rip_relative)
        copy_rip_relative(u, s);
    else
        emit_bytes(&u->e, p->bytes, p->length);
    if (s->form->flags & RECIPE_REPEATED) {
        const struct special *x = &u->b->special[u->b->specials - 1];
        unsigned pointer = x->recipe.reference[0].base == gpr_words[RSI] ? RSI : RDI;
        emit_move(&u->e, 0x89, RCX, u->block.buffer_register, 8 * x->count_after_word);
        emit_move(&u->e, 0x89, pointer, u->block.buffer_register, 8 * x->pointer_after_word);
    }
}

/* A side exit whose jump has been emitted just now. */
static void
add_side(struct builder *u, unsigned number, uint64_t target, bool is_indirect, bool is_inverted)
{
    u->side[u->sides++] = (struct side){
        .jump_at = u->e.at - 4,
        .target = target,
        .is_indirect = is_indirect,
        .is_inverted = is_inverted,
        .accesses = u->block.accesses,
        .words = u->words,
        .instructions = (uint16_t)(number + 1),
        .prefetches = u->prefetches,
    };
}

static void
copy_branch(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    const bool is_inverted = s->way == WAY_TAKEN;
    struct emitter *e = &u->e;

    if (s->form->flow == FLOW_SHORT_BRANCH) {
        emit_bytes(e, s->p.bytes, (size_t)s->p.length - 1);
        emit_byte(e, 2);
        emit_byte(e, 0xeb);
        emit_byte(e, 5);
        emit_byte(e, 0xe9);
    } else {
        emit_byte(e, 0x0f);
        emit_byte(e, (0x80u | (s->p.opcode & 15)) ^ is_inverted);
    }
    emit_i32(e, 0);
    add_side(u, number, is_inverted ? s->ip + s->p.length : step_target(s), false, is_inverted);
}

/* mov scratch, <operand of an indirect jump or call> */
static void
load_target(struct builder *u, const struct step *s)
{
    const struct parsed *p = &s->p;
    unsigned scratch = u->block.scratch_register;
    struct emitter *e = &u->e;

    if (p->is_rip_relative) {
        emit_constant(e, scratch, s->ip + p->length + (uint64_t)p->displacement);
        emit_move(e, 0x8b, scratch, scratch, 0);
        return;
    }
    if (!p->has_memory) {
        emit_copy(e, scratch, p->rm);
        return;
    }
    if (p->segment != 0)
        emit_byte(e, p->segment == 4 ? 0x64 : 0x65);
    if (p->address_32)
        emit_byte(e, 0x67);
    unsigned extension = p->prefix_at != 0xff ? p->bytes[p->prefix_at] & 3u : 0;
    emit_byte(e, 0x48u | (scratch >> 3) << 2 | extension);
    emit_byte(e, 0x8b);
    emit_byte(e, (p->bytes[p->modrm_at] & 0xc7u) | (scratch & 7) << 3);
    emit_bytes(e, p->bytes + p->modrm_at + 1, (size_t)p->length - p->modrm_at - 1);
}

static void
push_constant(struct builder *u, uint64_t value)
{
    unsigned scratch = u->block.scratch_register;
    struct emitter *e = &u->e;

    if ((int64_t)value == (int32_t)value) {
        emit_byte(e, 0x68);
        emit_i32(e, (int64_t)value);
        return;
    }
    emit_constant(e, scratch, value);
    if (scratch >= 8)
        emit_byte(e, 0x41);
    emit_byte(e, 0x50u | (scratch & 7));
}

/* ---- Exits ---- */

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
                       .accesses = u->block.accesses,
                       .words = u->words,
                       .instructions = (uint16_t)u->path.count,
                       .prefetches = u->prefetches,
                       .kind = (uint8_t)kind};
    u->block.exits++;
    return x;
}

static void
finish_record(struct builder *u, const struct exit *x)
{
    unsigned buffer = u->block.buffer_register;
    emit_store_constant(&u->e, buffer, 0, record_word(x, (size_t)(x - u->b->exit)));
    emit_move(&u->e, 0x8d, buffer, buffer, 8 * x->words);
    if (u->block.body_end == 0) /* the record is whole: what follows only goes on */
        u->block.body_end = u->e.at;
}

static void
restore_pair(struct builder *u)
{
    emit_slot(&u->e, 0x8b, u->block.buffer_register, SLOT_GPR(u->block.buffer_register));
    emit_slot(&u->e, 0x8b, u->block.scratch_register, SLOT_GPR(u->block.scratch_register));
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
    unsigned a = u->block.buffer_register, t = u->block.scratch_register;

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
    emit_jump(e, AREA_CODE); /* see lookup_emit */
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
        x->is_inverted = side->is_inverted;
        if (side->is_indirect) {
            emit_slot(&u->e, 0x8b, RCX, SLOT_RCX);
            emit_indirect_exit(u, x);
        } else {
            emit_exit(u, x);
        }
    }
}

/* ---- The block ---- */

/* All that an unconditional transfer of control does but going there; the target of an indirect one
 * is then in the scratch register. */
static void
emit_transfer(struct builder *u, const struct step *s)
{
    uint64_t after = s->ip + s->p.length;

    switch (s->form->flow) {
    case FLOW_CALL:
        push_constant(u, after);
        break;
    case FLOW_CALL_INDIRECT:
        load_target(u, s);
        emit_slot(&u->e, 0x89, u->block.scratch_register, SLOT_TARGET);
        push_constant(u, after);
        emit_slot(&u->e, 0x8b, u->block.scratch_register, SLOT_TARGET);
        break;
    case FLOW_JUMP_INDIRECT:
        load_target(u, s);
        break;
    case FLOW_RETURN:
        emit_move(&u->e, 0x8b, u->block.scratch_register, RSP, 0);
        emit_move(&u->e, 0x8d, RSP, RSP, 8 + popped_arguments(s));
        break;
    default:
        break;
    }
}

/* Leave the path unless the scratch register holds the address where it goes on. */
static void
emit_guard(struct builder *u, unsigned number)
{
    struct emitter *e = &u->e;

    emit_slot(e, 0x89, RCX, SLOT_RCX);
    emit_constant(e, RCX, -u->path.step[number].next);
    emit_lea(e, RCX, RCX, u->block.scratch_register, 1, 0, false);
    emit_byte(e, 0xe3); /* jrcxz over the jump */
    emit_byte(e, 5);
    emit_jump(e, e->at);
    add_side(u, number, u->path.step[number].next, true, false);
    emit_slot(e, 0x8b, RCX, SLOT_RCX);
}

static void
emit_last(struct builder *u, unsigned number)
{
    const struct step *s = &u->path.step[number];
    uint64_t after = s->ip + s->p.length;

    emit_transfer(u, s);
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
    b->instruction[b->instructions++] =
        (struct instruction){s->ip, u->e.at, u->block.accesses, u->prefetches, s->form->flow,
                             dependences_of(&s->p, s->form)};
    if (is_special(s->form))
        record_special(u, number);
    else
        record_plain(u, number);
    u->prefetches += (s->form->flags & RECIPE_PREFETCHES) != 0;
    if (s->way == WAY_END)
        return;
    if (s->form->flow == FLOW_NEXT)
        copy_instruction(u, number);
    else if (s->form->flow == FLOW_BRANCH || s->form->flow == FLOW_SHORT_BRANCH)
        copy_branch(u, number);
    else
        emit_transfer(u, s);
    if (s->way == WAY_GUESS)
        emit_guard(u, number);
    follow(u, s);
}

static void
emit_block(struct builder *u)
{
    struct emitter *e = &u->e;
    struct path *path = &u->path;
    bool ends = path->count != 0 && path->step[path->count - 1].way == WAY_END;

    u->block.cold = e->at;
    emit_slot(e, 0x89, u->block.buffer_register, SLOT_GPR(u->block.buffer_register));
    emit_slot(e, 0x89, u->block.scratch_register, SLOT_GPR(u->block.scratch_register));
    emit_slot(e, 0x8b, u->block.buffer_register, SLOT_BUFFER);
    u->block.warm = e->at;
    for (unsigned i = 0; i < 16; i++)
        u->holding[i] = (struct holding){i, 0};
    u->values = 16;
    u->words = 1;
    for (unsigned i = 0; i < path->count && !u->out_of_memory; i++) {
        if (u->words > BLOCK_MAXIMUM_WORDS - WIDEST_INSTRUCTION_WORDS) {
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
    if (path->last_kind == EXIT_SYSCALL && !ends) {
        struct exit *crossed = add_exit(u, EXIT_CROSSED, 0);
        crossed->accesses = crossed->prefetches = 0;
        crossed->words = crossed->instructions = 1;
    }
    emit_side_exits(u);
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
    u.recordeds = u.sides = u.prefetches = 0;
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

