#include "blocks.h"
#include "emitter.h"

#include <errno.h>
#include <nmmintrin.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096u
#define BLOCK_MAXIMUM_INSTRUCTIONS 48
#define BLOCK_MAXIMUM_WORDS 400
#define BLOCK_MAXIMUM_CODE 16384
#define AHEAD_BLOCKS 16
#define FIRST_CAPACITY 4096
#define LINK_BYTES 5
#define RESTORE_BYTES 21
#define NO_VALUE 0xffffu
#define CONSTANT_VALUE 0xfffeu

/* Buffer pointer and scratch come from here, in this order; never rsp, nor rcx, which jrcxz tests.
 * Registers that compilers use last come first, so that neighbours tend to agree on a pair. */
static const uint8_t candidates[] = {R11, R10, R9, R8, R15, R14, R13, R12, RBX, RBP, RDI, RSI,
                                     RDX, RAX};

/* Position in struct user_regs_struct, as 8-byte words, of a register by its number. */
static const uint8_t register_words[16] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0};
#define FS_BASE_WORD 21

struct step {
    struct parsed p;
    const struct form *form;
    uint64_t ip;
};

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

struct builder {
    struct blocks *b;
    struct emitter e;
    struct block block;
    uint32_t number;
    struct step steps[BLOCK_MAXIMUM_INSTRUCTIONS];
    unsigned count;
    uint64_t next_ip;       /* behind the last step */
    uint8_t last_kind;      /* how it goes on there if the last step does not say */
    struct holding holding[16];
    unsigned values;
    struct recorded recorded[BLOCK_MAXIMUM_WORDS];
    unsigned recordeds;
    uint16_t words, prefetches;
    struct {
        uint32_t jump_at;   /* its 32-bit displacement */
        uint64_t target;
        uint16_t accesses, words, instructions, prefetches;
    } side[BLOCK_MAXIMUM_INSTRUCTIONS];
    unsigned sides;
    bool out_of_memory;
};

/* ---- Storage ---- */

static bool
grow(void **array, size_t *capacity, size_t wanted, size_t item)
{
    if (wanted <= *capacity)
        return true;
    size_t bigger = *capacity == 0 ? FIRST_CAPACITY : 2 * *capacity;
    while (bigger < wanted)
        bigger *= 2;
    void *moved = realloc(*array, bigger * item);
    if (moved == NULL)
        return false;
    *array = moved;
    *capacity = bigger;
    return true;
}

static bool
grow_accesses(struct accesses *a)
{
    size_t capacity = a->capacity == 0 ? FIRST_CAPACITY : 2 * a->capacity;
    size_t each[7] = {a->capacity, a->capacity, a->capacity, a->capacity,
                      a->capacity, a->capacity, a->capacity};
    bool grown = grow((void **)&a->ip, &each[0], capacity, sizeof *a->ip) &&
                 grow((void **)&a->delta, &each[1], capacity, sizeof *a->delta) &&
                 grow((void **)&a->size_bytes, &each[2], capacity, sizeof *a->size_bytes) &&
                 grow((void **)&a->word, &each[3], capacity, sizeof *a->word) &&
                 grow((void **)&a->instruction, &each[4], capacity, sizeof *a->instruction) &&
                 grow((void **)&a->is_write, &each[5], capacity, 1) &&
                 grow((void **)&a->source, &each[6], capacity, 1);
    if (grown)
        a->capacity = capacity;
    return grown;
}

static size_t
hash(uint64_t value, size_t capacity)
{
    return (size_t)(value * 0x9e3779b97f4a7c15u >> 24) & (capacity - 1);
}

uint32_t
blocks_find(const struct blocks *b, uint64_t ip)
{
    if (b->index_capacity == 0)
        return NO_BLOCK;
    for (size_t slot = hash(ip, b->index_capacity);; slot = (slot + 1) & (b->index_capacity - 1)) {
        uint32_t entry = b->index[slot];
        if (entry == 0)
            return NO_BLOCK;
        if (b->block[entry - 1].ip == ip)
            return entry - 1;
    }
}

