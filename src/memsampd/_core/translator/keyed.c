#include "keyed.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 1024

static int
grow(struct keyed *table, size_t item_bytes)
{
    struct keyed bigger = {
        .capacity = table->capacity == 0 ? FIRST_CAPACITY : 2 * table->capacity,
        .count = table->count,
    };
    const char *old = table->items;

    bigger.items = calloc(bigger.capacity, item_bytes);
    if (bigger.items == NULL)
        return -1;
    for (size_t i = 0; i < table->capacity; i++, old += item_bytes) {
        const uint64_t key = *(const uint64_t *)(const void *)old;
        if (key != 0)
            memcpy(keyed_place(&bigger, item_bytes, key), old, item_bytes);
    }
    free(table->items);
    *table = bigger;
    return 0;
}

void *
keyed_add(struct keyed *table, size_t item_bytes, uint64_t key)
{
    if (2 * (table->count + 1) > table->capacity && grow(table, item_bytes) < 0)
        return NULL;
    uint64_t *item = keyed_place(table, item_bytes, key);
    table->count += *item == 0;
    *item = key;
    return item;
}

int
keyed_put(struct keyed *table, size_t item_bytes, const void *item)
{
    void *place = keyed_add(table, item_bytes, *(const uint64_t *)item);
    if (place == NULL)
        return -1;
    memcpy(place, item, item_bytes);
    return 0;
}

void
keyed_clear(struct keyed *table)
{
    free(table->items);
    *table = (struct keyed){0};
}
