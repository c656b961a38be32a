/* For how long a thread has run, from /proc/TID/schedstat. */
#ifndef MEMSAMPD_RUN_TIMES_H
#define MEMSAMPD_RUN_TIMES_H

#include <stdbool.h>
#include <sys/types.h>

struct run_times {
    double run_seconds;        /* exact while it does not run */
    unsigned long long starts; /* how often it was given a CPU */
};

int run_times_open(pid_t tid); /* -1: not to be had */
bool run_times_read(int fd, struct run_times *times);

#endif
