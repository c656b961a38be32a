/* Pages are read in the target and shown to the replica. */
#ifndef MEMSAMPD_SUPPLYING_H
#define MEMSAMPD_SUPPLYING_H

#include "pages.h"

/* Supply what is likely to be needed, for so long at most; called again, the rest. */
void pages_predict(struct pages *p, struct process *process, struct remote *remote,
                   double seconds);

/* What the target's pages hold now. */
struct batch {
    uint8_t result[REMOTE_BATCH]; /* enum page_read */
    uint8_t *place[REMOTE_BATCH];
    bool is_placed[REMOTE_BATCH]; /* where the replica has it; else to be copied there */
    bool is_writable[REMOTE_BATCH];
};

/* Read pages (addresses ascending), and show the replica what was read, run by run: or both. The number
 * returned is of those that it has then. */

void pages_read(struct pages *p, struct process *process, struct remote *remote,
                const uint64_t *address, size_t count, struct batch *batch);
size_t pages_show(struct pages *p, struct process *process, struct remote *remote,
                  const uint64_t *address, size_t count, const struct batch *batch);
size_t pages_supply(struct pages *p, struct process *process, struct remote *remote,
                    const uint64_t *address, size_t count);

/* Note that the system may have written between two addresses: pages there are to be read again. */
void pages_mark_written(struct pages *p, uint64_t start, uint64_t end);

/* Read pages again that the replica has, or drop them where they cannot be read: those marked, those that
 * other processes may have written to, and with `all`, for other threads, every writable one. */
void pages_refresh(struct pages *p, struct process *process, struct remote *remote, bool all);

/* Take the pages between two addresses away. */
void pages_drop(struct pages *p, struct process *process, uint64_t start, uint64_t end);

#endif
