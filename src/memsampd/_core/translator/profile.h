/* Which way branches went, by the address of the branch: what translations are laid out by. */
#ifndef MEMSAMPD_PROFILE_H
#define MEMSAMPD_PROFILE_H

#include "keyed.h"

struct branch_profile {
    uint64_t ip;     /* of the branch, or PROFILE_HEAD plus that where a block begins; 0: free slot */
    uint64_t target; /* where a taken one goes; of an indirect one, where it mostly goes */
    uint32_t taken;  /* times that it went there */
    uint32_t other;  /* times that it did not */
};

/* Marks how often a block was entered; no address of a program has this bit alone. */
#define PROFILE_HEAD ((uint64_t)1 << 62)

int profile_add(struct keyed *p, uint64_t ip, uint64_t target, uint64_t taken, uint64_t other);
void profile_age(struct keyed *p); /* old counts weigh half */

static inline const struct branch_profile *
profile_get(const struct keyed *p, uint64_t ip)
{
    return keyed_get(p, sizeof(struct branch_profile), ip);
}

#endif
