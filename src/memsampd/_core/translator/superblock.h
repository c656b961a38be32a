/* Translating one superblock: choosing its instructions, copying them, recording what they reference.
 */
#ifndef MEMSAMPD_SUPERBLOCK_H
#define MEMSAMPD_SUPERBLOCK_H

#include "tables.h"

/* Append the block that begins at `ip` to the tables; it is neither indexed nor linked yet. */
enum translation superblock_translate(struct blocks *b, uint64_t ip);

#endif
