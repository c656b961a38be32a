/* When each line was last accessed, of all lines accessed within the last so many accesses, and of
 * some others: a hash table small enough for the nearest caches.
 *
 * Each line has a home, and lies there or in one of the places behind. A line that was not accessed
 * lately can be put out for another at any time, so there is nothing to delete, to age or to clear.
 */
#ifndef MEMSAMPD_RECENT_LINES_H
#define MEMSAMPD_RECENT_LINES_H

#include "line_table.h"

#define RECENT_FIRST_BITS 13
/* More places are not made for lines that all want the same one, which somebody must have sought. */
#define RECENT_MOST_BITS 18
#define RECENT_WINDOW 8

typedef struct {
    uint64_t line;
    uint64_t time; /* of the last access; from the start of time on, 0: never */
} recent_line;

typedef struct {
    recent_line *entries; /* and RECENT_WINDOW more, so that no window has to be bent round */
    unsigned bits;
} recent_table;

ALWAYS_INLINE size_t
recent_entries(const recent_table *table)
{
    return ((size_t)1 << table->bits) + RECENT_WINDOW;
}

ALWAYS_INLINE recent_line *
recent_home(const recent_table *table, uint64_t line)
{
    return &table->entries[table_mix(line) >> (64 - table->bits)];
}

/* The line's entry, or NULL. */
static inline recent_line *
recent_find(const recent_table *table, uint64_t line)
{
    recent_line *home = recent_home(table, line);
    for (recent_line *e = home; e < home + RECENT_WINDOW; e++)
        if (e->line == line)
            return e;
    return NULL;
}

/* The first place for a line whose entry was last accessed before `stale`, or NULL. */
static inline recent_line *
recent_place(const recent_table *table, uint64_t line, uint64_t stale)
{
    recent_line *home = recent_home(table, line);
    for (recent_line *e = home; e < home + RECENT_WINDOW; e++)
        if (e->time < stale)
            return e;
    return NULL;
}

static inline recent_line *
recent_oldest(const recent_table *table, uint64_t line)
{
    recent_line *home = recent_home(table, line), *oldest = home;
    for (recent_line *e = home; e < home + RECENT_WINDOW; e++)
        if (e->time < oldest->time)
            oldest = e;
    return oldest;
}

static inline int
recent_init(recent_table *table, unsigned bits)
{
    table->bits = bits;
    table->entries = alloc_zeroed(recent_entries(table) * sizeof *table->entries);
    return table->entries ? 0 : -1;
}

#endif
