/* Translating one superblock: choosing its instructions, copying them, recording what they reference.
 */
#ifndef MEMSAMPD_SUPERBLOCK_H
#define MEMSAMPD_SUPERBLOCK_H

#include "blocks.h"

/* Of a link: a trap or a jump. */
#define LINK_BYTES 5

/* Append the block that begins at `ip` to the tables; it is neither indexed nor linked yet. */
enum translation superblock_translate(struct blocks *b, uint64_t ip);

/* ---- What blocks.c keeps for it ---- */

bool blocks_grow(void **array, size_t *capacity, size_t wanted, size_t item);
bool blocks_grow_accesses(struct accesses *a);

/* Copy code; returns how many bytes could be read, at most the size of an instruction. */
size_t blocks_read_code(struct blocks *b, uint64_t ip, uint8_t code[INSTRUCTION_MAXIMUM_BYTES]);
bool blocks_was_written(const struct blocks *b, uint64_t address);

/* Put the trap back where an exit is linked. */
void blocks_cut(struct blocks *b, struct exit *x);

#endif
