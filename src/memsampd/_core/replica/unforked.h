/* Memory that a target keeps from its children (MADV_DONTFORK): copied, since a clone lacks it.
 *
 * The flag itself is never changed: another thread of the target may map or fork at any moment.
 */
#ifndef MEMSAMPD_UNFORKED_H
#define MEMSAMPD_UNFORKED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

struct unforked_area {
    uint64_t start, end, protection; /* PROT_*; never PROT_NONE */
};

struct unforked {
    const struct unforked_area *areas;
    size_t count;
    uint8_t *buffer;   /* zeros, as long as all areas together; the areas one behind the other */
    uint8_t *state;    /* of each area: UNFORKED_* */
    int pagemap;       /* the target's, so that only what it has touched is read; or -1 */
    int maps;          /* the target's list of areas, or -1 */
    int statm;         /* the target's sizes, or -1 */
    char *maps_text;   /* as of the stop: room for UNFORKED_MAPS_BYTES; empty if it is longer */
    unsigned long target_pages; /* of address space, at the stop; 0 if not known */
    size_t bytes_read;
    double seconds;    /* that reading took */
};

#define UNFORKED_MAPS_BYTES ((size_t)1 << 20)

enum { UNFORKED_LOST, UNFORKED_READ, UNFORKED_REBUILT };

/* Copy what the target has touched of the areas into the buffer, while its thread is stopped; note
 * how large it is, and, if there are such areas, all that it has mapped. */
void unforked_read(struct unforked *u, pid_t tid);

/* Map the areas that were read in a stopped shadow, as far as the target had them at the stop, and fill
 * them. Where something is mapped already it is left alone. */
void unforked_rebuild(struct unforked *u, pid_t pid, const struct user_regs_struct *regs,
                      uint64_t syscall_address);

#endif
