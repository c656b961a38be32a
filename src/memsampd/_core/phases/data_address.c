/* Addresses of data that samples' registers tell: sampler/data_operands.py says by which steps. */
#include "core.h"
#include "records.h"
#include "rest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* to = to (what) (source + index * scale + value); positions of registers, or one above them for 0. */
struct address_step {
    uint8_t what, to, source, index, scale, is_32, unused[2];
    uint64_t value;
};

/* base + index * scale + displacement, after so many steps, which follow it; nothing tells one if both are no
 * registers. */
struct data_operand {
    uint64_t base, index, scale, displacement, steps;
};

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

/* The address that the next operand and a sample's registers tell; 0 where nothing tells one. False if this
 * is no operand. */
static bool
address_told(Rest *operands, const uint64_t *registers, uint64_t *address)
{
    uint64_t value[REGISTERS + 1];
    struct data_operand operand;
    struct address_step step;

    if (take(operands, &operand, sizeof operand) < 0 || operand.base > REGISTERS || operand.index > REGISTERS)
        return false;
    memcpy(value, registers, REGISTERS * sizeof *value);
    value[REGISTERS] = 0;
    for (uint64_t i = 0; i < operand.steps; i++) {
        if (take(operands, &step, sizeof step) < 0 || step.to >= REGISTERS || step.source > REGISTERS ||
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

PyDoc_STRVAR(data_addresses_doc,
             "data_addresses(operands, registers)\n--\n\n"
             "The address of each sample's data (uint64), 0 where none is told.\n\n"
             "Operands are those of the samples, as struct data_operand has them; registers are 16 of each "
             "(uint64).");

static PyObject *
data_addresses(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer packed, registers;

    if (!PyArg_ParseTuple(args, "y*y*:data_addresses", &packed, &registers))
        return NULL;
    const uint64_t *row = registers.buf;
    const size_t count = (size_t)registers.len / (REGISTERS * sizeof *row);
    Rest operands = {packed.buf, (size_t)packed.len};
    uint64_t *address = PyMem_Malloc((count + 1) * sizeof *address);
    PyObject *told = NULL;
    size_t done = 0;

    while (address != NULL && done < count &&
           address_told(&operands, row + done * REGISTERS, &address[done]))
        done++;
    if (address == NULL)
        PyErr_NoMemory();
    else if (done < count || operands.left != 0)
        PyErr_SetString(PyExc_ValueError, "not the operands of so many samples");
    else
        told = PyBytes_FromStringAndSize((const char *)address, (Py_ssize_t)(count * sizeof *address));
    PyMem_Free(address);
    PyBuffer_Release(&packed);
    PyBuffer_Release(&registers);
    return told;
}

PyMethodDef memsampd_data_address[] = {
    {"data_addresses", data_addresses, METH_VARARGS, data_addresses_doc},
    {NULL, NULL, 0, NULL},
};
