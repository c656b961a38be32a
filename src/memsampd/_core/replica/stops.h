/* The replica has stopped: why, and whether the run goes on. */
#ifndef MEMSAMPD_STOPS_H
#define MEMSAMPD_STOPS_H

#include "runner.h"

/* It stopped at a signal. */
void runner_take_signal(struct runner *r, int signal);

/* It was stopped from outside: on to where it is known what was recorded. */
void runner_take_stop(struct runner *r, enum run_end end);

#endif
