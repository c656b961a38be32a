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

    d.address = of_address(p, f);
    d.results = in_fields(p, f->written, 0, 15) | f->implicit_written |
                in_fields(p, f->vector_written, FIRST_VECTOR, 31) |
                (f->effects & WRITES_FLAGS ? bit(FLAGS_REGISTER) : 0);
    if (!clears)
        d.data = in_fields(p, f->read, 0, 15) | f->implicit_read |
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
