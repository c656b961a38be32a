/* Vigna's splitmix64: public domain, https://prng.di.unimi.it/splitmix64.c */
#ifndef MEMSAMPD_SPLITMIX64_H
#define MEMSAMPD_SPLITMIX64_H

#include <stdint.h>

/* What is drawn from a state. */
static inline uint64_t
splitmix64_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline uint64_t
splitmix64(uint64_t *state)
{
    return splitmix64_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

#endif
