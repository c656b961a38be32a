/* Code that goes round in a circle, for ever. */
#ifndef MEMSAMPD_CIRCLES_H
#define MEMSAMPD_CIRCLES_H

#include "blocks.h"

/* Whether whole records end with the same ones again and again, for half of their words at least. Where none of
 * them stores anything memory stays as it is, and nothing ends that; where one does, there are to be more rounds
 * of fewer words. A list whose nodes were read at different moments, while the target moved them, may have no
 * end. */
bool goes_in_a_circle(const struct blocks *blocks, const uint64_t *at, const uint64_t *end);

#endif
