/* The program's code by pages: what was translated from it must not be used once it is other code. */
#include "code_pages.h"
#include "ascending.h"
#include "lookup.h"
#include "moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MANY_PAGES 64 /* from which it follows how long one takes */

/* ---- What was translated from changed code ---- */

static bool
has_changed(const struct blocks *b, uint64_t address)
{
    const struct code_page *page = keyed_get(&b->pages, sizeof *page, page_of(address));

    return page != NULL && (page->changed & code_lines(address, 1)) != 0;
}

/* Whether an instruction may have, however long it is. */
static bool
instruction_has_changed(const struct blocks *b, uint64_t ip)
{
    return has_changed(b, ip) || has_changed(b, ip + INSTRUCTION_MAXIMUM_BYTES - 1);
}

static bool
uses_changed_code(const struct blocks *b, const struct block *block)
{
    const struct instruction *at = &b->instruction[block->first_instruction];
    const struct exit *end = &b->exit[block->first_exit];

    for (uint32_t i = 0; i < block->instructions; i++)
        if (instruction_has_changed(b, at[i].ip))
            return true;
    /* It may end for what comes next. */
    return end->kind != EXIT_DIRECT && end->kind != EXIT_INDIRECT &&
           instruction_has_changed(b, end->target);
}

/* A bit for each page that has changed. */
static uint64_t
changed_pages(const struct blocks *b)
{
    const struct code_page *page = b->pages.items;
    uint64_t changed = 0;

    for (size_t i = 0; i < b->pages.capacity; i++)
        if (page[i].changed != 0)
            changed |= page_bit(page[i].address);
    return changed;
}

static void
drop(struct blocks *b, struct block *block)
{
    block->is_dead = true;
    lookup_drop(b->area, b->area_address, block->ip);
}

static void
cut_links_to_dead(struct blocks *b)
{
    for (size_t i = 0; i < b->exits; i++) {
        struct exit *x = &b->exit[i];
        if (x->linked != NO_BLOCK && b->block[x->linked].is_dead)
            blocks_cut(b, x);
    }
}

/* `changed`: a bit for each page that has. */
static void
drop_changed(struct blocks *b, uint64_t changed)
{
    const double started = now_seconds();

    for (size_t i = 0; i < b->count; i++) {
        struct block *block = &b->block[i];
        if (block->is_dead || !(block->pages & changed) || !uses_changed_code(b, block))
            continue;
        drop(b, block);
    }
    cut_links_to_dead(b);
    b->drop_seconds = now_seconds() - started;
}

void
blocks_forget_written(struct blocks *b)
{
    b->written_pages = 0;
    if (!b->has_passing)
        return;
    for (size_t i = 0; i < b->count; i++)
        if (b->block[i].is_passing && !b->block[i].is_dead)
            drop(b, &b->block[i]);
    cut_links_to_dead(b);
    b->has_passing = false;
}

static void
forget_changes(struct blocks *b)
{
    struct code_page *page = b->pages.items;

    for (size_t i = 0; i < b->pages.capacity; i++)
        page[i].changed = 0;
}

/* ---- Comparing it ---- */

/* Lines of a page that were translated, and hold something else now. */
static uint64_t
changed_lines(const struct code_page *page, const uint8_t *now)
{
    uint64_t changed = 0;

    for (unsigned line = 0; line < PAGE_BYTES / CODE_LINE_BYTES; line++) {
        const size_t at = line * CODE_LINE_BYTES;
        if (page->used >> line & 1 && memcmp(now + at, page->bytes + at, CODE_LINE_BYTES) != 0)
            changed |= UINT64_C(1) << line;
    }
    return changed;
}

/* Take over what a page of code holds now. False without memory. */
static bool
renew_page(struct code_page *page, const uint8_t *now, enum code_kind kind)
{
    const bool readable = kind != CODE_UNREADABLE;

    page->is_volatile = kind != CODE_STABLE;
    if (readable == (page->bytes != NULL) && (!readable || memcmp(now, page->bytes, PAGE_BYTES) == 0))
        return true;
    page->changed |= readable && page->bytes != NULL ? changed_lines(page, now) : ALL_LINES;
    page->used &= ~page->changed;
    if (readable && page->bytes == NULL && (page->bytes = malloc(PAGE_BYTES)) == NULL)
        return false;
    if (readable) {
        memcpy(page->bytes, now, PAGE_BYTES);
    } else {
        free(page->bytes);
        page->bytes = NULL;
    }
    return true;
}

