#include "forms.h"

#include <string.h>


const uint8_t gpr_words[16] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0};

/* A set of opcodes of one map. */
struct opcode_set {
    uint64_t bits[4];
};

static bool
in_set(const struct opcode_set *set, uint8_t opcode)
{
    return set->bits[opcode >> 6] >> (opcode & 63) & 1;
}

/* Opcodes of map 0 with a ModRM byte (Intel SDM 2, A.3, table A-2). */
static const struct opcode_set modrm_map0 = {{
    0x0f0f0f0f0f0f0f0f, 0x00000a0c00000000, 0x000000000000ffff, 0xc0c00000ff0f00f3,
}};

/* Opcodes of map 1 (0f) without one (table A-3). */
static const struct opcode_set plain_map1 = {{
    0x00ff000000004be0, 0x0080000000000000, 0x000007070000ffff, 0x000000000000ff00,
}};

static bool
needs_modrm(unsigned map, uint8_t opcode, enum encoding encoding)
{
    if (encoding == ENCODING_EVEX || map >= 2)
        return true;
    if (encoding == ENCODING_VEX)
        return opcode != 0x77;
    if (map == 0)
        return in_set(&modrm_map0, opcode);
    return !in_set(&plain_map1, opcode);
}

/* Opcodes whose ModRM reg field selects the operation. */
static bool
is_group(unsigned map, uint8_t opcode, enum encoding encoding)
{
    if (encoding != ENCODING_LEGACY)
        return (map == 1 && ((opcode >= 0x71 && opcode <= 0x73) || opcode == 0xae)) ||
               (map == 2 && (opcode == 0xf3 || opcode == 0xc6 || opcode == 0xc7));
    if (map == 0)
        return (opcode >= 0x80 && opcode <= 0x83) || opcode == 0x8f || opcode == 0xc0 ||
               opcode == 0xc1 || opcode == 0xc6 || opcode == 0xc7 ||
               (opcode >= 0xd0 && opcode <= 0xd3) || (opcode >= 0xd8 && opcode <= 0xdf) ||
               opcode == 0xf6 || opcode == 0xf7 || opcode >= 0xfe || opcode == 0x8c ||
               opcode == 0x8e;
    return map == 1 &&
           (opcode <= 0x01 || opcode == 0x0d || (opcode >= 0x18 && opcode <= 0x1f) ||
            (opcode >= 0x71 && opcode <= 0x73) || opcode == 0xae || opcode == 0xba ||
            opcode == 0xc7 || (opcode >= 0x20 && opcode <= 0x23));
}

/* Opcodes where, between registers, the rm field selects the operation, too. */
static bool
is_group_of_rm(unsigned map, uint8_t opcode)
{
    return (map == 0 && opcode >= 0xd8 && opcode <= 0xdf) ||
           (map == 1 && (opcode == 0x01 || opcode == 0x1e));
}

static bool
has_opcode_register(unsigned map, uint8_t opcode)
{
    return (map == 0 && ((opcode >= 0x50 && opcode < 0x60) || (opcode >= 0x90 && opcode < 0x98) ||
                         (opcode >= 0xb0 && opcode < 0xc0))) ||
           (map == 1 && opcode >= 0xc8 && opcode < 0xd0);
}

/* Gathers and scatters of EVEX: their index has the bit that vvvv has elsewhere. */
static bool
has_vector_index(unsigned map, uint8_t opcode)
{
    return map == 2 && ((opcode & 0xfc) == 0x90 || (opcode & 0xfc) == 0xa0 || opcode == 0xc6 ||
                        opcode == 0xc7);
}

static bool
is_prefix(uint8_t byte)
{
    return (byte & 0xf0) == 0x40 || byte == 0x26 || byte == 0x2e || byte == 0x36 || byte == 0x3e ||
           (byte >= 0x64 && byte <= 0x67) || byte == 0xf0 || byte == 0xf2 || byte == 0xf3;
}

/* The bits of VEX and EVEX that extend register fields are stored inverted. */
struct fields {
    uint8_t r, x, b, r2, v2;
    uint8_t vector_length, w, pp, vvvv, z, broadcast, has_mask;
};

