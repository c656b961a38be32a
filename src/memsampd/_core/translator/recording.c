#include "recording.h"

#include <string.h>

#define WIDEST_INSTRUCTION_WORDS 40
#define FS_BASE_WORD 21

void
recording_begin(struct recording *r, struct blocks *b, struct emitter *e, struct pair pair)
{
    r->b = b;
    r->e = e;
    r->pair = pair;
    r->recordeds = r->accesses = 0;
    r->words = 1;
    holdings_begin(&r->holdings);
}

bool
recording_has_room(const struct recording *r)
{
    return r->words <= BLOCK_MAXIMUM_WORDS - WIDEST_INSTRUCTION_WORDS;
}

static void
record_register(struct recording *r, unsigned reg)
{
    emit_move(r->e, 0x89, reg, r->pair.buffer, 8 * r->words++);
}

/* The word from which an address follows, recording it if it is new; `*delta` completes it. */
static uint16_t
word_for(struct recording *r, unsigned base, unsigned index, unsigned scale, int64_t displacement,
         bool address_32, int64_t *delta)
{
    struct holding none = {NO_VALUE, 0};
    struct holding hb = base == NO_GPR ? none : r->holdings.of[base];
    struct holding hi = index == NO_GPR ? none : r->holdings.of[index];

    if (address_32) {
        emit_lea(r->e, r->pair.scratch, base, index, scale, (int32_t)displacement, true);
        record_register(r, r->pair.scratch);
        *delta = 0;
        return (uint16_t)(r->words - 1);
    }
    if (index == NO_GPR && (base == NO_GPR || hb.value == CONSTANT_VALUE)) {
        *delta = hb.offset + displacement;
        return 0;
    }
    for (unsigned i = 0; i < r->recordeds; i++) {
        const struct recorded *k = &r->recorded[i];
        if (k->base != hb.value || k->index != hi.value || (index != NO_GPR && k->scale != scale))
            continue;
        *delta = displacement + hb.offset - k->base_offset +
                 (hi.offset - k->index_offset) * (int64_t)scale;
        return k->word;
    }
    *delta = displacement;
    if (index != NO_GPR) {
        emit_lea(r->e, r->pair.scratch, base, index, scale, 0, false);
        record_register(r, r->pair.scratch);
    } else {
        record_register(r, base);
    }
    r->recorded[r->recordeds++] = (struct recorded){
        hb.value, hi.value, scale, hb.offset, hi.offset, (uint16_t)(r->words - 1)};
    return (uint16_t)(r->words - 1);
}

