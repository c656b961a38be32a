/* Hash tables of items of one size that begin with their key, a uint64_t other than 0. */
#ifndef MEMSAMPD_KEYED_H
#define MEMSAMPD_KEYED_H

#include <stddef.h>
#include <stdint.h>

struct keyed {
    void *items; /* those with key 0 are free */
    size_t capacity, count;
};

/* The item of a key, or the free one where it belongs. The table has room. */
static inline void *
keyed_place(const struct keyed *table, size_t item_bytes, uint64_t key)
{
    for (size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 24);; at++) {
        uint64_t *item = (void *)((char *)table->items + (at & (table->capacity - 1)) * item_bytes);
        if (*item == key || *item == 0)
            return item;
    }
}

/* The item of a key; NULL: there is none. */
static inline void *
keyed_get(const struct keyed *table, size_t item_bytes, uint64_t key)
{
    uint64_t *item = table->capacity != 0 ? keyed_place(table, item_bytes, key) : NULL;
    return item != NULL && *item != 0 ? item : NULL;
}

/* The same; a new one is zero but for its key. Others may move. NULL: no memory. */
void *keyed_add(struct keyed *table, size_t item_bytes, uint64_t key);

/* Put a copy there; -1: no memory. */
int keyed_put(struct keyed *table, size_t item_bytes, const void *item);

void keyed_clear(struct keyed *table);

#endif