static size_t
parse_prefixes(const uint8_t *code, size_t size, struct parsed *p, bool *lock)
{
    size_t at = 0;
    for (; at < size && at < INSTRUCTION_MAXIMUM_BYTES; at++) {
        switch (code[at]) {
        case 0x66: p->operand_16 = true; break;
        case 0x67: p->address_32 = true; break;
        case 0xf0: *lock = true; break;
        case 0xf2: case 0xf3: p->repeat = code[at]; break;
        case 0x64: p->segment = 4; break;
        case 0x65: p->segment = 5; break;
        case 0x26: case 0x2e: case 0x36: case 0x3e: break;
        default: return at;
        }
    }
    return at;
}

#define NOT_SUPPORTED SIZE_MAX

/* Where the opcode stands. */
static size_t
parse_vex(const uint8_t *code, size_t at, struct parsed *p, struct fields *f)
{
    const uint8_t *c = code + at;
    p->prefix_at = (uint8_t)at;
    if (c[0] == 0xc5) {
        p->encoding = ENCODING_VEX;
        f->r = !(c[1] >> 7);
        p->map = 1;
        f->vvvv = ~c[1] >> 3 & 15;
        f->vector_length = c[1] >> 2 & 1;
        f->pp = c[1] & 3;
        return at + 2;
    }
    f->r = !(c[1] >> 7);
    f->x = !(c[1] >> 6 & 1);
    f->b = !(c[1] >> 5 & 1);
    f->w = c[2] >> 7;
    f->vvvv = ~c[2] >> 3 & 15;
    f->pp = c[2] & 3;
    if (c[0] == 0xc4) {
        p->encoding = ENCODING_VEX;
        p->map = c[1] & 31;
        f->vector_length = c[2] >> 2 & 1;
        return at + 3;
    }
    if ((c[1] & 8) != 0 || (c[2] & 4) == 0)
        return NOT_SUPPORTED; /* registers from 16 on in an address (APX): keys do not tell them apart */
    p->encoding = ENCODING_EVEX;
    p->map = c[1] & 7;
    f->r2 = !(c[1] >> 4 & 1);
    f->z = c[3] >> 7;
    f->vector_length = c[3] >> 5 & 3;
    f->broadcast = c[3] >> 4 & 1;
    f->v2 = !(c[3] >> 3 & 1);
    p->opmask = c[3] & 7;
    f->has_mask = p->opmask != 0;
    return at + 4;
}

static size_t
parse_legacy(const uint8_t *code, size_t at, struct parsed *p, struct fields *f)
{
    if ((code[at] & 0xf0) == 0x40) {
        p->prefix_at = (uint8_t)at;
        f->w = code[at] >> 3 & 1;
        f->r = code[at] >> 2 & 1;
        f->x = code[at] >> 1 & 1;
        f->b = code[at] & 1;
        at++;
    }
    if (code[at] != 0x0f)
        return at;
    p->map = 1;
    at++;
    if (code[at] == 0x38 || code[at] == 0x3a) {
        p->map = code[at] == 0x38 ? 2 : 3;
        at++;
    }
    return at;
}

/* The memory operand behind a ModRM byte; the offset behind it. */
static size_t
parse_memory(const uint8_t *code, size_t at, struct parsed *p, const struct fields *f)
{
    unsigned mod = code[p->modrm_at] >> 6, rm = code[p->modrm_at] & 7, displacement_bytes;
    unsigned base = rm;

    p->has_memory = true;
    p->scale = 1;
    if (rm == 4) {
        uint8_t sib = code[at++];
        p->has_sib = true;
        base = sib & 7;
        p->scale = (uint8_t)(1 << (sib >> 6));
        unsigned index = (sib >> 3 & 7u) | (unsigned)f->x << 3;
        p->index = (uint8_t)(index == RSP ? NO_GPR : index);
        p->vector_index = (uint8_t)(index | (unsigned)f->v2 << 4);
    }
    displacement_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (mod == 0 && base == 5) {
        displacement_bytes = 4;
        p->is_rip_relative = rm == 5;
    } else {
        p->base = (uint8_t)(base | (unsigned)f->b << 3);
    }
    if (displacement_bytes == 1) {
        p->displacement = (int8_t)code[at];
        p->displacement_is_8_bit = true;
    } else if (displacement_bytes == 4) {
        int32_t displacement;
        memcpy(&displacement, code + at, 4);
        p->displacement = displacement;
    }
    return at + displacement_bytes;
}

