/* Ends a shadow's run from outside of the thread that traces it: at a deadline, or when told to. */
#ifndef MEMSAMPD_WATCHDOG_H
#define MEMSAMPD_WATCHDOG_H

#include <pthread.h>
#include <stdbool.h>

struct watchdog {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int pidfd;               /* of the process that runs, or -1 */
    double deadline_seconds; /* CLOCK_MONOTONIC */
    bool is_cancelled;       /* for good */
    bool has_fired, has_thread, is_closing;
};

int watchdog_init(struct watchdog *w); /* -1 with errno set */
void watchdog_free(struct watchdog *w);

/* From here to watchdog_disarm, a SIGSTOP is sent to the process at the deadline, or at once when
 * watchdog_cancel is or was called. */
void watchdog_arm(struct watchdog *w, int pidfd, double deadline_seconds);
void watchdog_disarm(struct watchdog *w);
bool watchdog_has_fired(struct watchdog *w);
void watchdog_cancel(struct watchdog *w);

#endif
