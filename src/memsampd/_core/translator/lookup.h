/* The table by which translated code finds where an indirect jump, call or return goes on.
 *
 * An address has two places. Code looks into the first itself, then into the second by a routine that
 * all share. Of two addresses that are needed in turn and have their first place in common, one trap
 * each time would be dearer than all the rest.
 */
#ifndef MEMSAMPD_LOOKUP_H
#define MEMSAMPD_LOOKUP_H

#include "emitter.h"
#include "layout.h"

/* Empty the table and put the routine, LOOKUP_ROUTINE_BYTES at most, where the code begins. Come to
 * with all registers the program's but rcx, and its rcx, the target and the buffer pointer in their
 * slots. Returns where its trap is if there is no such address: then r10 and r11 are in their slots,
 * too. */
uint32_t lookup_init(uint8_t *area);

/* Have an address found. The table is seen by code at `area_address`. */
void lookup_put(uint8_t *area, uint64_t area_address, uint64_t ip, uint32_t entry);

/* Have it not found any more. */
void lookup_drop(uint8_t *area, uint64_t area_address, uint64_t ip);

/* hash = the first place of `target`; table = the address of the table. */
void emit_hash(struct emitter *e, unsigned hash, unsigned table, unsigned target);

#endif
