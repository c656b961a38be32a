/* What the instructions of a superblock record: the words of its record from which the addresses of
 * their accesses follow, and the accesses themselves, in the tables.
 */
#ifndef MEMSAMPD_RECORDING_H
#define MEMSAMPD_RECORDING_H

#include "emitter.h"
#include "holdings.h"

#define BLOCK_MAXIMUM_WORDS 400
_Static_assert(BLOCK_MAXIMUM_WORDS <= RECORD_MOST_WORDS, "a record's length is told in its first word");

/* An address that the record holds already. */
struct recorded {
    unsigned base, index, scale;
    int64_t base_offset, index_offset;
    uint16_t word;
};

struct recording {
    struct blocks *b;
    struct emitter *e;
    struct pair pair;
    struct holdings holdings;
    struct recorded recorded[BLOCK_MAXIMUM_WORDS];
    unsigned recordeds;
    uint16_t words, accesses; /* so far */
};

void recording_begin(struct recording *r, struct blocks *b, struct emitter *e, struct pair pair);

/* Whether the record has room for what any instruction needs. */
bool recording_has_room(const struct recording *r);

/* Record what an instruction references, the path's `number`th; its copy is to follow. False: no
 * memory. */
bool recording_add(struct recording *r, const struct step *s, unsigned number);

/* Behind its copy. */
void recording_follow(struct recording *r, const struct step *s);

#endif
