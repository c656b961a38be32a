#include "dependences.h"

static uint64_t
bit(unsigned number)
{
    return number < 64 ? UINT64_C(1) << number : 0;
}

/* The registers in a set of fields, the first of their kind having the number `first`. */
static uint64_t
in_fields(const struct parsed *p, unsigned fields, unsigned first, unsigned mask)
{
    uint64_t set = 0;

    set |= fields & FIELD_REG ? bit(first + (p->reg & mask)) : 0;
    set |= fields & FIELD_RM ? bit(first + (p->rm & mask)) : 0;
    set |= fields & FIELD_VVVV ? bit(first + (p->vvvv & mask)) : 0;
    return set;
}

/* Byte registers 4 to 7 are the second bytes of 0 to 3, unless there is a REX prefix. */
static uint8_t
whole_register(const struct parsed *p, uint8_t number, bool is_byte)
{
    return is_byte && p->is_legacy_byte_reg ? number & 3 : number;
}

/* The same for general registers, and those that the form names: of one in the opcode it knows the lower bits. */
static uint64_t
general(const struct parsed *p, const struct form *f, unsigned fields, unsigned implicit)
{
    const unsigned low = p->opcode & 7;
    const bool moves_byte = p->has_opcode_register && (p->opcode & 0xf8) == 0xb0;
    struct parsed whole = *p;

    whole.reg = whole_register(p, p->reg, f->used & FIELD_REG_BYTE);
    whole.rm = whole_register(p, p->rm, moves_byte || f->used & FIELD_RM_BYTE);
    if (p->has_opcode_register && p->opcode != 0x90 && implicit >> low & 1) /* of xchg r8, rax it knows all */
        implicit = (implicit & ~(1u << low)) | 1u << whole.rm;
    return in_fields(&whole, fields, 0, 15) | implicit;
}

static uint64_t
of_address(const struct parsed *p, const struct form *f)
{
    uint64_t set = 0;

    for (unsigned i = 0; i < f->references; i++) {
        const struct form_reference *r = &f->reference[i];
        const bool is_gather = r->reference.kind == REFERENCE_GATHER;
        const unsigned base = r->is_explicit ? p->base : r->reference.base;
        const unsigned index = is_gather        ? FIRST_VECTOR + (p->vector_index & 31u)
                               : r->is_explicit ? p->index
                                                : r->reference.index;
        set |= base != NO_GPR ? bit(base) : 0;
        set |= index != NO_GPR ? bit(index) : 0;
    }
    if (f->references == 0 && p->has_memory) /* lea */
        set = (p->base != NO_GPR ? bit(p->base) : 0) | (p->index != NO_GPR ? bit(p->index) : 0);
    return set;
}

struct dependences
dependences_of(const struct parsed *p, const struct form *f)
{
    struct dependences d = {.latency_cycles = f->latency_cycles};
    const bool clears = f->effects & CLEARS_SAME && !p->has_memory &&
                        (p->encoding == ENCODING_LEGACY ? p->reg == p->rm : p->vvvv == p->rm);
    const bool pushes = f->stack_delta < 0, pops = f->stack_delta > 0; /* rsp aside, one sets none, one reads none */

    d.address = of_address(p, f);
    d.results = general(p, f, f->written, pushes ? 0 : f->implicit_written) |
                in_fields(p, f->vector_written, FIRST_VECTOR, 31) |
                (f->effects & WRITES_FLAGS ? bit(FLAGS_REGISTER) : 0);
    if (!clears)
        d.data = general(p, f, f->read, pops ? 0 : f->implicit_read) |
                 in_fields(p, f->vector_read, FIRST_VECTOR, 31);
    d.data |= f->effects & READS_FLAGS ? bit(FLAGS_REGISTER) : 0;
    if (f->effects & USES_X87) {
        d.data |= bit(X87_REGISTER);
        d.results |= bit(X87_REGISTER);
    }
    if (f->references == 0)
        d.data |= d.address;
    if (f->stack_delta != 0) { /* the front end keeps count of it */
        d.data &= ~bit(RSP);
        d.results &= ~bit(RSP);
    }
    return d;
}
