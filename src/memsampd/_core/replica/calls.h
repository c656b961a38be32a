/* What system calls of the target write, so that its replica can go on behind them.
 *
 * The target makes every call itself; the replica only has to get what came of it: the result, and the
 * memory that the kernel wrote. A call of which that is not known ends the burst.
 */
#ifndef MEMSAMPD_CALLS_H
#define MEMSAMPD_CALLS_H

#include "remote.h"

#include <sys/user.h>

#define CALL_RANGES 72

struct call_range {
    uint64_t start, end;
};

struct call_outputs {
    struct call_range range[CALL_RANGES]; /* memory that may have changed */
    size_t ranges;
    bool changes_areas; /* memory was mapped, unmapped or protected */
    bool is_dropping;   /* the ranges are gone, or other memory: not to be read again */
    bool is_no_code;    /* they cannot be executed now */
};

/* Whether a burst can go on behind the call of this number. */
bool call_is_known(long number);

/* What a call wrote. `regs` are those before it. False: that cannot be told. */
bool call_outputs(struct remote *r, const struct user_regs_struct *regs, long number, long result,
                  struct call_outputs *out);

/* As in <asm/unistd_64.h> when memsampd was built; NULL for a number unknown then. */
const char *syscall_name(uint64_t number);

#endif
