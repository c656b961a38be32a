/* Translating what is come to: links between superblocks, and their layout by what has been seen. */
#ifndef MEMSAMPD_BLOCKS_H
#define MEMSAMPD_BLOCKS_H

#include "tables.h"

/* Translate from `ip` on, and what is reached from there directly, as far as it is worth while. */
enum translation blocks_translate(struct blocks *b, uint64_t ip, uint32_t *found);

/* Translate the target of an exit and link the two. */
enum translation blocks_link(struct blocks *b, uint32_t exit, uint32_t *found);

/* Have the inline look-up find a block. */
void blocks_publish(struct blocks *b, uint32_t block);

/* Whether most of what ran lately was laid out without knowing how it would run. */
bool blocks_want_guiding(const struct blocks *b);

/* Learn from the records how code runs, and translate accordingly what ran often. -1: no memory. */
int blocks_guide(struct blocks *b);

#endif
