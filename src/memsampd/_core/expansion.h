/* From trace words to rows: which data each instruction of a record referenced. */
#ifndef MEMSAMPD_EXPANSION_H
#define MEMSAMPD_EXPANSION_H

#include "blocks.h"
#include "rows.h"

struct expansion {
    const struct blocks *blocks;
    struct rows rows;
    size_t chunk_rows;         /* pause when so many rows wait to be taken */
    uint64_t limit;            /* rows of the burst, over all chunks */
    uint64_t total;            /* rows of the burst so far */
    uint64_t instructions, prefetches;
    uint64_t fs_base, gs_base;
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

/* Begin a new burst. */
void expansion_begin(struct expansion *x, uint64_t limit);

#endif
