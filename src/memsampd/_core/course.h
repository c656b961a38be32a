/* Counting what a burst does, for its native twin: see struct course. */
#ifndef MEMSAMPD_COURSE_H
#define MEMSAMPD_COURSE_H

#include "expansion.h"

void course_begin(struct course *c, uint64_t limit);

/* A record that left by `exit` and has so many rows; -1: no memory. */
int course_add(struct course *c, const struct blocks *b, uint32_t exit, uint64_t rows);

#endif
