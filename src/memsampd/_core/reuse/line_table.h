/* An open-addressing hash table from line numbers to non-zero 64-bit values.
 *
 * Made for callers that work in batches: hash and prefetch every line of a batch, then look them
 * up. Entries stay where they are as long as table_reserve() is not called, so a caller reserves
 * room for a whole batch before it starts and may keep entry pointers until the batch ends.
 */
#ifndef MEMSAMPD_LINE_TABLE_H
#define MEMSAMPD_LINE_TABLE_H

#include "models.h"
#include "zeroed.h"

typedef struct {
    uint64_t line;
    uint64_t value; /* 0: the entry is free */
} table_entry;

typedef struct {
    table_entry *entries;
    uint64_t used;
    unsigned bits; /* log2 of the number of entries */
} line_table;

ALWAYS_INLINE uint64_t
table_entries(const line_table *table)
{
    return (uint64_t)1 << table->bits;
}

/* Fibonacci hashing: the top bits of the product depend on all of the line number. */
ALWAYS_INLINE uint64_t
table_mix(uint64_t line)
{
    return line * UINT64_C(0x9E3779B97F4A7C15);
}

ALWAYS_INLINE table_entry *
table_home_of(const line_table *table, uint64_t mixed)
{
    return &table->entries[mixed >> (64 - table->bits)];
}

ALWAYS_INLINE table_entry *
table_home(const line_table *table, uint64_t line)
{
    return table_home_of(table, table_mix(line));
}

/* The line's entry, or the free one where it belongs. */
ALWAYS_INLINE table_entry *
table_find(const line_table *table, uint64_t line)
{
    table_entry *entry = table_home(table, line);
    table_entry *end = table->entries + table_entries(table);
    while (entry->value && entry->line != line)
        if (++entry == end)
            entry = table->entries;
    return entry;
}

/* The line's entry; a new one gets this value. */
ALWAYS_INLINE table_entry *
table_find_or_add(line_table *table, uint64_t line, uint64_t value)
{
    table_entry *entry = table_find(table, line);
    if (!entry->value) {
        entry->line = line;
        entry->value = value;
        table->used++;
    }
    return entry;
}

static inline int
table_init(line_table *table, unsigned bits)
{
    table->used = 0;
    table->bits = bits;
    table->entries = alloc_zeroed(sizeof(table_entry) << bits);
    return table->entries ? 0 : -1;
}

static inline void
table_free(line_table *table)
{
    free(table->entries);
    table->entries = NULL;
}

/* Make room for so many more lines at a load of at most one half; -1 without memory. */
static inline int
table_reserve(line_table *table, uint64_t more)
{
    line_table grown;
    unsigned bits = table->bits;
    while ((table->used + more) * 2 > (uint64_t)1 << bits)
        bits++;
    if (bits == table->bits)
        return 0;
    if (table_init(&grown, bits))
        return -1;
    for (uint64_t i = 0; i < table_entries(table); i++) {
        const table_entry *old = &table->entries[i];
        if (old->value)
            *table_find(&grown, old->line) = *old;
    }
    grown.used = table->used;
    table_free(table);
    *table = grown;
    return 0;
}

#endif
