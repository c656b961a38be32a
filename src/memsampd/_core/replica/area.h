/* The memory that tracer and shadow share: slots, look-up table, translated code, trace buffer. */
#ifndef MEMSAMPD_AREA_H
#define MEMSAMPD_AREA_H

#include "blocks.h"
#include "tracee.h"

#define BUFFER_BYTES (1u << 20)
#define GUARD_BYTES (64u << 10) /* unmapped behind the buffer: more than one record */
#define AREA_BYTES (AREA_BUFFER + BUFFER_BYTES)
#define AREA_OURS_BYTES (AREA_BYTES + 4096u) /* room for a word of our own behind the buffer */

struct area {
    int memfd;
    uint8_t *bytes; /* our mapping */
};

int area_create(struct area *a); /* -1 with errno set */
void area_free(struct area *a);

/* Map the area into a stopped shadow at `address`, which is free there. The descriptor travels
 * through a socket of the shadow's own, so that namespaces and roots do not matter. Every
 * descriptor of the shadow is closed afterwards. */
enum tracee_status area_map(const struct area *a, pid_t shadow, int pidfd,
                            const struct user_regs_struct *regs, uint64_t syscall_address,
                            uint64_t scratch_address, uint64_t address);

#endif
