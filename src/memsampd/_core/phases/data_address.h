/* The address of data that a sample's registers tell: sampler/data_operands.py says by which steps. */
#ifndef MEMSAMPD_DATA_ADDRESS_H
#define MEMSAMPD_DATA_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Operands one after the other. */
struct operands {
    const uint8_t *at;
    size_t left; /* bytes */
};

/* The address that the next operand and a sample's registers tell; 0 where nothing tells one. False if this
 * is no operand. */
bool data_address(struct operands *operands, const uint64_t *registers, uint64_t *address);

#endif
