/* From trace words to rows: which data each instruction of a record referenced. */
#ifndef MEMSAMPD_EXPANSION_H
#define MEMSAMPD_EXPANSION_H

#include "blocks.h"
#include "rows.h"

/* An instruction at which a native twin can be stopped: before its n-th execution. */
struct course_point {
    uint64_t ip;
    uint64_t arrivals; /* from the start of the burst; 0: there is no such point */
    uint64_t rows;     /* of the burst before it */
};

/* How often and when each exit was taken, until some moment. */
struct course_counts {
    struct exit_count {
        uint64_t last;    /* rows before the last record that left by it */
        uint64_t repeats; /* rows beyond those that it always has: of repeated instructions */
        uint32_t hits;
        uint32_t stretch; /* that it was first taken in */
    } *exit;              /* each of them */
    uint64_t rows;     /* at that moment */
};

#define NO_EXIT UINT32_MAX

/* Code that had not run before. */
struct course_news {
    uint32_t exit;  /* the first by which it left, or NO_EXIT */
    uint64_t rows;  /* before that record */
    uint64_t count; /* rows of all such records */
};

/* What a burst does, counted, even on after its rows are full. Counts are kept from two earlier
 * moments, at powers of two of rows, so that a lead-in can be cut off. It ends where the program
 * goes over to other code altogether: what was timed and counted is then of one kind. */
struct course {
    uint64_t limit; /* rows to be counted in all; 0: none */
    uint64_t rows, checkpoint;
    struct course_counts now, earlier, earliest;
    size_t exits;   /* that the arrays have room for */
    bool is_void;   /* blocks were dropped meanwhile */
    uint32_t stretch;                      /* it is looked for new code in one after the other */
    uint64_t last_start, stretch_start;    /* of the one before and of this, rows */
    uint64_t stretch_end;
    struct course_news news, earlier_news; /* of this one and the one before; the end, once changed */
    bool has_changed;                      /* it has ended thus */
};

struct expansion {
    struct blocks *blocks;     /* in which it counts what was executed */
    struct course course;
    struct rows rows;
    struct lines lines;        /* instead of them, if line_shift is not 0 */
    unsigned line_shift;
    size_t chunk_rows;         /* pause when so many rows, or lines, wait to be taken */
    uint64_t limit;            /* rows of the burst, over all chunks */
    uint64_t total;            /* rows of the burst so far */
    uint64_t record_total;     /* the same where the present record begins */
    uint64_t instructions, prefetches;
    uint64_t segment_base[3];  /* by enum access_source; of ACCESS_WORD it is 0 */
    uint8_t *xstate;           /* scratch for recipes, RECIPE_XSTATE_BYTES */
    bool is_full;              /* `limit` was reached: all that follows is not part of the burst */
    uint64_t resume_iteration; /* of the repeated instruction in which a pause fell */
    uint32_t resume_access;    /* of the record in which a pause fell */
};

#define RECIPE_XSTATE_BYTES 16384

enum expanded { EXPANDED_ALL, EXPANDED_CHUNK, EXPANDED_FULL, EXPANDED_NO_MEMORY };

/* Expand whole records from `*from` up to `end`; `*from` is moved behind what was expanded. */
enum expanded expand(struct expansion *x, const uint64_t **from, const uint64_t *end);

/* Expand the first accesses of a block whose record is cut off: it never reached an exit. */
enum expanded expand_part(struct expansion *x, const uint64_t *words, const struct exit *part);

/* Begin a new burst, which goes on uncounted or, up to `course_limit` rows, counted. */
void expansion_begin(struct expansion *x, uint64_t limit, uint64_t course_limit,
                     unsigned line_shift);

/* Instructions that ran, and how often: arrays of `count`. */
struct course_visits {
    uint64_t *ip, *times;
    size_t count;
};

/* What ran, and where to begin and to end the timing of its twin; points without arrivals if there is
 * no way. False without memory. The caller frees the arrays, then too. */
bool course_points(struct course *c, struct blocks *b, struct course_point *lead_in,
                   struct course_point *end, struct course_visits *visits);
void course_free(struct course *c);

#endif
