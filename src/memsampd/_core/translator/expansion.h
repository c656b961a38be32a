/* From trace words to rows: which data each instruction of a record referenced. */
#ifndef MEMSAMPD_EXPANSION_H
#define MEMSAMPD_EXPANSION_H

#include "line_marks.h"
#include "reuse_counter.h"
#include "rows.h"
#include "tables.h"
#include "visits.h"

struct expansion {
    struct blocks *blocks;     /* in which it counts what was executed */
    struct visits visits;
    struct rows rows;
    unsigned line_shift;       /* not 0: instead of rows the counter gets the lines that they touch */
    struct line_marks marks;   /* that wait for it */
    struct reuse_counter *counter;
    /* Told of lines that are counted: of each once at least, but not of each time. */
    void (*note)(void *context, const uint64_t *line, size_t count, unsigned line_shift);
    void *note_context;
    size_t chunk_rows;         /* pause when so many rows wait to be taken */
    uint64_t limit;            /* rows of the burst, over all chunks */
    uint64_t total;            /* rows of the burst so far */
    uint64_t counted_rows, counted_writes; /* whose lines were given to the counter */
    uint64_t instructions, prefetches;
    uint64_t segment_base[3];  /* by enum access_source; of ACCESS_WORD it is 0 */
    struct user_regs_struct regs; /* scratch for recipes: holds what the present one asks for */
    uint8_t *xstate;           /* the same, RECIPE_XSTATE_BYTES */
    bool is_full;              /* `limit` was reached: all that follows is not part of the burst */
    uint64_t resume_iteration; /* of the repeated instruction in which a pause fell */
    uint32_t resume_access;    /* of the record in which a pause fell */
    uint64_t iterations;       /* of repeated instructions in the present record */
    uint64_t repeats;          /* elements that rep movs and rep stos moved in the burst so far */
};

#define RECIPE_XSTATE_BYTES 16384

enum expanded {
    EXPANDED_ALL,
    EXPANDED_CHUNK,
    EXPANDED_FULL,
    EXPANDED_NO_MEMORY,
    EXPANDED_MALFORMED, /* what stands there is no record */
};

/* Expand whole records from `*from` up to `end`; `*from` is moved behind what was expanded. Nothing
 * is read from `end` on, whatever the words say. */
enum expanded expand(struct expansion *x, const uint64_t **from, const uint64_t *end);

/* Expand the first accesses of a block whose record is cut off: it never reached an exit. Again, where that
 * pauses for a chunk. */
enum expanded expand_cut(struct expansion *x, const uint64_t *words, const struct exit *part);

/* How many accesses an instruction makes that has one entry among its block's: of repeated ones what their
 * counter tells, at most as many as there could be in a burst. */
uint64_t special_accesses(const struct special *s, const uint64_t *words);

/* How many accesses a record makes that left by an exit, some of whose accesses are special. */
uint64_t record_accesses_slowly(const struct blocks *blocks, const struct exit *x,
                                const uint64_t *words);

/* The operands of a special instruction, put where recipe_references looks for them. */
void special_operands(const struct special *s, const uint64_t *words, struct user_regs_struct *regs,
                      uint8_t *xstate);

/* How many elements a repeated instruction got through, and by how much that moved its pointers, which are in
 * `regs` as they were before. */
uint64_t repeated_elements(const struct special *s, const uint64_t *words);
int64_t repeated_bytes(const struct special *s, const uint64_t *words,
                       const struct user_regs_struct *regs);

/* How many accesses whole records make, without looking at these. */
uint64_t count_accesses(const struct blocks *blocks, const uint64_t *at, const uint64_t *end);

/* Begin another burst. If its lines are counted, the counter must be there whenever it goes on. */
void expansion_begin(struct expansion *x, uint64_t limit, unsigned line_shift);

/* Have the counter count what marks wait. False without memory. */
bool expansion_count(struct expansion *x);

#define MARKS_AT_ONCE 2048 /* in the nearest cache */

/* ---- Shared by what goes through records ---- */

/* How many accesses a record makes that left by an exit. */
static inline uint64_t
record_accesses(const struct blocks *blocks, const struct exit *x, const uint64_t *words)
{
    return x->is_plain ? x->accesses : record_accesses_slowly(blocks, x, words);
}

/* The exit that the record at `at` names, if a whole one stands there, and how many words that has: by
 * what stands there, which is known sooner than what is known of the exit. */
static inline struct exit *
exit_of_record(const struct blocks *b, const uint64_t *at, const uint64_t *end, size_t *words)
{
    const uint64_t word = *(const volatile uint64_t *)at; /* once: who wrote it is not trusted */
    const uint64_t number = word & (EXITS_MOST - 1);

    *words = word >> EXIT_BITS;
    if (number >= b->exits || b->exit[number].words != *words || *words > (size_t)(end - at))
        return NULL;
    return &b->exit[number];
}

/* The exit of the record at `at`, which lies within them or one that was cut off behind them; NULL: they are over. That
 * one has no words: one is told, to move on by. */
static inline const struct exit *
record_at(const struct blocks *b, const struct record_list *r, const uint64_t *at, size_t *words)
{
    if (at < r->end)
        return exit_of_record(b, at, r->end, words);
    *words = 1;
    return at == r->end ? r->cut : NULL;
}

/* The address of an access that is no ACCESS_SPECIAL, by its block's columns and the words of its record. */
static inline uint64_t
address_of_access(const struct blocks *b, const uint64_t segment_base[3], size_t access,
                  const uint64_t *words)
{
    const struct operand *o = &b->accesses.operand[access];
    const uint64_t base = o->word != 0 ? words[o->word] : 0;
    return base + segment_base[o->source] + (uint64_t)b->accesses.delta[access];
}

/* Count a record, for the layout of later translations and for the visits. False without memory. */
static inline bool
count_exit(struct expansion *x, struct exit *from, struct exit *now)
{
    struct blocks *b = x->blocks;

    if (!visits_note(&x->visits, b, (uint32_t)(now - b->exit)))
        return false;
    now->hits++;
    if (from == NULL || from->kind != EXIT_INDIRECT)
        return true;
    if (from->candidate == now->block) {
        from->votes++;
    } else if (from->votes != 0) { /* Boyer and Moore's majority vote */
        from->votes--;
    } else {
        from->candidate = now->block;
        from->votes = 1;
    }
    return true;
}

/* Plain records to lines, as nearly all are: up to the first other one, from which *from and *before
 * are left. */
enum expanded expand_plain_lines(struct expansion *x, const uint64_t **from, const uint64_t *end,
                                 struct exit **before);

/* Whether to use vectors if the CPU has them; returns whether they are used. Off until asked for. */
bool plain_lines_use_vectors(bool wanted);

#endif
