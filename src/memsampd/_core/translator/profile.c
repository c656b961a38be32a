#include "profile.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 4096

static struct branch_profile *
slot_of(const struct profile *p, uint64_t ip)
{
    size_t slot = (size_t)(ip * 0x9e3779b97f4a7c15u >> 24) & (p->capacity - 1);
    while (p->slots[slot].ip != 0 && p->slots[slot].ip != ip)
        slot = (slot + 1) & (p->capacity - 1);
    return &p->slots[slot];
}

static int
reserve(struct profile *p)
{
    if (2 * (p->count + 1) <= p->capacity)
        return 0;
    struct profile bigger = {.capacity = p->capacity == 0 ? FIRST_CAPACITY : 2 * p->capacity,
                             .count = p->count};
    bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
    if (bigger.slots == NULL)
        return -1;
    for (size_t i = 0; i < p->capacity; i++)
        if (p->slots[i].ip != 0)
            *slot_of(&bigger, p->slots[i].ip) = p->slots[i];
    free(p->slots);
    *p = bigger;
    return 0;
}

static uint32_t
add(uint32_t count, uint64_t more)
{
    return more > UINT32_MAX - count ? UINT32_MAX : count + (uint32_t)more;
}

int
profile_add(struct profile *p, uint64_t ip, uint64_t target, uint64_t taken, uint64_t other)
{
    if (reserve(p) < 0)
        return -1;
    struct branch_profile *entry = slot_of(p, ip);
    if (entry->ip == 0) {
        *entry = (struct branch_profile){.ip = ip, .target = target};
        p->count++;
    } else if (entry->target != target) { /* an indirect branch: the more frequent target stays */
        if (taken > entry->taken) {
            other += entry->taken;
            entry->target = target;
            entry->taken = 0;
        } else {
            other += taken;
            taken = 0;
        }
    }
    entry->taken = add(entry->taken, taken);
    entry->other = add(entry->other, other);
    return 0;
}

const struct branch_profile *
profile_get(const struct profile *p, uint64_t ip)
{
    if (p->capacity == 0)
        return NULL;
    const struct branch_profile *entry = slot_of(p, ip);
    return entry->ip == 0 ? NULL : entry;
}

void
profile_age(struct profile *p)
{
    for (size_t i = 0; i < p->capacity; i++) {
        p->slots[i].taken /= 2;
        p->slots[i].other /= 2;
    }
}

void
profile_free(struct profile *p)
{
    free(p->slots);
    memset(p, 0, sizeof *p);
}
