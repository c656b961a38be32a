/* What the replica records, in the buffer that it shares with us: how much there is, and room for more. */
#ifndef MEMSAMPD_TRACE_BUFFER_H
#define MEMSAMPD_TRACE_BUFFER_H

#include "runner.h"

static inline uint64_t *
slot(struct runner *r, uint32_t which)
{
    return (uint64_t *)(r->area.bytes + AREA_SLOTS + which);
}

static inline uint64_t *
gpr(struct user_regs_struct *regs, unsigned number)
{
    return (uint64_t *)regs + gpr_words[number];
}

static inline uint64_t *
buffer_start(const struct runner *r)
{
    return (uint64_t *)(r->area.bytes + AREA_BUFFER);
}

static inline uint64_t *
buffer_end(const struct runner *r)
{
    return buffer_start(r) + BUFFER_WORDS;
}

static inline uint64_t
to_replica(struct runner *r, const void *ours)
{
    return r->blocks.area_address + (uint64_t)((const uint8_t *)ours - r->area.bytes);
}

/* Nothing is recorded yet, and there is room for so many accesses. */
void runner_begin_recording(struct runner *r, uint64_t accesses);

/* Where a pointer into the buffer points in our mapping. The replica says so, and it runs code that may
 * mean harm: what does not lie behind what is known of the run is not believed, and NULL. */
const uint64_t *believed(struct runner *r, uint64_t address);

/* Take over how far it has written. */
void runner_has_written(struct runner *r, uint64_t address);

/* Words recorded so far, and back to so many. */
size_t runner_words(const struct runner *r);
void runner_rewind(struct runner *r, size_t words);

/* Words that the buffer has room for behind what was recorded. */
size_t runner_room_words(const struct runner *r);

/* Accesses in the records so far, one that is cut off included: each whole one is looked at once. */
uint64_t runner_accesses(struct runner *r);

/* How many words an access takes is known roughly. Where the buffer is full and as much as is wanted was not
 * recorded: go on, with room for the rest of it. False: it was, or there is no more room. */
bool runner_goes_on_filling(struct runner *r);

/* Where the buffer is full: go on, over what was recorded. False if that cannot be. */
bool runner_begin_again(struct runner *r);

/* Where the buffer is full: make room behind so many words of it, for a part of as many. False if that cannot
 * be. */
bool runner_make_room(struct runner *r, size_t words);

#endif
