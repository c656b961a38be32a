/* The few x86-64 instructions that the translator adds to a program's. None changes flags. */
#ifndef MEMSAMPD_EMITTER_H
#define MEMSAMPD_EMITTER_H

#include "forms.h"

#include <string.h>

/* Where code goes: `at` is an offset into the area, as are all targets. */
struct emitter {
    uint8_t *area;
    uint32_t at;
};

static inline void
emit_byte(struct emitter *e, unsigned byte)
{
    e->area[e->at++] = (uint8_t)byte;
}

static inline void
emit_bytes(struct emitter *e, const void *bytes, size_t size)
{
    memcpy(e->area + e->at, bytes, size);
    e->at += (uint32_t)size;
}

static inline void
emit_i32(struct emitter *e, int64_t value)
{
    int32_t narrow = (int32_t)value;
    emit_bytes(e, &narrow, 4);
}

/* A ModRM byte, with SIB and displacement, for [base + displacement] or a register. */
static inline void
emit_base(struct emitter *e, unsigned reg, unsigned base, int32_t displacement)
{
    bool is_short = displacement >= -128 && displacement < 128;
    emit_byte(e, (is_short ? 0x40u : 0x80u) | (reg & 7) << 3 | (base & 7));
    if ((base & 7) == RSP)
        emit_byte(e, 0x24);
    if (is_short)
        emit_byte(e, (uint8_t)displacement);
    else
        emit_i32(e, displacement);
}

static inline void
emit_rex_w(struct emitter *e, unsigned reg, unsigned index, unsigned base)
{
    emit_byte(e, 0x48u | (reg >> 3 & 1) << 2 | (index >> 3 & 1) << 1 | (base >> 3 & 1));
}

/* mov between a register and a slot: opcode 0x89 stores, 0x8b loads. */
static inline void
emit_slot(struct emitter *e, unsigned opcode, unsigned reg, uint32_t offset)
{
    emit_rex_w(e, reg, 0, 0);
    emit_byte(e, opcode);
    emit_byte(e, 0x05u | (reg & 7) << 3);
    emit_i32(e, (int64_t)offset - (int64_t)(e->at + 4));
}

/* lea reg, [area + offset] */
static inline void
emit_area_address(struct emitter *e, unsigned reg, uint32_t offset)
{
    emit_slot(e, 0x8d, reg, offset);
}

/* mov [base + displacement], reg; with 0x8b the other way, with 0x8d lea. */
static inline void
emit_move(struct emitter *e, unsigned opcode, unsigned reg, unsigned base, int32_t displacement)
{
    emit_rex_w(e, reg, 0, base);
    emit_byte(e, opcode);
    emit_base(e, reg, base, displacement);
}

/* mov to, from */
static inline void
emit_copy(struct emitter *e, unsigned to, unsigned from)
{
    emit_rex_w(e, from, 0, to);
    emit_byte(e, 0x89);
    emit_byte(e, 0xc0u | (from & 7) << 3 | (to & 7));
}

static inline void
emit_constant(struct emitter *e, unsigned reg, uint64_t value)
{
    if ((int64_t)value == (int32_t)value) {
        emit_rex_w(e, 0, 0, reg);
        emit_byte(e, 0xc7);
        emit_byte(e, 0xc0u | (reg & 7));
        emit_i32(e, (int64_t)value);
        return;
    }
    emit_rex_w(e, 0, 0, reg);
    emit_byte(e, 0xb8u | (reg & 7));
    emit_bytes(e, &value, 8);
}

/* lea reg, [base + index * scale + displacement]; either may be NO_GPR. */
static inline void
emit_lea(struct emitter *e, unsigned reg, unsigned base, unsigned index, unsigned scale,
         int32_t displacement, bool address_32)
{
    unsigned has_base = base != NO_GPR, has_index = index != NO_GPR;
    unsigned log = scale == 8 ? 3 : scale == 4 ? 2 : scale == 2 ? 1 : 0;
    unsigned mod = !has_base ? 0 : displacement == 0 && (base & 7) != RBP ? 0 : 2;

    if (address_32)
        emit_byte(e, 0x67);
    emit_rex_w(e, reg, has_index ? index : 0, has_base ? base : 0);
    emit_byte(e, 0x8d);
    emit_byte(e, mod << 6 | (reg & 7) << 3 | 4);
    emit_byte(e, log << 6 | (has_index ? index & 7 : 4) << 3 | (has_base ? base & 7 : 5));
    if (mod == 2 || !has_base)
        emit_i32(e, displacement);
}

/* mov qword [base + 8 * word], immediate */
static inline void
emit_store_constant(struct emitter *e, unsigned base, unsigned word, uint32_t value)
{
    emit_rex_w(e, 0, 0, base);
    emit_byte(e, 0xc7);
    emit_base(e, 0, base, (int32_t)(8 * word));
    emit_i32(e, value);
}

static inline void
emit_jump(struct emitter *e, uint32_t target)
{
    emit_byte(e, 0xe9);
    emit_i32(e, (int64_t)target - (int64_t)(e->at + 4));
}

/* jmp [slot] */
static inline void
emit_jump_slot(struct emitter *e, uint32_t offset)
{
    emit_byte(e, 0xff);
    emit_byte(e, 0x25);
    emit_i32(e, (int64_t)offset - (int64_t)(e->at + 4));
}

/* Store a whole vector register, unaligned, without a change to any: the encoding of the
 * instruction it serves, so that no transition between SSE and AVX is paid. */
static inline void
emit_store_vector(struct emitter *e, enum encoding encoding, unsigned number, unsigned size_bytes,
                  unsigned base, int32_t displacement)
{
    unsigned r = number >> 3 & 1, b = base >> 3 & 1;

    if (encoding == ENCODING_LEGACY) {
        emit_byte(e, 0xf3);
        emit_byte(e, 0x40u | r << 2 | b);
        emit_byte(e, 0x0f);
    } else if (number < 16 && size_bytes <= 32) {
        emit_byte(e, 0xc4);
        emit_byte(e, (r ? 0 : 0x80u) | 0x40u | (b ? 0 : 0x20u) | 1);
        emit_byte(e, 0x78u | (size_bytes == 32 ? 4u : 0) | 2);
    } else {
        emit_byte(e, 0x62);
        emit_byte(e, (r ? 0 : 0x80u) | 0x40u | (b ? 0 : 0x20u) | (number >= 16 ? 0 : 0x10u) | 1);
        emit_byte(e, 0xfe);
        emit_byte(e, 0x08u | (size_bytes == 64 ? 0x40u : size_bytes == 32 ? 0x20u : 0));
    }
    emit_byte(e, 0x7f);
    emit_byte(e, 0x80u | (number & 7) << 3 | (base & 7));
    if ((base & 7) == RSP)
        emit_byte(e, 0x24);
    emit_i32(e, displacement);
}

/* kmovq [base + displacement], opmask */
static inline void
emit_store_opmask(struct emitter *e, unsigned number, unsigned base, int32_t displacement)
{
    emit_byte(e, 0xc4);
    emit_byte(e, 0xc0u | (base >= 8 ? 0 : 0x20u) | 1);
    emit_byte(e, 0xf8);
    emit_byte(e, 0x91);
    emit_base(e, number, base, displacement);
}

#endif