static void
index_put(struct blocks *b, uint32_t block)
{
    size_t slot = hash(b->block[block].ip, b->index_capacity);
    while (b->index[slot] != 0)
        slot = (slot + 1) & (b->index_capacity - 1);
    b->index[slot] = block + 1;
}

static void
index_rebuild(struct blocks *b)
{
    memset(b->index, 0, b->index_capacity * sizeof *b->index);
    for (uint32_t i = 0; i < b->count; i++)
        if (!b->block[i].is_dead)
            index_put(b, i);
}

static bool
index_reserve(struct blocks *b)
{
    if (2 * (b->count + 1) <= b->index_capacity)
        return true;
    size_t capacity = b->index_capacity == 0 ? 4 * FIRST_CAPACITY : 2 * b->index_capacity;
    uint32_t *index = calloc(capacity, sizeof *index);
    if (index == NULL)
        return false;
    free(b->index);
    b->index = index;
    b->index_capacity = capacity;
    index_rebuild(b);
    return true;
}

static void
clear_lookup(struct blocks *b)
{
    uint64_t *negated = (uint64_t *)(b->area + AREA_LOOKUP);
    for (size_t i = 0; i < (size_t)1 << AREA_LOOKUP_BITS; i++)
        negated[i] = 1; /* matches no address */
}

int
blocks_init(struct blocks *b, uint8_t *area)
{
    memset(b, 0, sizeof *b);
    b->area = area;
    b->memory = -1;
    clear_lookup(b);
    return 0;
}

void
blocks_flush(struct blocks *b)
{
    b->count = b->exits = b->instructions = b->specials = b->accesses.count = 0;
    b->code_used = 0;
    if (b->index_capacity != 0)
        memset(b->index, 0, b->index_capacity * sizeof *b->index);
    for (size_t i = 0; i < b->page_capacity; i++)
        free(b->page[i].bytes);
    if (b->page_capacity != 0)
        memset(b->page, 0, b->page_capacity * sizeof *b->page);
    b->pages = 0;
    clear_lookup(b);
}

void
blocks_free(struct blocks *b)
{
    for (size_t i = 0; i < b->page_capacity; i++)
        free(b->page[i].bytes);
    free(b->page);
    free(b->index);
    free(b->block);
    free(b->exit);
    free(b->instruction);
    free(b->special);
    free(b->accesses.ip);
    free(b->accesses.delta);
    free(b->accesses.size_bytes);
    free(b->accesses.word);
    free(b->accesses.instruction);
    free(b->accesses.is_write);
    free(b->accesses.source);
    form_table_clear(&b->forms);
    memset(b, 0, sizeof *b);
}

/* ---- The program's code ---- */

static struct code_page *
page_at(struct blocks *b, uint64_t address)
{
    if (2 * (b->pages + 1) > b->page_capacity) {
        size_t capacity = b->page_capacity == 0 ? 1024 : 2 * b->page_capacity;
        struct code_page *bigger = calloc(capacity, sizeof *bigger);
        if (bigger == NULL)
            return NULL;
        for (size_t i = 0; i < b->page_capacity; i++) {
            if (b->page[i].address == 0)
                continue;
            size_t slot = hash(b->page[i].address, capacity);
            while (bigger[slot].address != 0)
                slot = (slot + 1) & (capacity - 1);
            bigger[slot] = b->page[i];
        }
        free(b->page);
        b->page = bigger;
        b->page_capacity = capacity;
    }
    size_t slot = hash(address, b->page_capacity);
    while (b->page[slot].address != 0 && b->page[slot].address != address)
        slot = (slot + 1) & (b->page_capacity - 1);
    struct code_page *page = &b->page[slot];
    if (page->address == 0) {
        page->address = address;
        page->bytes = malloc(PAGE);
        b->pages++;
        if (page->bytes != NULL && (address >> 63 != 0 ||
            pread(b->memory, page->bytes, PAGE, (off_t)address) != (ssize_t)PAGE)) {
            free(page->bytes);
            page->bytes = NULL;
        }
    }
    return page;
}

