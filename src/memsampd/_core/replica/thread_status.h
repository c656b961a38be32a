/* What /proc says of a thread. */
#ifndef MEMSAMPD_THREAD_STATUS_H
#define MEMSAMPD_THREAD_STATUS_H

#include <stdbool.h>
#include <sys/types.h>

char thread_state(pid_t tid);          /* '\0': it is gone */
int thread_cpu(pid_t tid);             /* that it ran on last; -1: it is gone */
bool thread_is_untraced(pid_t tid);    /* or gone */
bool thread_is_own_child(pid_t tid);   /* a process that we started */
bool thread_has_filter(pid_t tid);     /* of seccomp */
bool thread_descriptor_waits(pid_t tid, int fd); /* unless it is O_NONBLOCK */
bool thread_descriptor_is_pipe(pid_t tid, int fd); /* without a name */
bool thread_is_of(pid_t pid, pid_t tid); /* and not of another process that got its number */

/* Whether a signal waits that the thread would notice. One that is ignored is not even kept, but for a
 * traced thread: that it wakes up, which it would not do by itself. */
bool thread_awaits_signal(pid_t tid);

/* For how long it has run; a descriptor is kept, as it is asked again and again. */
struct run_times {
    double run_seconds;        /* exact while it does not run */
    unsigned long long starts; /* how often it was given a CPU */
};

int run_times_open(pid_t tid); /* -1: not to be had */
bool run_times_read(int fd, struct run_times *times);

#endif
