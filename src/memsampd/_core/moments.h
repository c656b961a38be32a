/* The present moment. */
#ifndef MEMSAMPD_MOMENTS_H
#define MEMSAMPD_MOMENTS_H

#include <time.h>

static inline double
clock_seconds(clockid_t clock)
{
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline double
now_seconds(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

/* CPU time of the calling thread. */
static inline double
thread_cpu_seconds(void)
{
    return clock_seconds(CLOCK_THREAD_CPUTIME_ID);
}

#endif
