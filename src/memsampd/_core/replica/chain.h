/* The replica runs while the target is held, and over system calls, again and again. */
#ifndef MEMSAMPD_CHAIN_H
#define MEMSAMPD_CHAIN_H

#include "burst.h"

/* Run until something ends it. */
void run_chain(struct burst *b);

/* Note whether another thread has run since this was asked last: in particular one that a call of this one
 * woke. */
bool look_for_company(struct burst *b);

/* Held time that is left. */
double hold_left(const struct burst *b);

/* Held time after which it is judged whether the rest of it would do; it all, where nothing is to follow, or
 * nothing came of that the last time. */
double trial_seconds(const struct burst *b);

#endif
