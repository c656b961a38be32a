/* How to find the data references of one decoded instruction in the registers before it runs.
 *
 * Recipes are made in Python (sampler/replica/decoder.py, the numpy dtype RECIPE mirrors this struct)
 * and kept here by instruction address.
 */
#ifndef MEMSAMPD_RECIPE_H
#define MEMSAMPD_RECIPE_H

#include "keyed.h"

#include <stdbool.h>
#include <sys/user.h>

#define RECIPE_REFERENCES 4
#define RECIPE_CODE_BYTES 15
#define RECIPE_NO_REGISTER 0xff

enum recipe_flag {
    RECIPE_SYSCALL = 1,      /* asks the kernel for something: never executed */
    RECIPE_UNSUPPORTED = 2,  /* its references cannot be told */
    RECIPE_REPEATED = 4,     /* rep prefix: no reference when rcx is 0; one step an iteration */
    RECIPE_PUSHES_FLAGS = 8, /* would show the program our trap flag */
    RECIPE_NEEDS_VECTORS = 16,
    RECIPE_PREFETCHES = 32,
};

enum reference_kind {
    REFERENCE_PLAIN = 0,
    REFERENCE_GATHER,     /* a lane an index of a vector register; gathers and scatters */
    REFERENCE_MASKED,     /* from the first to the last active lane */
    REFERENCE_COMPRESSED, /* as many elements as lanes are active, packed */
    REFERENCE_XSAVE,      /* size from edx:eax */
    REFERENCE_XSAVEC,
    REFERENCE_BIT,  /* mask_register holds the number of a bit, counted from the address */
    REFERENCE_XLAT, /* only the lowest byte of the index counts */
};

enum mask_kind {
    MASK_NONE = 0,
    MASK_OPMASK, /* AVX-512 k register */
    MASK_SIGNS,  /* sign bits of the elements of a vector register */
};

struct recipe_reference {
    int64_t displacement;
    uint16_t size_bytes;
    uint8_t kind;
    uint8_t loads;
    uint8_t stores;
    uint8_t base;    /* index into user_regs_struct as 8-byte words, or RECIPE_NO_REGISTER */
    uint8_t index;   /* the same, or the number of a vector register for REFERENCE_GATHER */
    uint8_t scale;
    uint8_t segment; /* index of fs_base or gs_base, or RECIPE_NO_REGISTER */
    uint8_t is_32_bit;
    uint8_t mask_kind;
    uint8_t mask_register;
    uint8_t lanes;
    uint8_t lane_bytes;  /* of an element in memory; for MASK_SIGNS also in the mask */
    uint8_t index_bytes; /* of an index of REFERENCE_GATHER */
    uint8_t padding;
};

struct recipe {
    uint64_t ip;
    uint8_t code[RECIPE_CODE_BYTES];
    uint8_t length;
    uint8_t flags;
    uint8_t references;
    uint8_t padding[6];
    struct recipe_reference reference[RECIPE_REFERENCES];
};

/* Whether it is rep movs or rep stos: CPUs move whole lines then. So an iteration makes an access, and
 * counts as an instruction, only if it touches a line that the one before did not touch with that
 * operand. All others make an access an element. */
static inline bool
recipe_moves_lines(const struct recipe *r)
{
    bool stores = false;
    for (unsigned i = 0; i < r->references; i++)
        stores |= r->reference[i].stores;
    return stores && r->flags & RECIPE_REPEATED;
}

#define MOVED_LINE_SHIFT 6

/* Called once a reference found. */
typedef int (*recipe_emit)(void *context, uint64_t ip, uint64_t address, unsigned size_bytes,
                           int is_write);

/* Find the references of `r`, loads before stores; `xstate` is only read for
 * RECIPE_NEEDS_VECTORS. Returns 0, or what `emit` returned if not 0. */
int recipe_references(const struct recipe *r, const struct user_regs_struct *regs,
                      const uint8_t *xstate, recipe_emit emit, void *context);

/* Put a vector register, or an opmask (8 bytes), where recipe_references looks for it. */
void recipe_put_vector(uint8_t *xstate, unsigned number, const void *bytes, unsigned size_bytes);
void recipe_put_opmask(uint8_t *xstate, unsigned number, uint64_t value);

/* Recipes by ip; -1: no memory. */
static inline int
recipe_table_put(struct keyed *table, const struct recipe *r)
{
    return keyed_put(table, sizeof *r, r);
}

static inline const struct recipe *
recipe_table_get(const struct keyed *table, uint64_t ip)
{
    return keyed_get(table, sizeof(struct recipe), ip);
}

#endif
