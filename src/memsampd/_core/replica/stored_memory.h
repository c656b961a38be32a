/* Memory that bursts store to, read in the hold for a replica that goes on behind it. */
#ifndef MEMSAMPD_STORED_MEMORY_H
#define MEMSAMPD_STORED_MEMORY_H

#include "pages.h"

/* Note that the program stored to some addresses. */
void pages_note_stores(struct pages *p, const uint64_t *address, size_t count);

/* Read pages of memory that bursts store to, for so long at most: those that the replica had once. */
void pages_read_stored(struct pages *p, struct process *process, struct remote *remote, double seconds);

/* Show the replica what was read so. */
void pages_show_read(struct pages *p, struct process *process, struct remote *remote);

#endif