/* Copy code; returns how many bytes could be read, at most the size of an instruction. */
static size_t
read_code(struct blocks *b, uint64_t ip, uint8_t code[INSTRUCTION_MAXIMUM_BYTES])
{
    size_t done = 0;
    while (done < INSTRUCTION_MAXIMUM_BYTES) {
        uint64_t at = ip + done;
        struct code_page *page = page_at(b, at & ~(uint64_t)(PAGE - 1));
        if (page == NULL || page->bytes == NULL)
            break;
        size_t offset = at & (PAGE - 1), part = PAGE - offset;
        part = part < INSTRUCTION_MAXIMUM_BYTES - done ? part : INSTRUCTION_MAXIMUM_BYTES - done;
        memcpy(code + done, page->bytes + offset, part);
        done += part;
    }
    return done;
}

bool
blocks_use_page(const struct blocks *b, uint64_t address)
{
    uint64_t page = address & ~(uint64_t)(PAGE - 1);

    if (b->page_capacity == 0)
        return false;
    size_t slot = hash(page, b->page_capacity);
    while (b->page[slot].address != 0 && b->page[slot].address != page)
        slot = (slot + 1) & (b->page_capacity - 1);
    return b->page[slot].address == page;
}

static bool
was_written(const struct blocks *b, uint64_t address)
{
    for (unsigned i = 0; i < b->written_pages; i++)
        if (b->written_page[i] == (address & ~(uint64_t)(PAGE - 1)))
            return true;
    return false;
}

static void set_trap(struct blocks *b, const struct exit *x);

long
blocks_check_code(struct blocks *b)
{
    uint8_t now[PAGE];
    long dropped = 0;
    bool any = false;

    for (size_t i = 0; i < b->page_capacity; i++) {
        struct code_page *page = &b->page[i];
        if (page->address == 0)
            continue;
        bool readable = pread(b->memory, now, PAGE, (off_t)page->address) == (ssize_t)PAGE;
        page->has_changed = readable != (page->bytes != NULL) ||
                            (readable && memcmp(now, page->bytes, PAGE) != 0);
        if (!page->has_changed)
            continue;
        any = true;
        if (readable && page->bytes == NULL && (page->bytes = malloc(PAGE)) == NULL)
            return -1;
        if (readable) {
            memcpy(page->bytes, now, PAGE);
        } else {
            free(page->bytes);
            page->bytes = NULL;
        }
    }
    if (!any)
        return 0;
    for (size_t i = 0; i < b->count; i++) {
        struct block *block = &b->block[i];
        if (block->is_dead)
            continue;
        for (uint64_t at = block->ip & ~(uint64_t)(PAGE - 1); at < block->end_ip; at += PAGE)
            block->is_dead |= page_at(b, at)->has_changed;
        dropped += block->is_dead;
    }
    for (size_t i = 0; i < b->exits; i++) {
        struct exit *x = &b->exit[i];
        if (x->linked != NO_BLOCK && b->block[x->linked].is_dead)
            set_trap(b, x);
    }
    for (size_t i = 0; i < b->page_capacity; i++)
        b->page[i].has_changed = false;
    if (dropped != 0) {
        index_rebuild(b);
        clear_lookup(b);
    }
    return dropped;
}

/* ---- Links ---- */

static void
set_trap(struct blocks *b, const struct exit *x)
{
    static const uint8_t trap[LINK_BYTES] = {0xcc, 0x90, 0x90, 0x90, 0x90};
    memcpy(b->area + x->link_at, trap, sizeof trap);
    ((struct exit *)x)->linked = NO_BLOCK;
}

static void
set_link(struct blocks *b, uint32_t exit, uint32_t to)
{
    static const uint8_t nop[LINK_BYTES] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
    struct exit *x = &b->exit[exit];
    const struct block *from = &b->block[x->block], *target = &b->block[to];
    struct emitter e = {b->area, x->link_at};

    x->linked = to;
    if (from->buffer_register == target->buffer_register &&
        from->scratch_register == target->scratch_register) {
        emit_jump(&e, target->warm);
        return;
    }
    emit_bytes(&e, nop, sizeof nop);
    e.at += RESTORE_BYTES;
    emit_jump(&e, target->cold);
}

