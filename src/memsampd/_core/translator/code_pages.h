/* Whether the program's code is still what was translated. */
#ifndef MEMSAMPD_CODE_PAGES_H
#define MEMSAMPD_CODE_PAGES_H

#include "tables.h"

enum code_check {
    CODE_CHECKED,
    CODE_LATE, /* not in time: some that was translated may be other code now */
    CODE_NO_MEMORY,
};

/* Drop what was translated from code that has changed meanwhile, or from volatile code that has. */
enum code_check blocks_check_code(struct blocks *b, bool only_volatile, double until_seconds);

/* What the replica stored to is as the program has it again: what was not translated for that can be. */
void blocks_forget_written(struct blocks *b);

/* Forget volatile code that was not used in the last bursts, but for what can be compared in so many seconds.
 * False without memory. */
bool blocks_forget_code(struct blocks *b, double seconds, uint32_t kept_bursts);

#endif
