#include "core.h"
#include "recipe.h"

#include <cpuid.h>
#include <string.h>

#define XMM_OFFSET 160
#define XSAVE_HEADER_END 576
#define COMPONENT_YMM 2
#define COMPONENT_OPMASK 5
#define COMPONENT_ZMM_HIGH 6
#define COMPONENT_ZMM_UPPER 7
#define COMPONENTS 63
#define RCX_WORD (offsetof(struct user_regs_struct, rcx) / 8)

static struct {
    unsigned offset, size;
    int aligned;
} components[COMPONENTS];
static uint64_t enabled_components;

/* Idempotent, so that two threads may run it at once. */
static void
load_components(void)
{
    unsigned a, b, c, d;

    if (enabled_components != 0)
        return;
    __cpuid_count(0xd, 0, a, b, c, d);
    uint64_t enabled = (uint64_t)d << 32 | a;
    for (unsigned i = 2; i < COMPONENTS; i++) {
        if (!(enabled >> i & 1))
            continue;
        __cpuid_count(0xd, i, a, b, c, d);
        components[i].size = a;
        components[i].offset = b;
        components[i].aligned = c >> 1 & 1;
    }
    enabled_components = enabled | 3;
}

static uint64_t
word(const struct user_regs_struct *regs, unsigned index)
{
    uint64_t value = 0;
    if (index != RECIPE_NO_REGISTER)
        memcpy(&value, (const char *)regs + 8 * (size_t)index, 8);
    return value;
}

/* The bytes of one vector register, all 64 of them. */
static void
read_vector(const uint8_t *xstate, unsigned number, uint8_t bytes[64])
{
    memset(bytes, 0, 64);
    if (number >= 16) {
        if (components[COMPONENT_ZMM_UPPER].size != 0)
            memcpy(bytes, xstate + components[COMPONENT_ZMM_UPPER].offset + 64 * (number - 16), 64);
        return;
    }
    memcpy(bytes, xstate + XMM_OFFSET + 16 * number, 16);
    if (components[COMPONENT_YMM].size != 0)
        memcpy(bytes + 16, xstate + components[COMPONENT_YMM].offset + 16 * number, 16);
    if (components[COMPONENT_ZMM_HIGH].size != 0)
        memcpy(bytes + 32, xstate + components[COMPONENT_ZMM_HIGH].offset + 32 * number, 32);
}

void
recipe_put_vector(uint8_t *xstate, unsigned number, const void *given, unsigned size_bytes)
{
    const uint8_t *bytes = given;

    load_components();
    if (number >= 16) {
        memcpy(xstate + components[COMPONENT_ZMM_UPPER].offset + 64 * (number - 16), bytes,
               size_bytes);
        return;
    }
    memcpy(xstate + XMM_OFFSET + 16 * number, bytes, 16);
    if (size_bytes > 16)
        memcpy(xstate + components[COMPONENT_YMM].offset + 16 * number, bytes + 16, 16);
    if (size_bytes > 32)
        memcpy(xstate + components[COMPONENT_ZMM_HIGH].offset + 32 * number, bytes + 32, 32);
}

void
recipe_put_opmask(uint8_t *xstate, unsigned number, uint64_t value)
{
    load_components();
    memcpy(xstate + components[COMPONENT_OPMASK].offset + 8 * number, &value, 8);
}

static uint64_t
active_lanes(const struct recipe_reference *m, const uint8_t *xstate)
{
    uint64_t all = m->lanes >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << m->lanes) - 1;
    uint64_t lanes = all;

    if (m->mask_kind == MASK_OPMASK) {
        memcpy(&lanes, xstate + components[COMPONENT_OPMASK].offset + 8 * m->mask_register, 8);
    } else if (m->mask_kind == MASK_SIGNS) {
        uint8_t bytes[64];
        read_vector(xstate, m->mask_register, bytes);
        lanes = 0;
        for (unsigned i = 0; i < m->lanes; i++)
            lanes |= (uint64_t)(bytes[(i + 1) * m->lane_bytes - 1] >> 7) << i;
    }
    return lanes & all;
}

