#include "core.h"
#include "data_address.h"
#include "records.h"

#include <string.h>

enum { SET, ADD, SUB, AND, OR, XOR, MUL, SHL, SHR, SAR, ROL, ROR };

static uint64_t
rotated(uint64_t a, unsigned by, unsigned bits)
{
    return by == 0 ? a : a << by | a >> (bits - by);
}

/* What a step makes of two values, of the lower halves of which the upper ones are 0. */
static uint64_t
made(const struct address_step *step, uint64_t a, uint64_t b)
{
    const unsigned bits = step->is_32 ? 32 : 64, by = (unsigned)b & (bits - 1);

    switch (step->what) {
    case ADD: return a + b;
    case SUB: return a - b;
    case AND: return a & b;
    case OR: return a | b;
    case XOR: return a ^ b;
    case MUL: return a * b;
    case SHL: return a << by;
    case SHR: return a >> by;
    case SAR: return step->is_32 ? (uint64_t)((int32_t)a >> by) : (uint64_t)((int64_t)a >> by);
    case ROL: return rotated(a, by, bits);
    case ROR: return rotated(a, (bits - by) % bits, bits);
    default: return b;
    }
}

/* The next bytes; false if there are not so many. */
static bool
take(struct operands *from, void *to, size_t bytes)
{
    if (from->left < bytes)
        return false;
    memcpy(to, from->at, bytes);
    from->at += bytes;
    from->left -= bytes;
    return true;
}

bool
data_address(struct operands *operands, const uint64_t *registers, uint64_t *address)
{
    uint64_t value[REGISTERS + 1];
    struct data_operand operand;
    struct address_step step;

    if (!take(operands, &operand, sizeof operand) || operand.base > REGISTERS || operand.index > REGISTERS)
        return false;
    memcpy(value, registers, REGISTERS * sizeof *value);
    value[REGISTERS] = 0;
    for (uint64_t i = 0; i < operand.steps; i++) {
        if (!take(operands, &step, sizeof step) || step.to >= REGISTERS || step.source > REGISTERS ||
            step.index > REGISTERS)
            return false;
        const uint64_t half = step.is_32 ? UINT32_MAX : UINT64_MAX;
        const uint64_t b = value[step.source] + value[step.index] * step.scale + step.value;
        value[step.to] = made(&step, value[step.to] & half, b & half) & half;
    }
    *address = 0;
    if (operand.base < REGISTERS || operand.index < REGISTERS)
        *address = value[operand.base] + value[operand.index] * operand.scale + operand.displacement;
    return true;
}
