#include "path.h"

#include <string.h>

#define UNGUIDED_MAXIMUM_INSTRUCTIONS 48
/* A branch is followed if it goes that way so many times as often as the other. */
#define CONDITIONAL_ODDS 2
#define INDIRECT_ODDS 3
/* A path that is this long ends where another block, or itself, begins. */
#define JOINING_INSTRUCTIONS 12
#define UNROLLED_INSTRUCTIONS 32
/* ... or when so small a share of those who entered it can still be on it: 1 in so many. */
#define STAYING_SHARE 16
#define CALLS_MAXIMUM 8

/* Buffer pointer and scratch come from here, in this order; never rsp, nor rcx, which jrcxz tests.
 * Registers that compilers use last come first, so that neighbours tend to agree on a pair. */
static const uint8_t candidates[] = {R11, R10, R9, R8, R15, R14, R13, R12, RBX, RBP, RDI, RSI,
                                     RDX, RAX};

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
choose_pair(struct pair *pair, unsigned used, bool low_scratch)
{
    unsigned chosen = 0;
    uint8_t *place[2] = {&pair->scratch, &pair->buffer};

    for (size_t i = 0; chosen < 2 && i < sizeof candidates; i++) {
        uint8_t candidate = candidates[low_scratch ? sizeof candidates - 1 - i : i];
        if (!(used >> candidate & 1))
            *place[chosen++] = candidate;
    }
    return chosen == 2 && !(low_scratch && pair->scratch >= 8);
}

/* What the copy of an instruction cannot do although its form is known. */
static bool
cannot_copy(const struct step *s)
{
    const struct parsed *p = &s->p;
    /* 16-bit branches; REX.W goes before the prefix, which pads calls of __tls_get_addr. */
    if (p->operand_16 && !p->rex_w && s->form->flow != FLOW_NEXT)
        return true;
    if (p->address_32 && (s->form->flow == FLOW_SHORT_BRANCH || s->form->flags & RECIPE_REPEATED ||
                          p->is_rip_relative))
        return true;
    /* smsw and rdssp: with their registers from r8 on their forms name those below. */
    if (p->map == 1 && p->encoding == ENCODING_LEGACY && !p->has_memory && p->rm >= 8 &&
        (p->opcode == 0x01 || p->opcode == 0x1e) && s->form->implicit_used != 0)
        return true;
    return s->form->flow == FLOW_SHORT_BRANCH && s->form->immediate_bytes != 1;
}

int64_t
step_immediate(const struct step *s)
{
    const uint8_t *end = s->p.bytes + s->p.length;
    int32_t wide;
    if (s->form->immediate_bytes == 1)
        return (int8_t)end[-1];
    memcpy(&wide, end - 4, 4);
    return wide;
}

uint64_t
step_target(const struct step *s)
{
    return s->ip + s->p.length + (uint64_t)step_immediate(s);
}

uint16_t
step_popped_bytes(const struct step *s)
{
    uint16_t bytes = 0;
    if (s->form->immediate_bytes == 2)
        memcpy(&bytes, s->p.bytes + s->p.length - 2, 2);
    return bytes;
}

/* A path while it grows. */
struct growth {
    struct blocks *b;
    struct path *path;
    unsigned used;          /* registers */
    bool low_scratch;
    uint64_t entered, executions; /* of its beginning and where it has come to; 0: not known */
    uint64_t return_ip[CALLS_MAXIMUM]; /* of calls on the path */
    unsigned calls;
};

/* Take apart the instruction at `ip`; false if it cannot be part of a path: path->last_kind then tells
 * how the path ends, unless its form is not known. */
static bool
read_step(struct growth *g, uint64_t ip, struct step *s, enum translation *result)
{
    struct blocks *b = g->b;
    uint8_t code[INSTRUCTION_MAXIMUM_BYTES];

    if (blocks_was_written(b, ip) || blocks_was_written(b, ip + INSTRUCTION_MAXIMUM_BYTES - 1)) {
        g->path->last_kind = EXIT_UNSUPPORTED;
        g->path->is_passing = true;
        return false;
    }
    size_t size = blocks_read_code(b, ip, code);
    s->ip = ip;
    if (!parse(code, size, &s->p)) {
        g->path->last_kind = size < INSTRUCTION_MAXIMUM_BYTES ? EXIT_REFUSED : EXIT_UNSUPPORTED;
        return false;
    }
    s->form = form_table_get(&b->forms, s->p.key);
    if (s->form == NULL) {
        b->sample_key = s->p.key;
        b->sample_operands = form_sample(&s->p, b->sample);
        *result = TRANSLATION_NEEDS_FORM;
        return false;
    }
    s->p.length = (uint8_t)(s->p.length + s->form->immediate_bytes);
    if (s->p.displacement_is_8_bit)
        s->p.displacement *= s->form->displacement_scale;
    if (s->form->flags & RECIPE_SYSCALL) {
        g->path->last_kind = EXIT_SYSCALL;
        return false;
    }
    if (s->form->flags & RECIPE_UNSUPPORTED || s->p.length > size || cannot_copy(s)) {
        g->path->last_kind = s->p.length > size ? EXIT_REFUSED : EXIT_UNSUPPORTED;
        return false;
    }
    return true;
}

