/* Lines that are accessed one after the other, as marks.
 *
 * A mark is a word and stands for a line accessed once or several times without any other between: its
 * number, and above it the lowest bits of the number of accesses before. So a mark is written once, and
 * the next one tells how often its line was accessed.
 *
 * Line numbers of lines of 64 bytes and more fit whatever the address; so do those of shorter ones, of
 * addresses that a program can have.
 */
#ifndef MEMSAMPD_LINE_MARKS_H
#define MEMSAMPD_LINE_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define LINE_BITS 58
#define LINE_MASK ((UINT64_C(1) << LINE_BITS) - 1)
#define LINE_NUMBERS (1u << (64 - LINE_BITS))
#define NO_LINE UINT64_MAX
/* A mark that began earlier is not added to: by vectors, too, which look only once for so many
 * accesses. A mark has less accesses than its number has values. */
#define MARK_ACCESSES (LINE_NUMBERS - 3 * 8)

struct line_marks {
    uint64_t *mark;
    size_t count, capacity;
    uint64_t last;       /* the line of the last mark; NO_LINE: no access can be added to that */
    uint64_t began;      /* the last mark was written after so many accesses, or later */
    uint64_t accesses;   /* of all marks, of those that were taken, too */
};

static inline void
line_marks_begin(struct line_marks *m)
{
    m->count = 0;
    m->accesses = m->began = 0;
    m->last = NO_LINE;
}

static inline void
line_marks_free(struct line_marks *m)
{
    free(m->mark);
    m->mark = NULL;
    m->capacity = 0;
}

/* Room for so many more marks, and for one behind them. False without memory. */
static inline bool
line_marks_reserve(struct line_marks *m, size_t more)
{
    size_t capacity = m->capacity == 0 ? 4096 : m->capacity;

    if (m->count + more < m->capacity)
        return true;
    while (capacity <= m->count + more)
        capacity *= 2;
    uint64_t *mark = realloc(m->mark, capacity * sizeof *mark);
    if (mark == NULL)
        return false;
    m->mark = mark;
    m->capacity = capacity;
    return true;
}

/* They were counted: the next access begins another mark. */
static inline void
line_marks_take(struct line_marks *m)
{
    m->count = 0;
    m->last = NO_LINE;
}

/* Room for a mark is there. */
static inline void
line_marks_put(struct line_marks *m, uint64_t line)
{
    line &= LINE_MASK;
    if (line != m->last || m->accesses - m->began >= MARK_ACCESSES) {
        m->mark[m->count++] = line | m->accesses << LINE_BITS;
        m->last = line;
        m->began = m->accesses;
    }
    m->accesses++;
}

#endif
