#include "lookup.h"

#include <nmmintrin.h>

#define PLACES ((size_t)1 << AREA_LOOKUP_BITS)
#define NOTHING 1u /* negated, no address that code can have: of the kernel's half */

static void
clear(uint8_t *area)
{
    uint64_t *negated = (uint64_t *)(area + AREA_LOOKUP);
    for (size_t i = 0; i < PLACES; i++)
        negated[i] = NOTHING;
}

/* hash = the checksum of `target`, of which emit_take_low then takes 16 bits. */
static void
emit_checksum(struct emitter *e, unsigned hash, unsigned table, unsigned target)
{
    emit_area_address(e, table, AREA_LOOKUP);
    emit_copy(e, hash, table); /* a seed: that of the target itself would cancel out */
    emit_byte(e, 0xf2);        /* crc32 hash, target */
    emit_rex_w(e, hash, 0, target);
    emit_bytes(e, "\x0f\x38\xf1", 3);
    emit_byte(e, 0xc0u | (hash & 7) << 3 | (target & 7));
}

static void
emit_take_low(struct emitter *e, unsigned reg)
{
    emit_rex_w(e, reg, 0, reg); /* movzx reg, its low 16 bits */
    emit_bytes(e, "\x0f\xb7", 2);
    emit_byte(e, 0xc0u | (reg & 7) << 3 | (reg & 7));
}

void
emit_hash(struct emitter *e, unsigned hash, unsigned table, unsigned target)
{
    emit_checksum(e, hash, table, target);
    emit_take_low(e, hash);
}

/* The other half of the same checksum: with another seed, what collides would still collide. */
static void
emit_second_hash(struct emitter *e, unsigned hash, unsigned table, unsigned target)
{
    emit_checksum(e, hash, table, target);
    emit_byte(e, 0x40u | hash >> 3); /* bswap hash, 32 bits */
    emit_byte(e, 0x0f);
    emit_byte(e, 0xc8u | (hash & 7));
    emit_take_low(e, hash);
}

uint32_t
lookup_init(uint8_t *area)
{
    struct emitter e = {area, AREA_CODE};

    clear(area);
    emit_slot(&e, 0x89, R10, SLOT_GPR(R10));
    emit_slot(&e, 0x89, R11, SLOT_GPR(R11));
    emit_slot(&e, 0x8b, R10, SLOT_TARGET);
    emit_second_hash(&e, R11, RCX, R10);
    emit_lea(&e, R11, RCX, R11, 8, 0, false);
    emit_move(&e, 0x8b, RCX, R11, 0);
    emit_lea(&e, RCX, RCX, R10, 1, 0, false);
    emit_byte(&e, 0xe3); /* jrcxz over the trap */
    emit_byte(&e, 1);
    uint32_t trap = e.at;
    emit_byte(&e, 0xcc);
    emit_move(&e, 0x8b, R10, R11, 8 << AREA_LOOKUP_BITS);
    emit_slot(&e, 0x89, R10, SLOT_JUMP);
    emit_slot(&e, 0x8b, R10, SLOT_GPR(R10));
    emit_slot(&e, 0x8b, R11, SLOT_GPR(R11));
    emit_slot(&e, 0x8b, RCX, SLOT_RCX);
    emit_jump_slot(&e, SLOT_JUMP);
    return trap;
}

/* The two places of an address. */
__attribute__((target("sse4.2"))) static void
find_places(uint64_t area_address, uint64_t ip, size_t place[2])
{
    const uint32_t hash = (uint32_t)_mm_crc32_u64((uint32_t)(area_address + AREA_LOOKUP), ip);

    place[0] = hash & (PLACES - 1);
    place[1] = __builtin_bswap32(hash) & (PLACES - 1);
}

void
lookup_put(uint8_t *area, uint64_t area_address, uint64_t ip, uint32_t entry)
{
    uint64_t *negated = (uint64_t *)(area + AREA_LOOKUP);
    size_t place[2];

    find_places(area_address, ip, place);
    const uint64_t in_first = negated[place[0]];
    const size_t at = in_first == NOTHING || in_first == -ip ? place[0] : place[1];
    negated[at] = -ip;
    negated[at + PLACES] = area_address + entry;
}

void
lookup_drop(uint8_t *area, uint64_t area_address, uint64_t ip)
{
    uint64_t *negated = (uint64_t *)(area + AREA_LOOKUP);
    size_t place[2];

    find_places(area_address, ip, place);
    for (size_t i = 0; i < 2; i++) /* in both, if the first became free behind its back */
        if (negated[place[i]] == -ip)
            negated[place[i]] = NOTHING;
}