static bool
add_access(struct recording *r, uint64_t ip, int64_t delta, uint16_t word, unsigned size_bytes,
           bool is_write, enum access_source source, unsigned instruction)
{
    struct accesses *a = &r->b->accesses;

    if (a->count + ACCESS_VECTOR >= a->capacity && !blocks_grow_accesses(a))
        return false;
    a->ip[a->count] = ip;
    a->delta[a->count] = delta;
    a->operand[a->count] = (struct operand){
        word, (uint16_t)source, (uint16_t)(size_bytes != 0 ? size_bytes - 1 : 0), 0};
    a->size_bytes[a->count] = (uint16_t)size_bytes;
    a->instruction[a->count] = (uint16_t)instruction;
    a->is_write[a->count++] = is_write;
    r->accesses++;
    return true;
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

static bool
record_plain(struct recording *r, const struct step *s, unsigned number)
{
    struct recipe_reference reference[RECIPE_REFERENCES];
    int64_t delta[RECIPE_REFERENCES];
    uint16_t word[RECIPE_REFERENCES];

    for (unsigned i = 0; i < s->form->references; i++) {
        struct recipe_reference *m = &reference[i];
        settle_reference(s, &s->form->reference[i], m);
        word[i] = word_for(r, m->base, m->index, m->scale, m->displacement, m->is_32_bit, &delta[i]);
    }
    for (int is_write = 0; is_write < 2; is_write++)
        for (unsigned i = 0; i < s->form->references; i++) {
            const struct recipe_reference *m = &reference[i];
            if (!(is_write ? m->stores : m->loads))
                continue;
            enum access_source source = m->segment == RECIPE_NO_REGISTER ? ACCESS_WORD
                                        : m->segment == FS_BASE_WORD     ? ACCESS_FS
                                                                         : ACCESS_GS;
            if (!add_access(r, s->ip, delta[i], word[i], m->size_bytes, is_write, source, number))
                return false;
        }
    return true;
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
special_gpr(struct recording *r, struct special *x, unsigned reg)
{
    unsigned free_at = 0;

    if (reg == NO_GPR)
        return;
    for (; free_at < SPECIAL_GPRS && x->gpr[free_at] != NO_GPR; free_at++)
        if (x->gpr[free_at] == reg)
            return;
    x->gpr[free_at] = (uint8_t)reg;
    x->gpr_word[free_at] = r->words;
    record_register(r, reg);
}

static void
special_vector(struct recording *r, struct special *x, enum encoding encoding, unsigned number,
               unsigned size_bytes)
{
    unsigned i = x->vectors++;
    size_bytes = size_bytes <= 8 ? 8 : size_bytes <= 16 ? 16 : size_bytes <= 32 ? 32 : 64;
    x->vector[i] = (uint8_t)number;
    x->vector_bytes[i] = (uint8_t)size_bytes;
    x->vector_word[i] = r->words;
    if (size_bytes == 8)
        emit_store_opmask(r->e, number, r->pair.buffer, 8 * r->words);
    else
        emit_store_vector(r->e, encoding, number, size_bytes, r->pair.buffer, 8 * r->words);
    r->words = (uint16_t)(r->words + size_bytes / 8);
}

/* Record what one hangs on, and have it refer to where that is put for recipe_references. */
static void
special_reference(struct recording *r, struct special *x, const struct step *s,
                  struct recipe_reference *m)
{
    unsigned base = m->base, index = m->index;

    special_gpr(r, x, base);
    m->base = base == NO_GPR ? RECIPE_NO_REGISTER : gpr_words[base];
    if (m->kind == REFERENCE_GATHER) {
        unsigned bytes = m->lanes * m->index_bytes;
        special_vector(r, x, s->p.encoding, index, bytes < 16 ? 16 : bytes);
    } else {
        special_gpr(r, x, index);
        m->index = index == NO_GPR ? RECIPE_NO_REGISTER : gpr_words[index];
    }
    if (m->mask_kind == MASK_OPMASK) {
        special_vector(r, x, s->p.encoding, m->mask_register, 8);
    } else if (m->mask_kind == MASK_SIGNS) {
        unsigned bytes = m->lanes * m->lane_bytes;
        special_vector(r, x, s->p.encoding, m->mask_register, bytes < 16 ? 16 : bytes);
    }
    if (m->kind == REFERENCE_BIT) {
        special_gpr(r, x, s->p.reg);
        m->mask_register = gpr_words[s->p.reg & 15];
    }
    if (m->kind == REFERENCE_XSAVE || m->kind == REFERENCE_XSAVEC) {
        special_gpr(r, x, RAX);
        special_gpr(r, x, RDX);
    }
}

/* The references of an instruction that may be none, or many: told when a record is expanded. */
static bool
record_special(struct recording *r, const struct step *s, unsigned number)
{
    struct blocks *b = r->b;
    struct special x;

    memset(&x, 0, sizeof x);
    memset(x.gpr, NO_GPR, sizeof x.gpr);
    x.recipe.ip = s->ip;
    x.recipe.length = s->p.length;
    x.recipe.flags = s->form->flags;
    x.recipe.references = s->form->references;
    if (s->form->flags & RECIPE_REPEATED)
        special_gpr(r, &x, RCX);
    for (unsigned i = 0; i < s->form->references; i++) {
        settle_reference(s, &s->form->reference[i], &x.recipe.reference[i]);
        special_reference(r, &x, s, &x.recipe.reference[i]);
    }
    if (s->form->flags & RECIPE_REPEATED) { /* written when the instruction is done */
        x.count_after_word = r->words++;
        x.pointer_after_word = r->words++;
        x.copy_at = r->e->at;
    }
    if (!blocks_grow((void **)&b->special, &b->special_capacity, b->specials + 1, sizeof x))
        return false;
    b->special[b->specials] = x;
    return add_access(r, s->ip, (int64_t)b->specials++, 0, 0, false, ACCESS_SPECIAL, number);
}

bool
recording_add(struct recording *r, const struct step *s, unsigned number)
{
    return is_special(s->form) ? record_special(r, s, number) : record_plain(r, s, number);
}

void
recording_follow(struct recording *r, const struct step *s)
{
    if (s->form->flags & RECIPE_REPEATED) {
        const struct special *x = &r->b->special[r->b->specials - 1];
        unsigned pointer = x->recipe.reference[0].base == gpr_words[RSI] ? RSI : RDI;
        emit_move(r->e, 0x89, RCX, r->pair.buffer, 8 * x->count_after_word);
        emit_move(r->e, 0x89, pointer, r->pair.buffer, 8 * x->pointer_after_word);
    }
    holdings_follow(&r->holdings, s);
}
