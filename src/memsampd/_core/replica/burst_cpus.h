/* Where a burst's thread and its replica run, and before whom. The target's own affinity is left alone. */
#ifndef MEMSAMPD_BURST_CPUS_H
#define MEMSAMPD_BURST_CPUS_H

#include "burst.h"

/* Both on the thread's own CPU, which it does not use while it is held: nothing waits for another CPU to wake
 * up. Where we may not use that one, both go to one of ours; where the replica cannot be moved, none does. */
void go_to_cpu_of(pid_t tid, pid_t replica);

/* To one CPU that the target does not use now, if there is one, and others least: a stop is quickest if both
 * share it. */
void go_aside(struct burst *b);

/* Back to where this thread might run at first, with its replica. */
void go_anywhere(struct burst *b);

/* Go before others, who would prolong the hold; as far as that is permitted. And no longer: both go on as this
 * thread did before, but not in real time. */
void hurry(struct burst *b);
void unhurry(struct burst *b);

#endif
