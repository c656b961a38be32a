/* How often each instruction ran in a burst. Nothing is counted for it: exits count anyway how often
 * they were taken, and a burst keeps what they had come to when it first took each. */
#ifndef MEMSAMPD_VISITS_H
#define MEMSAMPD_VISITS_H

#include "tables.h"

struct visit {
    uint32_t exit, hits_before;
    uint64_t repeats; /* beyond one a record: of its repeated instructions */
};

/* An exit of the present burst has exit.visit >= first: the item at exit.visit - first. */
struct visits {
    struct visit *item;
    size_t count, capacity;
    uint64_t first;
    struct ran {
        uint64_t *ip, *times; /* of blocks that are gone by now, and then of all */
        size_t count, capacity;
    } ran;
};

void visits_begin(struct visits *v);
void visits_free(struct visits *v);

/* The first record of an exit in the present burst, not counted yet. False without memory. */
bool visits_add(struct visits *v, struct blocks *b, uint32_t exit);

/* A record that left by `exit` is about to be counted. False without memory. */
static inline bool
visits_note(struct visits *v, struct blocks *b, uint32_t exit)
{
    return __builtin_expect(b->exit[exit].visit >= v->first, 1) || visits_add(v, b, exit);
}

/* Repetitions of an instruction in the last record of an exit that was noted. */
void visits_repeat(struct visits *v, const struct blocks *b, uint32_t exit, uint64_t repeats);

/* What ran of a block whose record is cut off: a repeated instruction so many times, and if that is all of the
 * record each instruction. False without memory. */
bool visits_add_part(struct visits *v, struct blocks *b, const struct exit *part, uint64_t repeats,
                     bool is_over);

/* Move what ran to `ran`: one entry an instruction of each block. To be called at the end of a burst,
 * and before blocks go: they are told as well. False without memory. */
bool visits_collect(struct visits *v, struct blocks *b);

#endif
