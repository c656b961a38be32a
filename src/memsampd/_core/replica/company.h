/* The other threads of a target: whether they run while one is held, as /proc tells it. */
#ifndef MEMSAMPD_COMPANY_H
#define MEMSAMPD_COMPANY_H

#include "thread_status.h"

#include <stddef.h>

#define COMPANY_MOST 63 /* of more threads, some other one runs: none is looked at */

struct company {
    pid_t pid;
    struct {
        pid_t tid;
        int run_times_fd;
        struct run_times run_times;
        bool is_running; /* as they say still */
    } other[COMPANY_MOST];
    size_t count;
    unsigned long threads; /* of the process, when they were listed */
    bool is_known;         /* these are all; else some may run at any time */
};

/* Find out which there are, besides one. Takes some us for each: before the hold. */
void company_meet(struct company *c, pid_t pid, pid_t tid);
void company_part(struct company *c);

/* Whether one runs now, or may. */
bool company_is_running(struct company *c);

/* Whether one has run, or may have, since either of these was asked last. Takes 0.5 us for each that has not. */
bool company_has_run(struct company *c);

#endif
