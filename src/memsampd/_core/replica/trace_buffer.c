/* How much the replica has recorded, and room in the buffer for more. */
#include "core.h"
#include "trace_buffer.h"

#include <string.h>

#define SMALLEST_CHUNK_WORDS 4096u
#define SMALLEST_PART_WORDS 2048u
#define FURTHER_PARTS 16u /* of a burst: after so much of it registers are noted again */
#define ROOM_SHARE 0.9 /* of what is expected: what lacks is found later, what is too much was run in vain */

void
runner_begin_recording(struct runner *r, uint64_t accesses)
{
    double wanted = (double)accesses * r->words_per_access * ROOM_SHARE + SMALLEST_CHUNK_WORDS;
    size_t words = wanted > BUFFER_WORDS ? BUFFER_WORDS : (size_t)wanted;

    r->start = r->written = buffer_end(r) - words;
    r->wanted = accesses;
    r->counted_words = r->counted_accesses = 0;
    *slot(r, SLOT_BUFFER) = to_replica(r, r->start);
}

const uint64_t *
believed(struct runner *r, uint64_t address)
{
    uint64_t offset = address - r->blocks.area_address - AREA_BUFFER;
    uint64_t known = (uint64_t)((const uint8_t *)r->written - (const uint8_t *)buffer_start(r));

    if (offset > BUFFER_BYTES + GUARD_BYTES || offset % 8 != 0 || offset < known)
        return NULL;
    offset = offset < BUFFER_BYTES ? offset : BUFFER_BYTES;
    return buffer_start(r) + offset / 8;
}

void
runner_has_written(struct runner *r, uint64_t address)
{
    const uint64_t *at = believed(r, address);

    if (at == NULL)
        runner_end(r, RUN_EXIT, 0); /* nothing of what it says can be used */
    else
        r->written = at;
}

size_t
runner_words(const struct runner *r)
{
    return (size_t)(r->written - r->start);
}

size_t
runner_room_words(const struct runner *r)
{
    return (size_t)(buffer_end(r) - r->written);
}

uint64_t
runner_accesses(struct runner *r)
{
    const size_t words = runner_words(r);

    if (words < r->counted_words) /* some of it was dropped */
        r->counted_words = r->counted_accesses = 0;
    r->counted_accesses += count_accesses(&r->blocks, r->start + r->counted_words, r->start + words);
    r->counted_words = words;
    return r->counted_accesses +
           (r->has_cut_record ? record_accesses(&r->blocks, &r->part_exit, r->written) : 0);
}

void
runner_rewind(struct runner *r, size_t words)
{
    r->written = r->start + words;
    r->has_cut_record = false;
}

/* Where it stands with its buffer full: have it write the record in progress to another place, and go on.
 * With `may` false it is only told whether that can be done. */
static bool
redirect(struct runner *r, const uint64_t *to, bool may)
{
    struct user_regs_struct now;
    uint32_t block, instruction;

    if (r->end != RUN_FULL || !read_registers(r->process.pid, &now))
        return false;
    const uint64_t offset = now.rip - r->blocks.area_address;
    if (offset >= AREA_BUFFER || !blocks_locate(&r->blocks, (uint32_t)offset, &block, &instruction))
        return false;
    uint64_t *pointer = gpr(&now, r->blocks.block[block].buffer_register);
    if (*pointer != to_replica(r, r->written))
        return false;
    if (!may)
        return true;
    *pointer = to_replica(r, to);
    r->written = to;
    runner_resume(r);
    if (!write_registers(r->process.pid, &now))
        runner_end(r, RUN_EXIT, 0);
    return true;
}

static size_t
room_before(const struct runner *r, size_t wanted)
{
    const size_t free = (size_t)(r->start - buffer_start(r));

    wanted += SMALLEST_PART_WORDS;
    return free < SMALLEST_PART_WORDS ? 0 : wanted < free ? wanted : free;
}

bool
runner_goes_on_filling(struct runner *r)
{
    if (r->end != RUN_FULL || runner_room_words(r) >= SMALLEST_PART_WORDS || r->wanted == 0)
        return false; /* no room for pages, perhaps */
    const uint64_t accesses = runner_accesses(r);
    if (accesses >= r->wanted)
        return false;
    const double words = (double)runner_words(r) / (double)(accesses + 1);
    const size_t more = room_before(r, (size_t)(words * (double)(r->wanted - accesses)));
    if (more == 0 || !redirect(r, NULL, false))
        return false;
    memmove((uint64_t *)(uintptr_t)r->start - more, r->start,
            (size_t)(buffer_end(r) - r->start) * sizeof *r->start);
    r->start -= more;
    return redirect(r, r->written - more, true);
}

bool
runner_begin_again(struct runner *r)
{
    const size_t room = runner_room_words(r);

    if (room >= SMALLEST_PART_WORDS || !redirect(r, NULL, false)) /* no room for pages, perhaps */
        return false;
    memmove((uint64_t *)(uintptr_t)r->start, r->written, room * sizeof *r->start);
    return redirect(r, r->start, true);
}

bool
runner_make_room(struct runner *r, size_t words)
{
    const size_t more = room_before(r, words / FURTHER_PARTS);

    if (more == 0 || r->end != RUN_FULL || !r->has_cut_record)
        return false;
    uint64_t *start = (uint64_t *)(uintptr_t)r->start - more;
    memmove(start, r->start, words * sizeof *start);
    r->start = start;
    return true;
}
