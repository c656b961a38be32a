/* Which way branches went, by the address of the branch: what translations are laid out by. */
#ifndef MEMSAMPD_PROFILE_H
#define MEMSAMPD_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct branch_profile {
    uint64_t ip;     /* of the branch, or PROFILE_HEAD plus that where a block begins; 0: free slot */
    uint64_t target; /* where a taken one goes; of an indirect one, where it mostly goes */
    uint32_t taken;  /* times that it went there */
    uint32_t other;  /* times that it did not */
};

/* Marks how often a block was entered; no address of a program has this bit alone. */
#define PROFILE_HEAD ((uint64_t)1 << 62)

struct profile {
    struct branch_profile *slots; /* hash table */
    size_t capacity, count;
};

int profile_add(struct profile *p, uint64_t ip, uint64_t target, uint64_t taken, uint64_t other);
const struct branch_profile *profile_get(const struct profile *p, uint64_t ip); /* or NULL */
void profile_age(struct profile *p); /* old counts weigh half */
void profile_free(struct profile *p);

#endif
