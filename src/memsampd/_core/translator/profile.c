#include "profile.h"

static uint32_t
add(uint32_t count, uint64_t more)
{
    return more > UINT32_MAX - count ? UINT32_MAX : count + (uint32_t)more;
}

int
profile_add(struct keyed *p, uint64_t ip, uint64_t target, uint64_t taken, uint64_t other)
{
    const size_t before = p->count;
    struct branch_profile *entry = keyed_add(p, sizeof *entry, ip);
    if (entry == NULL)
        return -1;
    if (p->count != before) {
        entry->target = target;
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

void
profile_age(struct keyed *p)
{
    struct branch_profile *entry = p->items;

    for (size_t i = 0; i < p->capacity; i++, entry++) {
        entry->taken /= 2;
        entry->other /= 2;
    }
}
