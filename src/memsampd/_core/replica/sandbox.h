/* What a replica has is taken from it, and what it may do. */
#ifndef MEMSAMPD_SANDBOX_H
#define MEMSAMPD_SANDBOX_H

#include "caller.h"

/* Its memory becomes the file of its frames, with nothing in sight, wherever the kernel has sealed nothing
 * (process.part). */
void sandbox_map_memory(struct caller *c, bool may_execute);

/* No descriptor, no privilege, no call but pause and the one that loses sight of pages. */
void sandbox_confine(struct caller *c, const struct area *area);

#endif
