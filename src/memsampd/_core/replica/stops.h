/* The replica has stopped: why, and whether the run goes on. */
#ifndef MEMSAMPD_STOPS_H
#define MEMSAMPD_STOPS_H

#include "runner.h"

/* It stopped at a signal. */
void runner_take_signal(struct runner *r, int signal);

/* It was stopped from outside: on to where it is known what was recorded. */
void runner_take_stop(struct runner *r, enum run_end end);

/* Where it stands so: on to where all registers are the program's; between two blocks, and within calls, some
 * are ours. A step takes 20 us: when the target has been let go. */
void runner_settle(struct runner *r);

#endif