/* Whether two registers stay free with this instruction on the path. */
static bool
has_room(struct growth *g, const struct step *s)
{
    struct pair pair;
    unsigned used = g->used | gpr_set(s);
    bool low_scratch = g->low_scratch || needs_low_scratch(s);

    if (!choose_pair(&pair, used, low_scratch))
        return false;
    g->path->pair = pair;
    g->used = used;
    g->low_scratch = low_scratch;
    return true;
}

static void
follow_conditional(struct growth *g, struct step *s)
{
    const struct branch_profile *seen = profile_get(&g->b->profile, s->ip);

    s->way = WAY_ON;
    s->next = s->ip + s->p.length;
    if (seen == NULL || s->form->flow == FLOW_SHORT_BRANCH)
        return;
    if (!g->path->is_guided && (uint64_t)seen->taken + seen->other >= g->b->hot_executions) {
        g->entered = (uint64_t)seen->taken + seen->other;
        g->path->is_guided = true;
    }
    g->executions = seen->other;
    if (g->path->is_guided && seen->taken / CONDITIONAL_ODDS > seen->other) {
        s->way = WAY_TAKEN;
        s->next = step_target(s);
        g->executions = seen->taken;
    }
}

static void
remember_call(struct growth *g, const struct step *s)
{
    if (g->calls == CALLS_MAXIMUM) {
        memmove(g->return_ip, g->return_ip + 1, sizeof g->return_ip - sizeof g->return_ip[0]);
        g->calls--;
    }
    g->return_ip[g->calls++] = s->ip + s->p.length;
}

static void
follow_indirect(struct growth *g, struct step *s)
{
    const struct branch_profile *seen = profile_get(&g->b->profile, s->ip);
    bool returns_here = s->form->flow == FLOW_RETURN && g->calls != 0;

    s->way = WAY_END;
    if (returns_here) {
        s->next = g->return_ip[--g->calls];
        s->way = WAY_GUESS;
    } else if (seen != NULL && seen->taken >= g->b->hot_executions &&
               seen->taken / INDIRECT_ODDS > seen->other) {
        s->next = seen->target;
        s->way = WAY_GUESS;
    }
    if (s->way == WAY_GUESS && s->form->flow == FLOW_CALL_INDIRECT)
        remember_call(g, s);
}

/* Where the path goes behind a step. */
static void
follow(struct growth *g, struct step *s)
{
    const bool is_hot = g->path->is_guided && g->executions >= g->b->hot_executions;

    switch (s->form->flow) {
    case FLOW_NEXT:
        s->way = WAY_ON;
        s->next = s->ip + s->p.length;
        break;
    case FLOW_BRANCH:
    case FLOW_SHORT_BRANCH:
        follow_conditional(g, s);
        break;
    case FLOW_JUMP:
    case FLOW_CALL:
        s->way = is_hot ? WAY_THERE : WAY_END;
        s->next = step_target(s);
        if (is_hot && s->form->flow == FLOW_CALL)
            remember_call(g, s);
        break;
    case FLOW_STOP:
        s->way = WAY_END;
        break;
    default:
        s->way = WAY_END;
        if (is_hot)
            follow_indirect(g, s);
    }
}

static bool
is_on_path(const struct path *path, uint64_t ip)
{
    for (unsigned i = 0; i < path->count; i++)
        if (path->step[i].ip == ip)
            return true;
    return false;
}

/* Whether the path had better end before `ip`, and leave the rest to the block there. */
static bool
joins(const struct growth *g, uint64_t ip)
{
    const struct path *path = g->path;

    if (path->count == 0)
        return false;
    if (!path->is_guided)
        return path->count >= UNGUIDED_MAXIMUM_INSTRUCTIONS || blocks_find(g->b, ip) != NO_BLOCK;
    if (g->executions < g->b->hot_executions || g->executions < g->entered / STAYING_SHARE)
        return path->step[path->count - 1].form->flow != FLOW_NEXT ||
               blocks_find(g->b, ip) != NO_BLOCK;
    if (path->count >= UNROLLED_INSTRUCTIONS && is_on_path(path, ip))
        return true;
    const uint32_t found = blocks_find(g->b, ip);
    return path->count >= JOINING_INSTRUCTIONS && found != NO_BLOCK && g->b->block[found].is_guided;
}

enum translation
path_choose(struct blocks *b, uint64_t ip, struct path *path)
{
    const struct branch_profile *head = profile_get(&b->profile, ip | PROFILE_HEAD);
    struct growth g = {.b = b, .path = path};
    enum translation result = TRANSLATED;

    g.entered = g.executions = head != NULL ? head->taken : 0;
    path->is_guided = g.entered != 0 && g.entered >= b->hot_executions;
    path->is_passing = false;
    path->last_kind = EXIT_DIRECT;
    path->next_ip = ip;
    choose_pair(&path->pair, 0, false);
    for (path->count = 0; path->count < PATH_MAXIMUM_INSTRUCTIONS;) {
        struct step *s = &path->step[path->count];
        if (joins(&g, path->next_ip))
            break;
        if (!read_step(&g, path->next_ip, s, &result) || !has_room(&g, s))
            break;
        follow(&g, s);
        path->count++;
        path->next_ip = s->next;
        if (s->way == WAY_END)
            break;
    }
    return result;
}