/* Pages of code, ascending; NULL without memory. */
static uint64_t *
list_pages(const struct blocks *b, bool only_volatile, size_t *count)
{
    const struct code_page *known = b->pages.items;
    uint64_t *address = malloc((b->pages.count + 1) * sizeof *address);

    *count = 0;
    for (size_t i = 0; address != NULL && i < b->pages.capacity; i++)
        if (known[i].address != 0 && (!only_volatile || known[i].is_volatile))
            address[(*count)++] = known[i].address;
    if (*count != 0)
        qsort(address, *count, sizeof *address, ascending_uint64);
    return address;
}

/* Read some pages again. False without memory. */
static bool
renew_batch(struct blocks *b, const uint64_t *address, size_t count)
{
    uint8_t now[CODE_BATCH * PAGE_BYTES];
    enum code_kind kind[CODE_BATCH];

    b->read_code(b->reader, address, count, now, kind);
    for (size_t i = 0; i < count; i++) {
        struct code_page *page = keyed_get(&b->pages, sizeof *page, address[i]);
        if (!renew_page(page, now + i * PAGE_BYTES, kind[i]))
            return false;
    }
    return true;
}

static enum code_check
renew_pages(struct blocks *b, bool only_volatile, double until_seconds)
{
    const double started = now_seconds();
    size_t count;
    uint64_t *address = list_pages(b, only_volatile, &count);
    enum code_check result = address != NULL ? CODE_CHECKED : CODE_NO_MEMORY;

    if (result == CODE_CHECKED && started + (double)count * b->seconds_a_page > until_seconds)
        result = CODE_LATE;
    for (size_t at = 0; result == CODE_CHECKED && at < count; at += CODE_BATCH) {
        const size_t batch = count - at < CODE_BATCH ? count - at : CODE_BATCH;
        if (now_seconds() > until_seconds)
            result = CODE_LATE;
        else if (!renew_batch(b, address + at, batch))
            result = CODE_NO_MEMORY;
    }
    free(address);
    if (result == CODE_CHECKED && count >= MANY_PAGES)
        b->seconds_a_page = (now_seconds() - started) / (double)count;
    return result;
}

enum code_check
blocks_check_code(struct blocks *b, bool only_volatile, double until_seconds)
{
    const enum code_check result = renew_pages(b, only_volatile, until_seconds);
    const uint64_t changed = result == CODE_CHECKED ? changed_pages(b) : 0;

    if (changed == 0)
        return result;
    if (now_seconds() + b->drop_seconds > until_seconds)
        return CODE_LATE; /* what has changed stays noted */
    drop_changed(b, changed);
    forget_changes(b);
    return CODE_CHECKED;
}

/* ---- Forgetting it ---- */

struct age {
    uint32_t burst;
    struct code_page *page;
};

static int
by_burst(const void *a, const void *b)
{
    const uint32_t x = ((const struct age *)a)->burst, y = ((const struct age *)b)->burst;
    return x < y ? -1 : x > y;
}

/* Mark volatile pages that have not been used for longest, but for some. False without memory. */
static bool
mark_oldest(struct blocks *b, size_t kept, uint32_t kept_bursts)
{
    struct code_page *page = b->pages.items;
    struct age *age = malloc((b->pages.count + 1) * sizeof *age);
    size_t count = 0;

    for (size_t i = 0; age != NULL && i < b->pages.capacity; i++)
        if (page[i].address != 0 && page[i].is_volatile)
            age[count++] = (struct age){page[i].burst, &page[i]};
    if (count > kept)
        qsort(age, count, sizeof *age, by_burst);
    for (size_t i = 0; i + kept < count && b->burst - age[i].burst > kept_bursts; i++)
        age[i].page->changed = ALL_LINES;
    free(age);
    return age != NULL;
}

bool
blocks_forget_code(struct blocks *b, double seconds, uint32_t kept_bursts)
{
    struct code_page *page = b->pages.items;
    struct keyed kept = {0};

    if (!mark_oldest(b, (size_t)(seconds / b->seconds_a_page), kept_bursts))
        return false;
    const uint64_t changed = changed_pages(b);
    if (changed == 0)
        return true;
    drop_changed(b, changed);
    for (size_t i = 0; i < b->pages.capacity; i++)
        if (page[i].address != 0 && page[i].changed == 0 && keyed_put(&kept, sizeof *page, &page[i]) < 0) {
            keyed_clear(&kept);
            return false;
        }
    for (size_t i = 0; i < b->pages.capacity; i++)
        if (page[i].changed != 0)
            free(page[i].bytes);
    keyed_clear(&b->pages);
    b->pages = kept;
    return true;
}