static uint64_t
key_of(const struct parsed *p, const struct fields *f, bool lock, unsigned modrm)
{
    uint64_t key = 1u | (uint64_t)p->encoding << 1 | (uint64_t)p->map << 3 |
                   (uint64_t)p->opcode << 8 | (uint64_t)p->operand_16 << 16 |
                   (uint64_t)(p->repeat == 0xf2 ? 1 : p->repeat == 0xf3 ? 2 : 0) << 17 |
                   (uint64_t)lock << 19 | (uint64_t)p->address_32 << 20 |
                   (uint64_t)p->segment << 21 | (uint64_t)f->w << 24 |
                   (uint64_t)f->vector_length << 25 | (uint64_t)f->pp << 27 |
                   (uint64_t)f->z << 29 | (uint64_t)f->broadcast << 30 |
                   (uint64_t)f->has_mask << 31;
    if (p->encoding != ENCODING_LEGACY)
        key |= (uint64_t)(p->vvvv == 0) << 32; /* no such operand, or register 0 */
    if (p->encoding == ENCODING_LEGACY && p->map == 0 && p->opcode == 0x90)
        key |= (uint64_t)f->b << 33; /* nop or xchg */
    if (!p->has_modrm)
        return key;
    key |= (uint64_t)p->has_memory << 34;
    if (is_group(p->map, p->opcode, p->encoding))
        key |= (uint64_t)(8 | (modrm >> 3 & 7)) << 35;
    if (!p->has_memory && p->encoding == ENCODING_LEGACY && is_group_of_rm(p->map, p->opcode))
        key |= (uint64_t)(8 | (modrm & 7)) << 39;
    /* A vector index has no form without one. */
    return key | (uint64_t)(p->has_memory && p->has_sib && p->encoding != ENCODING_LEGACY) << 43;
}

bool
parse(const uint8_t *given, size_t size, struct parsed *p)
{
    uint8_t code[INSTRUCTION_MAXIMUM_BYTES + 8] = {0};
    struct fields f = {0};
    bool lock = false;

    size = size < INSTRUCTION_MAXIMUM_BYTES ? size : INSTRUCTION_MAXIMUM_BYTES;
    memcpy(code, given, size);
    memset(p, 0, sizeof *p);
    memcpy(p->bytes, code, INSTRUCTION_MAXIMUM_BYTES);
    p->base = p->index = NO_GPR;
    p->prefix_at = 0xff;
    size_t at = parse_prefixes(code, size, p, &lock);
    if (at + 4 > sizeof code)
        return false;
    if (code[at] == 0xc4 || code[at] == 0xc5 || code[at] == 0x62)
        at = parse_vex(code, at, p, &f);
    else
        at = parse_legacy(code, at, p, &f);
    if (at == NOT_SUPPORTED)
        return false;
    p->rex_w = f.w;
    p->opcode_at = (uint8_t)at;
    p->opcode = code[at++];
    p->vvvv = f.vvvv;
    if (p->encoding == ENCODING_EVEX && !has_vector_index(p->map, p->opcode))
        p->vvvv |= (uint8_t)(f.v2 << 4);
    if (p->encoding == ENCODING_LEGACY && p->map == 0 && is_prefix(p->opcode))
        return false; /* a prefix behind REX, which is then void: no compiler writes that */
    p->has_modrm = needs_modrm(p->map, p->opcode, p->encoding);
    p->is_legacy_byte_reg = p->encoding == ENCODING_LEGACY && p->prefix_at == 0xff;
    unsigned modrm = 0;
    if (p->has_modrm) {
        p->modrm_at = (uint8_t)at;
        modrm = code[at++];
        p->reg = (uint8_t)((modrm >> 3 & 7) | (unsigned)f.r << 3 | (unsigned)f.r2 << 4);
        if (modrm >> 6 != 3)
            at = parse_memory(code, at, p, &f);
        else
            p->rm = (uint8_t)((modrm & 7) | (unsigned)f.b << 3 |
                              (p->encoding == ENCODING_EVEX ? (unsigned)f.x << 4 : 0));
    } else if (p->encoding == ENCODING_LEGACY && has_opcode_register(p->map, p->opcode)) {
        p->has_opcode_register = true;
        p->rm = (uint8_t)((p->opcode & 7) | (unsigned)f.b << 3);
    }
    p->length = (uint8_t)at;
    p->key = key_of(p, &f, lock, modrm);
    return at <= size;
}