__attribute__((target("sse4.2"))) void
blocks_publish(struct blocks *b, uint32_t block)
{
    uint64_t ip = b->block[block].ip;
    size_t slot = _mm_crc32_u64((uint32_t)(b->area_address + AREA_LOOKUP), ip) & ((1u << AREA_LOOKUP_BITS) - 1);
    uint64_t *negated = (uint64_t *)(b->area + AREA_LOOKUP);

    negated[slot] = -ip;
    negated[slot + ((size_t)1 << AREA_LOOKUP_BITS)] = b->area_address + b->block[block].cold;
}

/* ---- Choosing the instructions of a block ---- */

static unsigned
gpr_set(const struct step *s)
{
    const struct parsed *p = &s->p;
    const struct form *f = s->form;
    unsigned set = f->implicit_used;

    if (f->used & FIELD_REG)
        set |= 1u << (p->reg & 15);
    if (f->used & FIELD_RM || p->has_opcode_register)
        set |= 1u << (p->rm & 15);
    if (f->used & FIELD_VVVV)
        set |= 1u << (p->vvvv & 15);
    /* ah to bh */
    if (p->is_legacy_byte_reg && f->used & FIELD_REG_BYTE && p->reg >= 4)
        set |= 1u << (p->reg & 3);
    if (p->is_legacy_byte_reg && f->used & FIELD_RM_BYTE && p->rm >= 4)
        set |= 1u << (p->rm & 3);
    if (p->is_legacy_byte_reg && p->has_opcode_register && p->rm >= 4)
        set |= 1u << (p->rm & 3);
    if (p->base != NO_GPR)
        set |= 1u << p->base;
    if (p->index != NO_GPR)
        set |= 1u << p->index; /* of a vector: harmless */
    return set;
}

/* The base register that replaces rip must not need a REX prefix, which hides ah to bh. */
static bool
needs_low_scratch(const struct step *s)
{
    return s->p.is_rip_relative && s->p.is_legacy_byte_reg && s->form->used & FIELD_REG_BYTE &&
           s->p.reg >= 4;
}

/* Choose buffer pointer and scratch; false if too few registers are left. */
static bool
choose_pair(struct block *block, unsigned used, bool low_scratch)
{
    unsigned chosen = 0;
    uint8_t *place[2] = {&block->scratch_register, &block->buffer_register};

    for (size_t i = 0; chosen < 2 && i < sizeof candidates; i++) {
        uint8_t candidate = candidates[low_scratch ? sizeof candidates - 1 - i : i];
        if (!(used >> candidate & 1))
            *place[chosen++] = candidate;
    }
    return chosen == 2 && !(low_scratch && block->scratch_register >= 8);
}

static bool
is_last(const struct form *f)
{
    return f->flow != FLOW_NEXT && f->flow != FLOW_BRANCH && f->flow != FLOW_SHORT_BRANCH;
}

/* What the copy of an instruction cannot do although its form is known. */
static bool
cannot_copy(const struct step *s)
{
    const struct parsed *p = &s->p;
    /* 16-bit branches. */
    if (p->operand_16 && s->form->flow != FLOW_NEXT)
        return true;
    if (p->address_32 && (s->form->flow == FLOW_SHORT_BRANCH || s->form->flags & RECIPE_REPEATED ||
                          p->is_rip_relative))
        return true;
    /* Only the string instructions move their pointers: rep with others means something else. */
    return s->form->flow == FLOW_SHORT_BRANCH && s->form->immediate_bytes != 1;
}

