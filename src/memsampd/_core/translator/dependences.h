/* What an instruction waits for, by its form and the registers that it names. */
#ifndef MEMSAMPD_DEPENDENCES_H
#define MEMSAMPD_DEPENDENCES_H

#include "tables.h"

struct dependences dependences_of(const struct parsed *p, const struct form *f);

#endif