static unsigned
sample_prefix(const struct parsed *p, uint8_t *out, unsigned at, bool keeps_rm)
{
    const uint8_t *prefix = p->bytes + p->prefix_at;
    const unsigned vvvv = p->vvvv == 0 ? 0 : FORM_VVVV;
    const unsigned extends_index = p->has_memory;

    switch (p->encoding) {
    case ENCODING_LEGACY: {
        bool extends_base = !keeps_rm && (p->has_modrm || (p->opcode == 0x90 && p->rm >= 8));
        out[at++] = (uint8_t)(0x40 | p->rex_w << 3 | 4 | (extends_index ? 2 : 0) |
                              (extends_base ? 1 : 0));
        for (unsigned i = p->prefix_at == 0xff ? p->opcode_at - (p->map > 1 ? 2u : p->map)
                                               : p->prefix_at + 1u;
             i < p->opcode_at; i++)
            out[at++] = p->bytes[i];
        return at;
    }
    case ENCODING_VEX: {
        unsigned two_byte = prefix[0] == 0xc5;
        unsigned tail = two_byte ? prefix[1] : prefix[2];
        out[at++] = 0xc4;
        out[at++] = (uint8_t)(0x00 | (extends_index ? 0 : 0x40) | p->map);
        out[at++] = (uint8_t)((two_byte ? 0 : tail & 0x80) | (~vvvv & 15) << 3 | (tail & 7));
        return at;
    }
    default:
        out[at++] = 0x62;
        out[at++] = (uint8_t)(0x10 | (extends_index ? 0 : 0x40) | p->map);
        out[at++] = (uint8_t)((prefix[2] & 0x87) | (~vvvv & 15) << 3);
        out[at++] = (uint8_t)((prefix[3] & 0xf0) | 0x08 | (p->opmask != 0 ? 1 : 0));
        return at;
    }
}

unsigned
form_sample(const struct parsed *p, uint8_t sample[FORM_SAMPLE_BYTES])
{
    bool group = is_group(p->map, p->opcode, p->encoding);
    bool keeps_rm = !p->has_memory && p->encoding == ENCODING_LEGACY &&
                    is_group_of_rm(p->map, p->opcode);
    unsigned at = 0;
    unsigned prefixes = p->prefix_at != 0xff ? p->prefix_at
                                             : p->opcode_at - (p->map > 1 ? 2u : p->map);

    memset(sample, 0, FORM_SAMPLE_BYTES);
    for (unsigned i = 0; i < prefixes && at < 8; i++)
        sample[at++] = p->bytes[i];
    at = sample_prefix(p, sample, at, keeps_rm);
    sample[at++] = p->opcode;
    if (!p->has_modrm)
        return at;
    unsigned reg = group ? p->bytes[p->modrm_at] >> 3 & 7 : FORM_REG & 7;
    if (!p->has_memory) {
        unsigned rm = keeps_rm ? p->bytes[p->modrm_at] & 7 : FORM_RM & 7;
        sample[at++] = (uint8_t)(0xc0 | reg << 3 | rm);
        return at;
    }
    const uint32_t displacement = FORM_DISPLACEMENT;
    sample[at++] = (uint8_t)(0x84 | reg << 3);
    sample[at++] = 1 << 6 | (FORM_INDEX & 7) << 3 | (FORM_BASE & 7);
    memcpy(sample + at, &displacement, 4);
    return at + 4;
}
