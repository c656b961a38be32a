/* Where the code of a burst changes to such as goes at another speed.
 *
 * A burst speaks for the time that a program spends in its code. One that ran two kinds of code, a
 * thousand accesses of which take as long as a million of the other kind, would speak for the wrong time;
 * and one that began where rare code was sought would speak for too much of that. Their parts are bursts of
 * their own.
 */
#ifndef MEMSAMPD_CODE_CHANGE_H
#define MEMSAMPD_CODE_CHANGE_H

#include "core_model.h"

#define PARTS_MOST 4

struct burst_parts {
    size_t count;                    /* at least 1 */
    const uint64_t *end[PARTS_MOST]; /* of each: between two records, the last one where whole ones end */
};

/* Look at records, up to so many accesses of theirs. Where code was sought, any other code is of
 * another part, whatever its speed. */
struct burst_parts find_parts(struct core_model *m, const struct blocks *blocks,
                              const uint64_t segment_base[3], const struct record_list *records,
                              uint64_t most_accesses, bool is_sought);

#endif
