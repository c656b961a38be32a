/* The memory that tracer and replica share, as the translator lays it out. */
#ifndef MEMSAMPD_LAYOUT_H
#define MEMSAMPD_LAYOUT_H

#include "forms.h"

/* The area shared by tracer and replica, as offsets from its start. Everything that code refers to
 * lies within 2 GiB of it, so slots are addressed relative to the instruction pointer. */
#define AREA_SLOTS 0u
#define AREA_LOOKUP_BITS 16
#define AREA_LOOKUP 0x1000u /* negated targets, then code addresses, 8 bytes each */
#define AREA_LOOKUP_BYTES (16u << AREA_LOOKUP_BITS)
#define AREA_CODE (AREA_LOOKUP + AREA_LOOKUP_BYTES)
#define AREA_CODE_BYTES (64u << 20)
#define AREA_BUFFER (AREA_CODE + AREA_CODE_BYTES)

/* Slots: offsets into the first page. What the program has in a register that a block uses for itself
 * lies in the slot of that register. */
#define SLOT_GPR(number) (8u * (number))
enum slot { SLOT_RCX = SLOT_GPR(1), SLOT_BUFFER = SLOT_GPR(16), SLOT_TARGET = SLOT_GPR(17),
            SLOT_JUMP = SLOT_GPR(18) };

#define LOOKUP_ROUTINE_BYTES 384 /* at the start of the code: see lookup.h, replica/area.h */
/* Of a link: a trap or a jump. */
#define LINK_BYTES 5

#endif