static unsigned
xsave_bytes(const struct user_regs_struct *regs, int compact)
{
    uint64_t wanted = (regs->rdx << 32 | (uint32_t)regs->rax) & enabled_components;
    unsigned end = XSAVE_HEADER_END;

    for (unsigned i = 2; i < COMPONENTS; i++) {
        if (!(wanted >> i & 1))
            continue;
        if (!compact)
            end = components[i].offset + components[i].size > end
                      ? components[i].offset + components[i].size
                      : end;
        else
            end = (components[i].aligned ? (end + 63u) & ~63u : end) + components[i].size;
    }
    return end;
}

/* How far from its memory operand a bit test reaches: whole operands, either way. */
static uint64_t
bit_offset_bytes(uint64_t bit, unsigned size_bytes)
{
    unsigned unused = 64 - 8 * size_bytes;
    int64_t number = (int64_t)(bit << unused) >> unused;
    return (uint64_t)((number >> (size_bytes == 2 ? 4 : size_bytes == 4 ? 5 : 6)) * size_bytes);
}

/* One reference of one direction. */
static int
emit_reference(const struct recipe *r, const struct recipe_reference *m,
               const struct user_regs_struct *regs, const uint8_t *xstate, int is_write,
               recipe_emit emit, void *context)
{
    uint64_t base = word(regs, m->base) + (uint64_t)m->displacement, segment;
    uint64_t lanes;
    int result = 0;

    if (m->kind == REFERENCE_XLAT)
        base += word(regs, m->index) & 0xff;
    else if (m->kind != REFERENCE_GATHER)
        base += word(regs, m->index) * m->scale;
    if (m->kind == REFERENCE_BIT)
        base += bit_offset_bytes(word(regs, m->mask_register), m->size_bytes);
    segment = word(regs, m->segment);
    uint64_t mask = m->is_32_bit ? 0xffffffffu : ~(uint64_t)0;
    switch (m->kind) {
    case REFERENCE_PLAIN:
    case REFERENCE_BIT:
    case REFERENCE_XLAT:
        return emit(context, r->ip, segment + (base & mask), m->size_bytes, is_write);
    case REFERENCE_XSAVE:
    case REFERENCE_XSAVEC:
        return emit(context, r->ip, segment + (base & mask),
                    xsave_bytes(regs, m->kind == REFERENCE_XSAVEC), is_write);
    case REFERENCE_MASKED:
    case REFERENCE_COMPRESSED:
        lanes = active_lanes(m, xstate);
        if (lanes == 0)
            return 0;
        if (m->size_bytes == m->lane_bytes) /* broadcast: one element, whatever the lanes */
            return emit(context, r->ip, segment + (base & mask), m->size_bytes, is_write);
        unsigned first = (unsigned)__builtin_ctzll(lanes);
        unsigned last = 63u - (unsigned)__builtin_clzll(lanes);
        if (m->kind == REFERENCE_COMPRESSED)
            first = 0, last = (unsigned)__builtin_popcountll(lanes) - 1;
        return emit(context, r->ip, segment + ((base + first * m->lane_bytes) & mask),
                    (last - first + 1) * m->lane_bytes, is_write);
    default:
        break;
    }
    uint8_t indices[64];
    read_vector(xstate, m->index, indices);
    lanes = active_lanes(m, xstate);
    for (unsigned i = 0; i < m->lanes && result == 0; i++) {
        int64_t index = 0;
        if (!(lanes >> i & 1))
            continue;
        if (m->index_bytes == 4) {
            int32_t narrow;
            memcpy(&narrow, indices + 4 * i, 4);
            index = narrow;
        } else {
            memcpy(&index, indices + 8 * i, 8);
        }
        uint64_t address = base + (uint64_t)index * m->scale;
        result = emit(context, r->ip, segment + (address & mask), m->lane_bytes, is_write);
    }
    return result;
}

int
recipe_references(const struct recipe *r, const struct user_regs_struct *regs,
                  const uint8_t *xstate, recipe_emit emit, void *context)
{
    int result = 0;

    load_components();
    if (r->flags & RECIPE_REPEATED) {
        uint64_t count = word(regs, RCX_WORD);
        if ((r->reference[0].is_32_bit ? (uint32_t)count : count) == 0)
            return 0;
    }
    for (int is_write = 0; is_write < 2; is_write++)
        for (unsigned i = 0; i < r->references && result == 0; i++) {
            const struct recipe_reference *m = &r->reference[i];
            if (is_write ? m->stores : m->loads)
                result = emit_reference(r, m, regs, xstate, is_write, emit, context);
        }
    return result;
}
