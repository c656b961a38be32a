/* Translated code: superblocks that record what they reference, and the tables that tell what was
 * recorded.
 *
 * A superblock is straight-line code with side exits. Executing it writes one record into the trace
 * buffer: the word that names the exit it left by, then the words from which its addresses follow.
 * Two registers that its code does not use hold the buffer pointer and a scratch value; what the
 * program has in them lies in slots meanwhile. Flags are never touched.
 */
#ifndef MEMSAMPD_TABLES_H
#define MEMSAMPD_TABLES_H

#include "layout.h"
#include "page.h"
#include "profile.h"

enum exit_kind {
    EXIT_DIRECT,      /* goes on at exit.target */
    EXIT_INDIRECT,    /* goes on at the address in SLOT_TARGET */
    EXIT_SYSCALL,     /* stands before a system call at exit.target */
    EXIT_CROSSED,     /* the record of that system call, if it is emulated: follows EXIT_SYSCALL */
    EXIT_UNSUPPORTED, /* stands before what we cannot handle at exit.target */
    EXIT_REFUSED,     /* code that cannot be read at exit.target */
};

#define NO_BLOCK 0xffffffffu

struct exit {
    uint64_t target;   /* of an indirect one on the way: where it does not go */
    uint32_t block;
    uint32_t link_at;  /* offset of its patchable bytes: a trap, or a jump once linked */
    uint32_t linked;   /* the block that it is linked to, or NO_BLOCK */
    uint16_t accesses; /* of the block's, executed when it leaves here */
    uint16_t words;    /* of its record, the exit word included */
    uint16_t instructions, prefetches;
    uint8_t kind;
    uint32_t hits;       /* records that left here */
    uint32_t votes;      /* of an indirect one: for `candidate`, the block it mostly goes to */
    uint32_t candidate;
    uint32_t first_access; /* as the block's: what expands a record has all it needs at hand */
    uint16_t stores;       /* among its accesses */
    uint8_t is_plain;      /* none of them is an ACCESS_SPECIAL */
    uint8_t is_near;       /* ... and all follow from the first NEAR_WORDS words of the record */
    uint8_t has_segments;  /* some of them add fs_base or gs_base */
    uint64_t visit;        /* of the present burst: see struct visits */
};

#define NEAR_WORDS 16

/* The first word of a record: the number of its exit, and above it how many words it has. */
#define EXIT_BITS 22
#define EXITS_MOST ((size_t)1 << EXIT_BITS)
#define RECORD_MOST_WORDS ((1u << (31 - EXIT_BITS)) - 1) /* of a number that code can store at once */

static inline uint32_t
record_word(const struct exit *x, size_t number)
{
    return (uint32_t)number | (uint32_t)x->words << EXIT_BITS;
}

/* Of what was recorded: whole records from `at` up to `end`, where one is that was cut off, unless `cut` is NULL. */
struct record_list {
    const uint64_t *at, *end;
    const struct exit *cut; /* how far it got; its `words` are 0 */
};

/* How the address of one access follows from the record. */
enum access_source {
    ACCESS_WORD = 0, /* words[word] + delta, or delta alone if `word` is 0 */
    ACCESS_FS,       /* the same plus fs_base */
    ACCESS_GS,
    ACCESS_SPECIAL,  /* specials[delta] evaluated: any number of accesses */
};

/* Which registers an instruction waits for, and which it sets when that is done. */
struct dependences {
    uint64_t data, address, results; /* general ones by number, and enum other_register */
    uint8_t latency_cycles;          /* behind its loads */
};

enum other_register { FIRST_VECTOR = 16, FLAGS_REGISTER = 48, X87_REGISTER = 49 };

struct instruction {
    uint64_t ip;
    uint32_t code_at;        /* where its copy begins */
    uint16_t accesses_before;
    uint16_t prefetches_before;
    uint8_t flow;            /* enum flow */
    uint8_t is_followed;     /* a conditional branch that the path goes along: not taken, it leaves it */
    struct dependences dependences;
};

struct block {
    uint64_t ip;
    uint64_t return_ip;       /* where the call that ends it returns to, or 0 */
    uint32_t cold, warm, end; /* offsets of its entries and the end of its code and exits */
    uint32_t body_end;        /* behind its instructions and the record of its last exit */
    uint64_t pages;           /* that its code lies in: a page_bit each */
    uint32_t first_access, first_instruction, first_exit;
    uint16_t accesses, instructions, exits;
    uint8_t buffer_register, scratch_register;
    uint8_t is_dead;
    uint8_t is_guided;        /* laid out by the profile */
    uint8_t is_passing;       /* it ends at what the replica had stored to: the program may not have */
};

#define SPECIAL_GPRS 5
#define SPECIAL_VECTORS 2

/* An instruction whose references hang on more than an address: which words hold its operands. */
struct special {
    struct recipe recipe;
    uint16_t gpr_word[SPECIAL_GPRS];
    uint8_t gpr[SPECIAL_GPRS]; /* numbers in machine code, NO_GPR: none */
    uint8_t vectors;
    uint16_t vector_word[SPECIAL_VECTORS];
    uint8_t vector[SPECIAL_VECTORS], vector_bytes[SPECIAL_VECTORS]; /* bytes 8: an opmask */
    /* Of repeated instructions, 0: none. */
    uint16_t count_after_word, pointer_after_word;
    uint32_t copy_at; /* where the copy of the instruction itself stands */
};

/* From what the address of an access follows, but for its delta. */
struct operand {
    uint16_t word;
    uint16_t source;   /* enum access_source */
    uint16_t reach;    /* from its first byte to its last */
    uint16_t unused;
};

