/* From trace words to rows: which data each instruction of a record referenced. */
#ifndef MEMSAMPD_EXPANSION_H
#define MEMSAMPD_EXPANSION_H

#include "tables.h"
#include "reuse_counter.h"
#include "rows.h"
#include "visits.h"

struct expansion {
    struct blocks *blocks;     /* in which it counts what was executed */
    struct visits visits;
    struct rows rows;
    struct lines lines;        /* instead of them, if line_shift is not 0 */
    unsigned line_shift;
    struct reuse_counter *counter; /* takes them, if is_counted: there is then no pause for them */
    bool is_counted;
    /* Told of the lines that are counted, if it is there. */
    void (*note)(void *context, const uint64_t *runs, size_t count, unsigned line_shift);
    void *note_context;
    size_t chunk_rows;         /* pause when so many rows, or marks, wait to be taken */
    size_t chunk_marks;        /* the same of marks, or for the counter: then in the nearest cache */
    uint64_t limit;            /* rows of the burst, over all chunks */
    uint64_t total;            /* rows of the burst so far */
    uint64_t instructions, prefetches;
    uint64_t segment_base[3];  /* by enum access_source; of ACCESS_WORD it is 0 */
    uint8_t *xstate;           /* scratch for recipes, RECIPE_XSTATE_BYTES */
    bool is_full;              /* `limit` was reached: all that follows is not part of the burst */
    uint64_t resume_iteration; /* of the repeated instruction in which a pause fell */
    uint32_t resume_access;    /* of the record in which a pause fell */
    uint64_t iterations;       /* of repeated instructions in the present record */
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

/* Expand the first accesses of a block whose record is cut off: it never reached an exit. */
enum expanded expand_part(struct expansion *x, const uint64_t *words, const struct exit *part);

/* Begin another burst. If its lines are counted, the counter must be there whenever it goes on. */
void expansion_begin(struct expansion *x, uint64_t limit, unsigned line_shift, bool is_counted);

/* Have the counter count what lines wait. False without memory. */
bool expansion_count(struct expansion *x);

/* ---- Shared by expansion.c and plain_lines.c ---- */

/* The exit that the record at `at` names, if a whole one stands there. */
static inline struct exit *
exit_of_record(const struct blocks *b, const uint64_t *at, const uint64_t *end)
{
    const uint64_t number = *at; /* read once: who wrote it is not trusted */
    if (number >= b->exits || b->exit[number].words > (size_t)(end - at))
        return NULL;
    return &b->exit[number];
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