static enum translation
choose(struct builder *u, uint64_t ip)
{
    struct blocks *b = u->b;
    uint8_t code[INSTRUCTION_MAXIMUM_BYTES];
    unsigned used = 0;
    bool low_scratch = false;

    choose_pair(&u->block, 0, false);
    u->last_kind = EXIT_DIRECT;
    u->next_ip = ip;
    for (u->count = 0; u->count < BLOCK_MAXIMUM_INSTRUCTIONS;) {
        struct step *s = &u->steps[u->count];
        if (u->count != 0 && blocks_find(b, ip) != NO_BLOCK)
            break;
        if (was_written(b, ip) || was_written(b, ip + INSTRUCTION_MAXIMUM_BYTES - 1)) {
            u->last_kind = EXIT_UNSUPPORTED;
            break;
        }
        size_t size = read_code(b, ip, code);
        s->ip = ip;
        if (!parse(code, size, &s->p)) {
            u->last_kind = size < INSTRUCTION_MAXIMUM_BYTES ? EXIT_REFUSED : EXIT_UNSUPPORTED;
            break;
        }
        s->form = form_table_get(&b->forms, s->p.key);
        if (s->form == NULL) {
            b->sample_key = s->p.key;
            b->sample_operands = form_sample(&s->p, b->sample);
            return TRANSLATION_NEEDS_FORM;
        }
        s->p.length = (uint8_t)(s->p.length + s->form->immediate_bytes);
        if (s->p.displacement_is_8_bit)
            s->p.displacement *= s->form->displacement_scale;
        if (s->form->flags & RECIPE_SYSCALL) {
            u->last_kind = EXIT_SYSCALL;
            break;
        }
        if (s->form->flags & RECIPE_UNSUPPORTED || s->p.length > size || cannot_copy(s)) {
            u->last_kind = s->p.length > size ? EXIT_REFUSED : EXIT_UNSUPPORTED;
            break;
        }
        struct block tried = u->block;
        if (!choose_pair(&tried, used | gpr_set(s), low_scratch || needs_low_scratch(s)))
            break;
        u->block = tried;
        used |= gpr_set(s);
        low_scratch |= needs_low_scratch(s);
        ip += s->p.length;
        u->count++;
        u->next_ip = ip;
        if (is_last(s->form))
            break;
    }
    return TRANSLATED;
}

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

    if (a->count == a->capacity && !grow_accesses(a)) {
        u->out_of_memory = true;
        return;
    }
    a->ip[a->count] = ip;
    a->delta[a->count] = delta;
    a->word[a->count] = word;
    a->size_bytes[a->count] = (uint16_t)size_bytes;
    a->instruction[a->count] = (uint16_t)instruction;
    a->is_write[a->count] = is_write;
    a->source[a->count++] = (uint8_t)source;
    u->block.accesses++;
    u->block.is_plain &= source == ACCESS_WORD;
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
    const struct step *s = &u->steps[number];
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
    m->base = base == NO_GPR ? RECIPE_NO_REGISTER : register_words[base];
    if (m->kind == REFERENCE_GATHER) {
        unsigned bytes = m->lanes * m->index_bytes;
        special_vector(u, x, s->p.encoding, index, bytes < 16 ? 16 : bytes);
    } else {
        special_gpr(u, x, index);
        m->index = index == NO_GPR ? RECIPE_NO_REGISTER : register_words[index];
    }
    if (m->mask_kind == MASK_OPMASK) {
        special_vector(u, x, s->p.encoding, m->mask_register, 8);
    } else if (m->mask_kind == MASK_SIGNS) {
        unsigned bytes = m->lanes * m->lane_bytes;
        special_vector(u, x, s->p.encoding, m->mask_register, bytes < 16 ? 16 : bytes);
    }
    if (m->kind == REFERENCE_BIT) {
        special_gpr(u, x, s->p.reg);
        m->mask_register = register_words[s->p.reg & 15];
    }
    if (m->kind == REFERENCE_XSAVE || m->kind == REFERENCE_XSAVEC) {
        special_gpr(u, x, RAX);
        special_gpr(u, x, RDX);
    }
}

