/* The replica goes on while the target runs. */
#ifndef MEMSAMPD_BEYOND_H
#define MEMSAMPD_BEYOND_H

#include "burst.h"

/* Whether a burst is to be gone on with when its hold is over: the time was too short, not the code. */
bool goes_beyond(const struct burst *b);

/* Go on, on memory as the target has it from now on: what is recorded is what the target may well do, not
 * what it does. Nothing of it is kept if it went astray. */
void go_beyond(struct burst *b);

/* Whether it is to be gone on with once more when it is full. */
bool goes_further(const struct burst *b);

/* Behind a full burst: go on for a while, to see where the registers go. What is recorded is for nobody,
 * and where it went astray nothing is known. */
void go_further(struct burst *b);

/* Behind a burst that came to code which was not translated: go on, and have it translated for the
 * next one. What was recorded stays. */
void go_on_dry(struct burst *b);

/* Run to learn code, until none is new for a while. */
void run_to_learn(struct burst *b, double seconds);

#endif