/* Accesses of all blocks as columns, so that a record expands to rows by copying, and to lines by
 * vectors: behind the last one there is always room for ACCESS_VECTOR others. */
struct accesses {
    struct operand *operand; /* a uint64_t each to vectors */
    int64_t *delta;
    uint64_t *ip;
    uint16_t *size_bytes, *instruction;
    uint8_t *is_write;
    size_t count, capacity;
};

#define ACCESS_VECTOR 8

#define CODE_LINE_BYTES 64 /* of a page 64, a bit each */
#define ALL_LINES UINT64_MAX

/* Code, and data that a program keeps beside it, as virtual machines do. */
struct code_page {
    uint64_t address; /* 0: free slot */
    uint8_t *bytes;   /* as it was when it was translated; NULL: cannot be read */
    uint64_t used;    /* lines of it that were translated */
    uint64_t changed; /* of these, that hold something else now */
    uint32_t burst;   /* the last one for which it was translated, or that ran it */
    bool is_volatile;
};

/* Code that the replica wrote to: it is not translated, as the target has something else there. */
struct written_code {
    uint64_t page, lines;
    unsigned stores;
};

enum code_kind {
    CODE_UNREADABLE = 0,
    CODE_STABLE,   /* of a file, private and read-only: it changes where another file is mapped there */
    CODE_VOLATILE, /* the program can write to it, perhaps where the same memory is mapped once more */
};
/* Reads pages of the program's code, CODE_BATCH of them at most, at ascending addresses. */
typedef void (*code_reader)(void *reader, const uint64_t *page, size_t count, uint8_t *bytes,
                            enum code_kind *kind);

#define CODE_BATCH 16

#define WRITTEN_PAGES 64

struct blocks {
    struct written_code written[WRITTEN_PAGES];
    unsigned written_pages;
    bool has_passing;      /* some block is */
    uint8_t *area;         /* our mapping */
    uint64_t area_address; /* the replica's */
    uint32_t code_used;    /* offset from AREA_CODE */
    uint32_t lookup_trap;  /* where code stands that knows no block for an indirect target */
    struct block *block;
    size_t count, capacity;
    struct exit *exit;
    size_t exits, exit_capacity;
    struct instruction *instruction;
    size_t instructions, instruction_capacity;
    struct special *special;
    size_t specials, special_capacity;
    struct accesses accesses;
    uint32_t *index;       /* hash table of block + 1 by ip */
    size_t index_capacity;
    struct keyed pages;    /* struct code_page by address */
    struct keyed forms;
    struct keyed profile;  /* struct branch_profile */
    uint32_t hot_executions; /* what ran less often is laid out as if it were not known */
    uint32_t burst;        /* the number of the present one */
    double drop_seconds;   /* that it took to drop what was translated from changed code */
    double seconds_a_page; /* that it takes to compare one */
    code_reader read_code;
    void *reader;          /* its first argument */
    uint64_t records[2];   /* of blocks that were laid out without the profile, and by it */
    uint8_t sample[FORM_SAMPLE_BYTES]; /* of the form that is wanted */
    uint64_t sample_key;
    unsigned sample_operands;
    uint64_t translated_instructions;
};

enum translation {
    TRANSLATED,
    TRANSLATION_NEEDS_FORM, /* see sample, sample_key and sample_operands */
    TRANSLATION_FULL,       /* the code area is full: blocks_flush */
    TRANSLATION_NO_MEMORY,
};

#define HOT_EXECUTIONS 64

/* ---- Storage ---- */

bool blocks_grow(void **array, size_t *capacity, size_t wanted, size_t item);
bool blocks_grow_accesses(struct accesses *a);
void blocks_init(struct blocks *b, uint8_t *area);
void blocks_free(struct blocks *b);

/* Drop all translations. */
void blocks_flush(struct blocks *b);

/* The block that begins at `ip`, or NO_BLOCK. */
uint32_t blocks_find(const struct blocks *b, uint64_t ip);

/* Have a block found; room for one more is to be reserved before. False: no memory. */
bool blocks_reserve_index(struct blocks *b);
void blocks_index(struct blocks *b, uint32_t block);
void blocks_index_anew(struct blocks *b);

/* ---- The program's code ---- */

/* The page of the program's code at an address, read if it is not known; NULL: no memory. */
struct code_page *blocks_page(struct blocks *b, uint64_t address);

/* Copy code; returns how many bytes could be read, at most the size of an instruction. */
size_t blocks_read_code(struct blocks *b, uint64_t ip, uint8_t code[INSTRUCTION_MAXIMUM_BYTES]);

/* Lines of the page at an address that so many bytes lie in, as far as they are in it. */
uint64_t code_lines(uint64_t address, size_t bytes);

/* One of 64 for each page, the same for some. */
static inline uint64_t
page_bit(uint64_t address)
{
    return UINT64_C(1) << (address / PAGE_BYTES * 0x9e3779b97f4a7c15u >> 58);
}

/* Whether anything was translated from these bytes, as far as they are in one page. */
bool blocks_use(const struct blocks *b, uint64_t address, size_t bytes);

/* The replica writes to lines of a page: NULL, if too many pages are known. */
struct written_code *blocks_note_written(struct blocks *b, uint64_t page, uint64_t lines);
bool blocks_was_written(const struct blocks *b, uint64_t address);

/* ---- Finding one's way back ---- */

/* Put the trap back where an exit is linked. */
void blocks_cut(struct blocks *b, struct exit *x);

/* The block and the instruction whose copies contain an offset into the area; false if none. */
bool blocks_locate(const struct blocks *b, uint32_t offset, uint32_t *block, uint32_t *instruction);

/* The exit whose trap stands at an offset into the area, or -1. */
long blocks_exit_at(const struct blocks *b, uint32_t offset);

#endif
