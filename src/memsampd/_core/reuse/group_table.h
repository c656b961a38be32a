/* When each line was last touched: a hash table of groups of neighbouring lines.
 *
 * Lines that are touched lie close together, so that groups need less memory than lines, and fewer
 * of them come to lie away from where they are looked for first. Entries stay where they are as
 * long as groups_reserve() is not called.
 */
#ifndef MEMSAMPD_GROUP_TABLE_H
#define MEMSAMPD_GROUP_TABLE_H

#include "line_table.h"

#define GROUP_BITS 2
#define GROUP_LINES (1 << GROUP_BITS)
#define GROUPS_FIRST_BITS 12
#define FARTHEST_CACHE_BYTES ((size_t)512 << 10) /* larger tables are worth prefetching from */

typedef struct {
    uint64_t tag; /* 1 + the number of the group; 0: the entry is free */
    uint32_t time[GROUP_LINES]; /* 0: never */
} line_group;

typedef struct {
    line_group *entries;
    uint64_t used;
    unsigned bits; /* log2 of the number of entries */
} group_table;

ALWAYS_INLINE uint64_t
groups_entries(const group_table *table)
{
    return (uint64_t)1 << table->bits;
}

ALWAYS_INLINE uint64_t
group_tag(uint64_t line)
{
    return (line >> GROUP_BITS) + 1;
}

ALWAYS_INLINE line_group *
group_home(const group_table *table, uint64_t tag)
{
    return &table->entries[table_mix(tag) >> (64 - table->bits)];
}

/* The group's entry, or the free one where it belongs. */
ALWAYS_INLINE line_group *
group_find(const group_table *table, uint64_t tag)
{
    line_group *entry = group_home(table, tag), *end = table->entries + groups_entries(table);
    while (entry->tag != 0 && entry->tag != tag)
        if (++entry == end)
            entry = table->entries;
    return entry;
}

/* Bits of a table that so many groups fill to one half at most. */
static inline unsigned
groups_bits(uint64_t groups)
{
    unsigned bits = GROUPS_FIRST_BITS;
    while (groups * 2 > (uint64_t)1 << bits)
        bits++;
    return bits;
}

static inline int
groups_init(group_table *table, unsigned bits)
{
    table->used = 0;
    table->bits = bits;
    table->entries = alloc_zeroed(sizeof(line_group) << bits);
    return table->entries ? 0 : -1;
}

/* Make room for so many more groups; -1 without memory. */
static inline int
groups_reserve(group_table *table, uint64_t more)
{
    group_table grown;
    if ((table->used + more) * 2 <= groups_entries(table))
        return 0;
    if (groups_init(&grown, groups_bits(table->used + more)) < 0)
        return -1;
    for (uint64_t i = 0; i < groups_entries(table); i++) {
        const line_group *old = &table->entries[i];
        if (old->tag != 0)
            *group_find(&grown, old->tag) = *old;
    }
    grown.used = table->used;
    free(table->entries);
    *table = grown;
    return 0;
}

/* Forget everything; a table that is larger than what it held is made smaller. -1 without memory. */
static inline int
groups_clear(group_table *table)
{
    unsigned bits = groups_bits(table->used);
    if (bits < table->bits) {
        free(table->entries);
        return groups_init(table, bits);
    }
    memset(table->entries, 0, sizeof(line_group) << table->bits);
    table->used = 0;
    return 0;
}

#endif
