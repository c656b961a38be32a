/* The program's instructions in translated code: as they are, but for what hangs on where they stand. */
#ifndef MEMSAMPD_COPIES_H
#define MEMSAMPD_COPIES_H

#include "emitter.h"
#include "path.h"

/* One that goes on behind it. */
void copy_instruction(struct emitter *e, const struct step *s, unsigned scratch);

/* A conditional branch; the displacement of where it leaves the path, 32 bits, is what it ends with. */
void copy_branch(struct emitter *e, const struct step *s);

/* All that an unconditional transfer of control does but going there; the target of an indirect one
 * is then in the scratch register. */
void copy_transfer(struct emitter *e, const struct step *s, unsigned scratch);

#endif