static void
record_special(struct builder *u, unsigned number)
{
    const struct step *s = &u->steps[number];
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
    if (!grow((void **)&b->special, &b->special_capacity, b->specials + 1, sizeof x)) {
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

static int64_t
immediate(const struct step *s)
{
    const uint8_t *end = s->p.bytes + s->p.length;
    int32_t wide;
    if (s->form->immediate_bytes == 1)
        return (int8_t)end[-1];
    memcpy(&wide, end - 4, 4);
    return wide;
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
        h[p->rm] = (struct holding){CONSTANT_VALUE, (uint32_t)immediate(s)};
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
        h[p->rm].offset += operation == 0 ? immediate(s) : -immediate(s);
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

static void
follow(struct builder *u, const struct step *s)
{
    const struct form *f = s->form;
    unsigned written = f->implicit_written;

    if (f->stack_delta != 0) {
        u->holding[RSP].offset += f->stack_delta;
        written &= ~(1u << RSP);
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
    const struct step *s = &u->steps[number];
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
        unsigned pointer = x->recipe.reference[0].base == register_words[RSI] ? RSI : RDI;
        emit_move(&u->e, 0x89, RCX, u->block.buffer_register, 8 * x->count_after_word);
        emit_move(&u->e, 0x89, pointer, u->block.buffer_register, 8 * x->pointer_after_word);
    }
}

static void
copy_branch(struct builder *u, unsigned number)
{
    const struct step *s = &u->steps[number];
    struct emitter *e = &u->e;

    if (s->form->flow == FLOW_SHORT_BRANCH) {
        emit_bytes(e, s->p.bytes, (size_t)s->p.length - 1);
        emit_byte(e, 2);
        emit_byte(e, 0xeb);
        emit_byte(e, 5);
        emit_byte(e, 0xe9);
    } else {
        emit_byte(e, 0x0f);
        emit_byte(e, 0x80u | (s->p.opcode & 15));
    }
    emit_i32(e, 0);
    u->side[u->sides].jump_at = e->at - 4;
    u->side[u->sides].target = s->ip + s->p.length + (uint64_t)immediate(s);
    u->side[u->sides].accesses = u->block.accesses;
    u->side[u->sides].words = u->words;
    u->side[u->sides].instructions = (uint16_t)(number + 1);
    u->side[u->sides++].prefetches = u->prefetches;
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

    if (!grow((void **)&b->exit, &b->exit_capacity, b->exits + 1, sizeof *b->exit)) {
        u->out_of_memory = true;
        return &lost;
    }
    struct exit *x = &b->exit[b->exits++];
    *x = (struct exit){.target = target,
                       .block = u->number,
                       .linked = NO_BLOCK,
                       .accesses = u->block.accesses,
                       .words = u->words,
                       .instructions = (uint16_t)u->count,
                       .prefetches = u->prefetches,
                       .kind = (uint8_t)kind};
    u->block.exits++;
    return x;
}

static void
finish_record(struct builder *u, const struct exit *x)
{
    unsigned buffer = u->block.buffer_register;
    emit_store_constant(&u->e, buffer, 0, (uint32_t)(x - u->b->exit));
    emit_move(&u->e, 0x8d, buffer, buffer, 8 * x->words);
}

static void
restore_pair(struct builder *u)
{
    emit_slot(&u->e, 0x8b, u->block.buffer_register, SLOT_A);
    emit_slot(&u->e, 0x8b, u->block.scratch_register, SLOT_B);
}

static void
emit_exit(struct builder *u, struct exit *x)
{
    struct emitter *e = &u->e;

    finish_record(u, x);
    x->link_at = e->at;
    set_trap(u->b, x);
    e->at += LINK_BYTES;
    if (x->kind != EXIT_DIRECT)
        return;
    emit_slot(e, 0x89, u->block.buffer_register, SLOT_BUFFER);
    restore_pair(u);
    emit_jump(e, e->at + 5);
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
    emit_area_address(e, RCX, AREA_LOOKUP);
    emit_copy(e, a, RCX); /* a seed: that of the target itself would cancel out */
    emit_byte(e, 0xf2);   /* crc32 a, t */
    emit_rex_w(e, a, 0, t);
    emit_bytes(e, "\x0f\x38\xf1", 3);
    emit_byte(e, 0xc0u | (a & 7) << 3 | (t & 7));
    emit_rex_w(e, a, 0, a); /* movzx a, a's low 16 bits */
    emit_bytes(e, "\x0f\xb7", 2);
    emit_byte(e, 0xc0u | (a & 7) << 3 | (a & 7));
    emit_lea(e, a, RCX, a, 8, 0, false);
    emit_move(e, 0x8b, RCX, a, 0);
    emit_lea(e, RCX, RCX, t, 1, 0, false);
    emit_byte(e, 0xe3); /* jrcxz over the trap */
    emit_byte(e, LINK_BYTES);
    x->link_at = e->at;
    set_trap(u->b, x);
    e->at += LINK_BYTES;
    emit_slot(e, 0x8b, RCX, SLOT_RCX);
    emit_move(e, 0x8b, a, a, 8 << AREA_LOOKUP_BITS);
    emit_slot(e, 0x89, a, SLOT_JUMP);
    restore_pair(u);
    emit_byte(e, 0xff);
    emit_byte(e, 0x25);
    emit_i32(e, (int64_t)SLOT_JUMP - (int64_t)(e->at + 4));
}

static void
emit_side_exits(struct builder *u)
{
    for (unsigned i = 0; i < u->sides; i++) {
        int32_t displacement = (int32_t)(u->e.at - (u->side[i].jump_at + 4));
        memcpy(u->e.area + u->side[i].jump_at, &displacement, 4);
        struct exit *x = add_exit(u, EXIT_DIRECT, u->side[i].target);
        x->accesses = u->side[i].accesses;
        x->words = u->side[i].words;
        x->instructions = u->side[i].instructions;
        x->prefetches = u->side[i].prefetches;
        emit_exit(u, x);
    }
}

/* ---- The block ---- */

static void
emit_last(struct builder *u, unsigned number)
{
    const struct step *s = &u->steps[number];
    uint64_t after = s->ip + s->p.length;

    switch (s->form->flow) {
    case FLOW_JUMP:
        emit_exit(u, add_exit(u, EXIT_DIRECT, after + (uint64_t)immediate(s)));
        break;
    case FLOW_CALL:
        push_constant(u, after);
        u->block.return_ip = after;
        emit_exit(u, add_exit(u, EXIT_DIRECT, after + (uint64_t)immediate(s)));
        break;
    case FLOW_CALL_INDIRECT:
        load_target(u, s);
        emit_slot(&u->e, 0x89, u->block.scratch_register, SLOT_TARGET);
        push_constant(u, after);
        emit_slot(&u->e, 0x8b, u->block.scratch_register, SLOT_TARGET);
        u->block.return_ip = after;
        emit_indirect_exit(u, add_exit(u, EXIT_INDIRECT, 0));
        break;
    case FLOW_JUMP_INDIRECT:
        load_target(u, s);
        emit_indirect_exit(u, add_exit(u, EXIT_INDIRECT, 0));
        break;
    case FLOW_RETURN: {
        uint16_t extra = 0;
        if (s->form->immediate_bytes == 2)
            memcpy(&extra, s->p.bytes + s->p.length - 2, 2);
        emit_move(&u->e, 0x8b, u->block.scratch_register, RSP, 0);
        emit_move(&u->e, 0x8d, RSP, RSP, 8 + extra);
        emit_indirect_exit(u, add_exit(u, EXIT_INDIRECT, 0));
        break;
    }
    default: /* FLOW_STOP */
        emit_bytes(&u->e, s->p.bytes, s->p.length);
        emit_exit(u, add_exit(u, EXIT_UNSUPPORTED, after));
    }
}

static void
emit_step(struct builder *u, unsigned number)
{
    const struct step *s = &u->steps[number];
    struct blocks *b = u->b;

    if (!grow((void **)&b->instruction, &b->instruction_capacity, b->instructions + 1,
              sizeof *b->instruction)) {
        u->out_of_memory = true;
        return;
    }
    b->instruction[b->instructions++] =
        (struct instruction){s->ip, u->e.at, u->block.accesses, u->prefetches};
    if (is_special(s->form))
        record_special(u, number);
    else
        record_plain(u, number);
    u->prefetches += (s->form->flags & RECIPE_PREFETCHES) != 0;
    if (is_last(s->form))
        return;
    if (s->form->flow != FLOW_NEXT)
        copy_branch(u, number);
    else
        copy_instruction(u, number);
    follow(u, s);
}

static void
emit_block(struct builder *u)
{
    struct emitter *e = &u->e;
    bool ends = u->count != 0 && is_last(u->steps[u->count - 1].form);

    u->block.cold = e->at;
    emit_slot(e, 0x89, u->block.buffer_register, SLOT_A);
    emit_slot(e, 0x89, u->block.scratch_register, SLOT_B);
    emit_slot(e, 0x8b, u->block.buffer_register, SLOT_BUFFER);
    u->block.warm = e->at;
    for (unsigned i = 0; i < 16; i++)
        u->holding[i] = (struct holding){i, 0};
    u->values = 16;
    u->words = 1;
    for (unsigned i = 0; i < u->count && !u->out_of_memory; i++) {
        if (u->words > BLOCK_MAXIMUM_WORDS - 40) { /* room for the widest instruction */
            u->next_ip = u->steps[i].ip;
            u->count = i;
            u->last_kind = EXIT_DIRECT;
            ends = false;
            break;
        }
        emit_step(u, i);
    }
    u->block.instructions = (uint16_t)u->count;
    u->block.end_ip = u->next_ip;
    if (ends)
        emit_last(u, u->count - 1);
    else
        emit_exit(u, add_exit(u, u->last_kind, u->next_ip));
    if (u->last_kind == EXIT_SYSCALL && !ends) {
        struct exit *crossed = add_exit(u, EXIT_CROSSED, 0);
        crossed->accesses = crossed->prefetches = 0;
        crossed->words = crossed->instructions = 1;
    }
    u->block.body_end = e->at;
    emit_side_exits(u);
    u->block.end = e->at;
}

static enum translation
translate_one(struct blocks *b, uint64_t ip, uint32_t *found)
{
    struct builder u;

    u.b = b;
    u.recordeds = u.sides = u.prefetches = 0;
    u.out_of_memory = false;
    memset(&u.block, 0, sizeof u.block);
    if (b->code_used + BLOCK_MAXIMUM_CODE > AREA_CODE_BYTES)
        return TRANSLATION_FULL;
    enum translation result = choose(&u, ip);
    if (result != TRANSLATED)
        return result;
    if (!index_reserve(b) ||
        !grow((void **)&b->block, &b->capacity, b->count + 1, sizeof *b->block))
        return TRANSLATION_NO_MEMORY;
    u.e = (struct emitter){b->area, AREA_CODE + b->code_used};
    u.number = (uint32_t)b->count;
    u.block.ip = ip;
    u.block.is_plain = 1;
    u.block.first_access = (uint32_t)b->accesses.count;
    u.block.first_instruction = (uint32_t)b->instructions;
    u.block.first_exit = (uint32_t)b->exits;
    emit_block(&u);
    if (u.out_of_memory)
        return TRANSLATION_NO_MEMORY;
    b->code_used = u.e.at - AREA_CODE;
    b->block[b->count] = u.block;
    *found = (uint32_t)b->count++;
    index_put(b, *found);
    b->translated_instructions += u.count;
    return TRANSLATED;
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

/* ---- Finding one's way back ---- */

bool
blocks_locate(const struct blocks *b, uint32_t offset, uint32_t *block, uint32_t *instruction)
{
    size_t low = 0, high = b->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (b->block[middle].end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == b->count || offset < b->block[low].cold)
        return false;
    const struct block *found = &b->block[low];
    *block = (uint32_t)low;
    *instruction = NO_BLOCK;
    for (uint32_t i = 0; i < found->instructions; i++)
        if (b->instruction[found->first_instruction + i].code_at <= offset &&
            offset < found->body_end)
            *instruction = found->first_instruction + i;
    return true;
}

long
blocks_exit_at(const struct blocks *b, uint32_t offset)
{
    uint32_t block, instruction;

    if (!blocks_locate(b, offset, &block, &instruction))
        return -1;
    const struct block *found = &b->block[block];
    for (uint32_t i = found->first_exit; i < found->first_exit + found->exits; i++)
        if (b->exit[i].link_at == offset)
            return (long)i;
    return -1;
}
