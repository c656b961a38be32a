/* How many of a burst's distant accesses are scattered: none near by was made lately.
 *
 * Those to lines that lie beside each other are fetched before they are asked for, so they hardly take
 * time; the others have to be waited for. Lines are distant that return late or come for the first time.
 */
#ifndef MEMSAMPD_SCATTERED_H
#define MEMSAMPD_SCATTERED_H

#include "models.h"

#define SCATTERED_BITS 8
#define SCATTERED_BLOCK_BITS 2 /* lines of one block lie beside each other */
#define SCATTERED_LATELY 64    /* distant accesses */

typedef struct {
    struct {
        uint32_t block, time;
    } latest[1 << SCATTERED_BITS]; /* by a hash of the block */
    uint32_t time;                 /* distant accesses so far */
    uint64_t count;
} scattered_lines;

ALWAYS_INLINE uint32_t
scattered_block(uint64_t line)
{
    return (uint32_t)(line >> SCATTERED_BLOCK_BITS);
}

ALWAYS_INLINE unsigned
scattered_place(uint32_t block)
{
    return block * UINT32_C(0x9E3779B1) >> (32 - SCATTERED_BITS);
}

ALWAYS_INLINE bool
scattered_is_near(const scattered_lines *s, uint64_t line)
{
    const uint32_t block = scattered_block(line);
    const unsigned at = scattered_place(block);

    return s->latest[at].block == block && s->time - s->latest[at].time < SCATTERED_LATELY;
}

/* A line is accessed that was not for long, or never. */
ALWAYS_INLINE void
scattered_note(scattered_lines *s, uint64_t line)
{
    const uint32_t block = scattered_block(line);
    const unsigned at = scattered_place(block);

    s->count += !scattered_is_near(s, line - 1) && !scattered_is_near(s, line + 1);
    s->latest[at].block = block;
    s->latest[at].time = s->time++;
}

/* Another burst. */
static inline void
scattered_begin(scattered_lines *s)
{
    s->time += SCATTERED_LATELY;
    s->count = 0;
}

#endif
