/* System calls that a replica is made to make, while it still may. */
#ifndef MEMSAMPD_CALLER_H
#define MEMSAMPD_CALLER_H

#include "process.h"

struct caller {
    struct process *p;
    struct user_regs_struct regs;
    int error; /* of the first call that failed; no further ones are made */
};

long caller_call(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3,
                 uint64_t a4, uint64_t a5);

/* A call that may fail. */
bool caller_try(struct caller *c, long number, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3);

#endif
