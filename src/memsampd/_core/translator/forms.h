/* Machine code taken apart just far enough to copy it, and what instructions of one form have in
 * common.
 *
 * A form is everything of an instruction but the numbers of its registers, its displacement and its
 * immediates. What a form does (which memory it references, which registers it uses) is asked of
 * the decoder in Python (sampler/replica/forms.py) once, by a sample that `form_sample` builds: an
 * instruction of that form whose explicit registers are FORM_REG, FORM_RM, FORM_VVVV, FORM_BASE and
 * FORM_INDEX. So decoding takes a table look-up here, and there is one authority on semantics.
 */
#ifndef MEMSAMPD_FORMS_H
#define MEMSAMPD_FORMS_H

#include "recipe.h"

#define INSTRUCTION_MAXIMUM_BYTES 15
#define FORM_SAMPLE_BYTES 32

/* Explicit registers of a sample. */
enum { FORM_REG = 9, FORM_RM = 10, FORM_VVVV = 12, FORM_BASE = 13, FORM_INDEX = 14 };
#define FORM_DISPLACEMENT 0x11223344

/* General registers by their number in machine code. */
enum gpr {
    RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15, NO_GPR = 0xff
};

/* Their positions in struct user_regs_struct, as 8-byte words. */
extern const uint8_t gpr_words[16];

enum flow {
    FLOW_NEXT = 0,
    FLOW_BRANCH,        /* jcc */
    FLOW_SHORT_BRANCH,  /* jrcxz, loop: only an 8-bit displacement */
    FLOW_JUMP,
    FLOW_CALL,
    FLOW_JUMP_INDIRECT,
    FLOW_CALL_INDIRECT,
    FLOW_RETURN,
    FLOW_STOP,          /* never goes on behind it: ud2, hlt */
};

/* Which explicit fields are general registers, for form.used and form.written. */
enum { FIELD_REG = 1, FIELD_RM = 2, FIELD_VVVV = 4, FIELD_REG_BYTE = 8, FIELD_RM_BYTE = 16 };

/* What it reads and writes besides registers, and whether it clears a register that it names twice. */
enum form_effect { READS_FLAGS = 1, WRITES_FLAGS = 2, CLEARS_SAME = 4, USES_X87 = 8 };

/* One reference of a form: a recipe_reference with the numbers of the sample's registers. */
struct form_reference {
    struct recipe_reference reference; /* base and index as numbers in machine code */
    uint8_t is_explicit;               /* its address is the instruction's memory operand */
    uint8_t mask_field;                /* the mask register is FIELD_RM, FIELD_VVVV, that
                                    * of a bit number FIELD_REG; 0: as given */
    uint8_t padding[6];
};

struct form {
    uint64_t key;
    uint16_t implicit_used, implicit_written; /* sets of general registers, bit n: number n */
    uint16_t implicit_read;
    int16_t stack_delta;                      /* what a plain push, pop or call adds to rsp */
    uint8_t used, written, read;              /* sets of FIELD_*; not of what an address is made of */
    uint8_t vector_read, vector_written;      /* the same of vector registers */
    uint8_t effects;                          /* enum form_effect */
    uint8_t latency_cycles;                   /* from what it reads to what it writes */
    uint8_t immediate_bytes;
    uint8_t flow;
    uint8_t flags;      /* enum recipe_flag */
    uint8_t references;
    uint8_t displacement_scale; /* of an 8-bit displacement: EVEX */
    uint8_t padding[4];
    struct form_reference reference[RECIPE_REFERENCES];
};

enum encoding { ENCODING_LEGACY, ENCODING_VEX, ENCODING_EVEX };

/* An instruction taken apart. Offsets are from its first byte. */
struct parsed {
    uint64_t key;
    uint8_t bytes[INSTRUCTION_MAXIMUM_BYTES];
    uint8_t length;          /* without immediates until its form is known, then with */
    uint8_t encoding, map, opcode;
    uint8_t opcode_at, modrm_at, prefix_at; /* prefix_at: REX, VEX or EVEX; 0xff: none */
    bool has_modrm, has_memory, is_rip_relative, has_sib;
    bool operand_16, address_32;
    uint8_t segment;         /* 4: fs, 5: gs, 0: none that counts */
    uint8_t repeat;          /* 0xf2, 0xf3 or 0 */
    uint8_t rex_w;
    uint8_t reg, rm, vvvv;   /* with their extensions; rm: of a register or opcode register */
    uint8_t base, index;     /* NO_GPR: none */
    uint8_t vector_index;    /* the index if it is a vector */
    uint8_t scale;
    uint8_t opmask;
    bool has_opcode_register;
    int64_t displacement;    /* an 8-bit one of EVEX is scaled by its form later */
    bool displacement_is_8_bit;
    bool is_legacy_byte_reg; /* no REX: registers 4 to 7 of a byte operand are ah to bh */
};

/* Take apart the instruction at `code`; false if it is cut off or not one. */
bool parse(const uint8_t *code, size_t size, struct parsed *out);

/* A sample of its form, zero-filled behind; returns the offset where immediates begin. */
unsigned form_sample(const struct parsed *p, uint8_t sample[FORM_SAMPLE_BYTES]);

/* -1: no memory. */
static inline int
form_table_put(struct keyed *table, const struct form *form)
{
    return keyed_put(table, sizeof *form, form);
}

static inline const struct form *
form_table_get(const struct keyed *table, uint64_t key)
{
    return keyed_get(table, sizeof(struct form), key);
}

#endif
