/* A run is a word: a line, and how often it is accessed again before any other is.
 *
 * Line numbers of lines of 64 bytes and more fit whatever the address; so do those of shorter ones, of
 * addresses that a program can have. A line number alone is a run of one access.
 */
#ifndef MEMSAMPD_LINE_RUNS_H
#define MEMSAMPD_LINE_RUNS_H

#include <stdint.h>

#define LINE_BITS 58
#define RUN_MAXIMUM (1u << (64 - LINE_BITS)) /* accesses */
#define LINE_MASK ((UINT64_C(1) << LINE_BITS) - 1)

static inline uint64_t
line_of_run(uint64_t run)
{
    return run & LINE_MASK;
}

static inline uint32_t
repeats_of_run(uint64_t run)
{
    return (uint32_t)(run >> LINE_BITS);
}

#endif
