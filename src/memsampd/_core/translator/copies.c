#include "copies.h"
#include "layout.h"

/* The instruction with [scratch] in place of its [rip + displacement]. */
static void
copy_rip_relative(struct emitter *e, const struct step *s, unsigned base)
{
    const struct parsed *p = &s->p;
    unsigned high = base >> 3;
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

void
copy_instruction(struct emitter *e, const struct step *s, unsigned scratch)
{
    const struct parsed *p = &s->p;

    if (p->is_rip_relative && p->opcode == 0x8d && p->map == 0 && p->rex_w &&
        p->encoding == ENCODING_LEGACY)
        emit_constant(e, p->reg, s->ip + p->length + (uint64_t)p->displacement);
    else if (p->is_rip_relative)
        copy_rip_relative(e, s, scratch);
    else
        emit_bytes(e, p->bytes, p->length);
}

void
copy_branch(struct emitter *e, const struct step *s)
{
    const bool is_inverted = s->way == WAY_TAKEN;

    if (s->form->flow == FLOW_SHORT_BRANCH) {
        emit_bytes(e, s->p.bytes, (size_t)s->p.length - 1);
        emit_byte(e, 2);
        emit_byte(e, 0xeb);
        emit_byte(e, 5);
        emit_byte(e, 0xe9);
    } else {
        emit_byte(e, 0x0f);
        emit_byte(e, (0x80u | (s->p.opcode & 15)) ^ is_inverted);
    }
    emit_i32(e, 0);
}

/* mov scratch, <operand of an indirect jump or call> */
static void
load_target(struct emitter *e, const struct step *s, unsigned scratch)
{
    const struct parsed *p = &s->p;

    if (!p->has_memory) {
        emit_copy(e, scratch, p->rm);
        return;
    }
    if (p->is_rip_relative)
        emit_constant(e, scratch, s->ip + p->length + (uint64_t)p->displacement);
    if (p->segment != 0)
        emit_byte(e, p->segment == 4 ? 0x64 : 0x65);
    if (p->is_rip_relative) {
        emit_move(e, 0x8b, scratch, scratch, 0);
        return;
    }
    if (p->address_32)
        emit_byte(e, 0x67);
    unsigned extension = p->prefix_at != 0xff ? p->bytes[p->prefix_at] & 3u : 0;
    emit_byte(e, 0x48u | (scratch >> 3) << 2 | extension);
    emit_byte(e, 0x8b);
    emit_byte(e, (p->bytes[p->modrm_at] & 0xc7u) | (scratch & 7) << 3);
    emit_bytes(e, p->bytes + p->modrm_at + 1, (size_t)p->length - p->modrm_at - 1);
}

static void
push_constant(struct emitter *e, uint64_t value, unsigned scratch)
{
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

void
copy_transfer(struct emitter *e, const struct step *s, unsigned scratch)
{
    uint64_t after = s->ip + s->p.length;

    switch (s->form->flow) {
    case FLOW_CALL:
        push_constant(e, after, scratch);
        break;
    case FLOW_CALL_INDIRECT:
        load_target(e, s, scratch);
        emit_slot(e, 0x89, scratch, SLOT_TARGET);
        push_constant(e, after, scratch);
        emit_slot(e, 0x8b, scratch, SLOT_TARGET);
        break;
    case FLOW_JUMP_INDIRECT:
        load_target(e, s, scratch);
        break;
    case FLOW_RETURN:
        emit_move(e, 0x8b, scratch, RSP, 0);
        emit_move(e, 0x8d, RSP, RSP, 8 + step_popped_bytes(s));
        break;
    default:
        break;
    }
}
