/* The file that is a replica's memory, as we see it: offsets are addresses.
 *
 * Pages are written through windows of ours onto it, so that a page of the target is copied once. They are
 * kept from burst to burst: to write over one takes less than to make one. What a window shows is never
 * read here, as the replica may write to it, too; and it is only written to by system calls, which fail
 * where there is no memory for another page.
 */
#ifndef MEMSAMPD_FRAMES_H
#define MEMSAMPD_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_WINDOWS 64
#define FRAMES_WINDOW_BYTES ((uint64_t)256 << 20)
#define FRAMES_KEPT_BYTES ((uint64_t)96 << 20) /* by all replicas together */

struct frames {
    int file; /* -1: none */
    struct {
        uint64_t start;
        uint8_t *bytes;
    } window[FRAMES_WINDOWS]; /* the last used one comes first */
    size_t windows;
    uint64_t kept_bytes; /* as frames_keep found it */
};

/* Of so many bytes, of which none is there; -1 with errno set. */
int frames_create(struct frames *f, uint64_t bytes, bool may_execute);
void frames_close(struct frames *f);

/* Where a page can be written; NULL: no room for a window, as where address space is limited. */
uint8_t *frames_place(struct frames *f, uint64_t page);

/* Write some bytes of a page, wherever it is. */
bool frames_write(struct frames *f, uint64_t address, const uint8_t *bytes, size_t size);

/* Give pages back, and take them from the replica. */
void frames_drop(struct frames *f, uint64_t start, uint64_t end);

/* Behind a burst: keep them unless there are too many. False: all were given back. */
bool frames_keep(struct frames *f, uint64_t end);

#endif
