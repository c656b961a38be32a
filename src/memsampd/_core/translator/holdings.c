#include "holdings.h"

void
holdings_begin(struct holdings *h)
{
    for (unsigned i = 0; i < 16; i++)
        h->of[i] = (struct holding){i, 0};
    h->values = 16;
}

static void
forget(struct holdings *h, unsigned reg)
{
    h->of[reg] = (struct holding){h->values++, 0};
}

/* The instructions whose result is known relative to a value known before. */
static bool
follow_simple(struct holding *h, const struct step *s)
{
    const struct parsed *p = &s->p;
    unsigned operation = p->reg & 7;
    bool is_register = p->has_modrm && !p->has_memory;

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

void
holdings_follow(struct holdings *h, const struct step *s)
{
    const struct form *f = s->form;
    unsigned written = f->implicit_written;

    if (f->stack_delta != 0) {
        h->of[RSP].offset += f->stack_delta;
        written &= ~(1u << RSP);
        if (f->flow == FLOW_RETURN)
            h->of[RSP].offset += step_popped_bytes(s);
    }
    if (follow_simple(h->of, s))
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
            forget(h, reg);
}
