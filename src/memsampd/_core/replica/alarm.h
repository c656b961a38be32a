/* Waits that end: signals to threads of ours. */
#ifndef MEMSAMPD_ALARM_H
#define MEMSAMPD_ALARM_H

/* Have waits of this thread of ours end with EINTR from `seconds` (CLOCK_MONOTONIC) on, again and
 * again; never: 0. */
struct alarm;
struct alarm *alarm_create(void); /* for the calling thread; NULL with errno set */
void alarm_set(struct alarm *a, double seconds);
void alarm_free(struct alarm *a);
int alarm_install(void); /* once a process; -1 with errno set */

/* Each stop of a replica would send SIGCHLD, which wakes a thread of ours that does not block it: of stops
 * only those who wait for them are to know. */
void silence_stops(void);

#endif
