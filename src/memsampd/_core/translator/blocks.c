#include "superblock.h"
#include "lookup.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096u
#define AHEAD_BLOCKS 16
#define TRANSITION_MAXIMUM_BYTES 64
#define FIRST_CAPACITY 4096
/* Records from which the way of branches is known well enough, and the least share (1 in so many) of
 * those that were laid out without. */
#define GUIDING_RECORDS 100000
#define GUIDING_SHARE 4

/* ---- Storage ---- */

bool
blocks_grow(void **array, size_t *capacity, size_t wanted, size_t item)
{
    if (wanted <= *capacity)
        return true;
    size_t bigger = *capacity == 0 ? FIRST_CAPACITY : 2 * *capacity;
    while (bigger < wanted)
        bigger *= 2;
    void *moved = realloc(*array, bigger * item);
    if (moved == NULL)
        return false;
    *array = moved;
    *capacity = bigger;
    return true;
}

bool
blocks_grow_accesses(struct accesses *a)
{
    size_t capacity = a->capacity == 0 ? FIRST_CAPACITY : 2 * a->capacity;
    size_t each[6] = {a->capacity, a->capacity, a->capacity,
                      a->capacity, a->capacity, a->capacity};
    bool grown = blocks_grow((void **)&a->operand, &each[0], capacity, sizeof *a->operand) &&
                 blocks_grow((void **)&a->ip, &each[1], capacity, sizeof *a->ip) &&
                 blocks_grow((void **)&a->size_bytes, &each[2], capacity, sizeof *a->size_bytes) &&
                 blocks_grow((void **)&a->instruction, &each[3], capacity, sizeof *a->instruction) &&
                 blocks_grow((void **)&a->is_write, &each[4], capacity, 1) &&
                 blocks_grow((void **)&a->delta, &each[5], capacity, sizeof *a->delta);
    if (grown)
        a->capacity = capacity;
    return grown;
}

static size_t
hash(uint64_t value, size_t capacity)
{
    return (size_t)(value * 0x9e3779b97f4a7c15u >> 24) & (capacity - 1);
}

uint32_t
blocks_find(const struct blocks *b, uint64_t ip)
{
    if (b->index_capacity == 0)
        return NO_BLOCK;
    for (size_t slot = hash(ip, b->index_capacity);; slot = (slot + 1) & (b->index_capacity - 1)) {
        uint32_t entry = b->index[slot];
        if (entry == 0)
            return NO_BLOCK;
        if (b->block[entry - 1].ip == ip)
            return entry - 1;
    }
}

static void
index_put(struct blocks *b, uint32_t block)
{
    size_t slot = hash(b->block[block].ip, b->index_capacity);
    while (b->index[slot] != 0)
        slot = (slot + 1) & (b->index_capacity - 1);
    b->index[slot] = block + 1;
}

static void
index_rebuild(struct blocks *b)
{
    memset(b->index, 0, b->index_capacity * sizeof *b->index);
    for (uint32_t i = 0; i < b->count; i++)
        if (!b->block[i].is_dead)
            index_put(b, i);
}

static bool
index_reserve(struct blocks *b)
{
    if (2 * (b->count + 1) <= b->index_capacity)
        return true;
    size_t capacity = b->index_capacity == 0 ? 4 * FIRST_CAPACITY : 2 * b->index_capacity;
    uint32_t *index = calloc(capacity, sizeof *index);
    if (index == NULL)
        return false;
    free(b->index);
    b->index = index;
    b->index_capacity = capacity;
    index_rebuild(b);
    return true;
}

int
blocks_init(struct blocks *b, uint8_t *area)
{
    memset(b, 0, sizeof *b);
    b->area = area;
    b->hot_executions = HOT_EXECUTIONS;
    b->code_used = LOOKUP_ROUTINE_BYTES;
    b->lookup_trap = lookup_init(area);
    return 0;
}

void
blocks_flush(struct blocks *b)
{
    b->count = b->exits = b->instructions = b->specials = b->accesses.count = 0;
    b->code_used = LOOKUP_ROUTINE_BYTES;
    if (b->index_capacity != 0)
        memset(b->index, 0, b->index_capacity * sizeof *b->index);
    for (size_t i = 0; i < b->page_capacity; i++)
        free(b->page[i].bytes);
    if (b->page_capacity != 0)
        memset(b->page, 0, b->page_capacity * sizeof *b->page);
    b->pages = 0;
    b->lookup_trap = lookup_init(b->area);
}

void
blocks_free(struct blocks *b)
{
    for (size_t i = 0; i < b->page_capacity; i++)
        free(b->page[i].bytes);
    free(b->page);
    free(b->index);
    free(b->block);
    free(b->exit);
    free(b->instruction);
    free(b->special);
    free(b->accesses.operand);
    free(b->accesses.delta);
    free(b->accesses.ip);
    free(b->accesses.size_bytes);
    free(b->accesses.instruction);
    free(b->accesses.is_write);
    form_table_clear(&b->forms);
    profile_free(&b->profile);
    memset(b, 0, sizeof *b);
}

/* ---- The program's code ---- */

/* The page's slot, or the free one where it belongs. */
static struct code_page *
page_slot(const struct blocks *b, uint64_t address)
{
    size_t slot = hash(address, b->page_capacity);
    while (b->page[slot].address != 0 && b->page[slot].address != address)
        slot = (slot + 1) & (b->page_capacity - 1);
    return &b->page[slot];
}

static struct code_page *
page_at(struct blocks *b, uint64_t address)
{
    if (2 * (b->pages + 1) > b->page_capacity) {
        size_t capacity = b->page_capacity == 0 ? 1024 : 2 * b->page_capacity;
        struct code_page *bigger = calloc(capacity, sizeof *bigger);
        if (bigger == NULL)
            return NULL;
        for (size_t i = 0; i < b->page_capacity; i++) {
            if (b->page[i].address == 0)
                continue;
            size_t slot = hash(b->page[i].address, capacity);
            while (bigger[slot].address != 0)
                slot = (slot + 1) & (capacity - 1);
            bigger[slot] = b->page[i];
        }
        free(b->page);
        b->page = bigger;
        b->page_capacity = capacity;
    }
    struct code_page *page = page_slot(b, address);
    if (page->address == 0) {
        page->address = address;
        page->bytes = malloc(PAGE);
        b->pages++;
        enum code_kind kind =
            page->bytes != NULL ? b->read_code(b->reader, address, page->bytes) : CODE_UNREADABLE;
        page->is_volatile = kind != CODE_STABLE;
        if (kind == CODE_UNREADABLE) {
            free(page->bytes);
            page->bytes = NULL;
        }
    }
    return page;
}

size_t
blocks_read_code(struct blocks *b, uint64_t ip, uint8_t code[INSTRUCTION_MAXIMUM_BYTES])
{
    size_t done = 0;
    while (done < INSTRUCTION_MAXIMUM_BYTES) {
        uint64_t at = ip + done;
        struct code_page *page = page_at(b, at & ~(uint64_t)(PAGE - 1));
        if (page == NULL || page->bytes == NULL)
            break;
        size_t offset = at & (PAGE - 1), part = PAGE - offset;
        part = part < INSTRUCTION_MAXIMUM_BYTES - done ? part : INSTRUCTION_MAXIMUM_BYTES - done;
        memcpy(code + done, page->bytes + offset, part);
        done += part;
    }
    return done;
}

bool
blocks_use_page(const struct blocks *b, uint64_t address)
{
    uint64_t page = address & ~(uint64_t)(PAGE - 1);

    return b->page_capacity != 0 && page_slot(b, page)->address == page;
}

bool
blocks_was_written(const struct blocks *b, uint64_t address)
{
    for (unsigned i = 0; i < b->written_pages; i++)
        if (b->written_page[i] == (address & ~(uint64_t)(PAGE - 1)))
            return true;
    return false;
}

static bool
has_changed(struct blocks *b, uint64_t address)
{
    return page_at(b, address & ~(uint64_t)(PAGE - 1))->has_changed;
}

static bool
uses_changed_page(struct blocks *b, const struct block *block)
{
    const struct instruction *at = &b->instruction[block->first_instruction];

    for (uint32_t i = 0; i < block->instructions; i++)
        if (has_changed(b, at[i].ip) || has_changed(b, at[i].ip + INSTRUCTION_MAXIMUM_BYTES - 1))
            return true;
    return has_changed(b, block->ip); /* it may have none */
}

long
blocks_check_code(struct blocks *b, bool only_volatile)
{
    uint8_t now[PAGE];
    long dropped = 0;
    bool any = false;

    for (size_t i = 0; i < b->page_capacity; i++) {
        struct code_page *page = &b->page[i];
        if (page->address == 0 || (only_volatile && !page->is_volatile))
            continue;
        enum code_kind kind = b->read_code(b->reader, page->address, now);
        bool readable = kind != CODE_UNREADABLE;
        page->is_volatile = kind != CODE_STABLE;
        page->has_changed = readable != (page->bytes != NULL) ||
                            (readable && memcmp(now, page->bytes, PAGE) != 0);
        if (!page->has_changed)
            continue;
        any = true;
        if (readable && page->bytes == NULL && (page->bytes = malloc(PAGE)) == NULL)
            return -1;
        if (readable) {
            memcpy(page->bytes, now, PAGE);
        } else {
            free(page->bytes);
            page->bytes = NULL;
        }
    }
    if (!any)
        return 0;
    for (size_t i = 0; i < b->count; i++) {
        struct block *block = &b->block[i];
        if (block->is_dead)
            continue;
        block->is_dead = uses_changed_page(b, block);
        dropped += block->is_dead;
    }
    for (size_t i = 0; i < b->exits; i++) {
        struct exit *x = &b->exit[i];
        if (x->linked != NO_BLOCK && b->block[x->linked].is_dead)
            blocks_cut(b, x);
    }
    for (size_t i = 0; i < b->page_capacity; i++)
        b->page[i].has_changed = false;
    if (dropped != 0) {
        index_rebuild(b);
        lookup_clear(b->area);
    }
    return dropped;
}

/* ---- Links ---- */

void
blocks_cut(struct blocks *b, struct exit *x)
{
    static const uint8_t trap[LINK_BYTES] = {0xcc, 0x90, 0x90, 0x90, 0x90};
    memcpy(b->area + x->link_at, trap, sizeof trap);
    x->linked = NO_BLOCK;
}

/* Code that hands over from the registers that one block uses for itself to those of another. */
static void
emit_transition(struct emitter *e, const struct block *from, const struct block *to)
{
    const unsigned given[2] = {from->buffer_register, from->scratch_register};
    const unsigned taken[2] = {to->buffer_register, to->scratch_register};

    for (int i = 0; i < 2; i++)
        if (taken[i] != given[0] && taken[i] != given[1])
            emit_slot(e, 0x89, taken[i], SLOT_GPR(taken[i]));
    if (taken[0] != given[0])
        emit_copy(e, taken[0], given[0]);
    for (int i = 0; i < 2; i++)
        if (given[i] != taken[0] && given[i] != taken[1])
            emit_slot(e, 0x8b, given[i], SLOT_GPR(given[i]));
    emit_jump(e, to->warm);
}

/* Have an exit go to a block directly; without room for what that takes it stays a trap. */
static void
set_link(struct blocks *b, uint32_t exit, uint32_t to)
{
    struct exit *x = &b->exit[exit];
    const struct block *from = &b->block[x->block], *target = &b->block[to];
    struct emitter link = {b->area, x->link_at};
    const uint32_t transition_at = AREA_CODE + b->code_used;
    struct emitter transition = {b->area, transition_at};

    if (from->buffer_register == target->buffer_register &&
        from->scratch_register == target->scratch_register) {
        emit_jump(&link, target->warm);
    } else {
        if (b->code_used + TRANSITION_MAXIMUM_BYTES > AREA_CODE_BYTES)
            return;
        emit_transition(&transition, from, target);
        b->code_used = transition.at - AREA_CODE;
        emit_jump(&link, transition_at);
    }
    x->linked = to;
}

void
blocks_publish(struct blocks *b, uint32_t block)
{
    lookup_put(b->area, b->area_address, b->block[block].ip, b->block[block].cold);
}

/* ---- Translation ---- */

static enum translation
translate_one(struct blocks *b, uint64_t ip, uint32_t *found)
{
    if (!index_reserve(b))
        return TRANSLATION_NO_MEMORY;
    enum translation result = superblock_translate(b, ip);
    if (result == TRANSLATED) {
        *found = (uint32_t)b->count - 1;
        index_put(b, *found);
    }
    return result;
}

/* A trap costs as much as the translation of some dozens of instructions: so translate what may
 * come next at once, nearest first. */
static void
translate_ahead(struct blocks *b, uint32_t first)
{
    uint32_t end = (uint32_t)b->count + AHEAD_BLOCKS, found;

    for (uint32_t at = first; at < b->count; at++) {
        uint32_t exit = b->block[at].first_exit, last = exit + b->block[at].exits;
        for (; exit < last; exit++) {
            if (b->exit[exit].kind != EXIT_DIRECT)
                continue;
            found = blocks_find(b, b->exit[exit].target);
            if (found == NO_BLOCK &&
                (b->count >= end ||
                 translate_one(b, b->exit[exit].target, &found) != TRANSLATED))
                continue;
            set_link(b, exit, found);
        }
        uint64_t back = b->block[at].return_ip;
        if (back == 0)
            continue;
        found = blocks_find(b, back);
        if (found != NO_BLOCK ||
            (b->count < end && translate_one(b, back, &found) == TRANSLATED))
            blocks_publish(b, found);
    }
}

enum translation
blocks_translate(struct blocks *b, uint64_t ip, uint32_t *found)
{
    *found = blocks_find(b, ip);
    if (*found != NO_BLOCK)
        return TRANSLATED;
    enum translation result = translate_one(b, ip, found);
    if (result == TRANSLATED)
        translate_ahead(b, *found);
    return result;
}

enum translation
blocks_link(struct blocks *b, uint32_t exit, uint32_t *found)
{
    enum translation result = blocks_translate(b, b->exit[exit].target, found);
    if (result == TRANSLATED && b->exit[exit].linked == NO_BLOCK)
        set_link(b, exit, *found);
    return result;
}

/* ---- Laying out by what has been seen ---- */

/* Where the last instruction before an exit went: out there `hits` times, along the path `stayed`. */
static int
note_exit(struct blocks *b, const struct exit *x, uint64_t stayed)
{
    const struct block *block = &b->block[x->block];
    if (x->instructions == 0)
        return 0;
    const struct instruction *at = &b->instruction[block->first_instruction + x->instructions - 1u];

    if (at->flow == FLOW_BRANCH)
        return x->is_inverted ? profile_add(&b->profile, at->ip, 0, stayed, x->hits)
                              : profile_add(&b->profile, at->ip, 0, x->hits, stayed);
    if (x->kind != EXIT_INDIRECT)
        return 0;
    if (x->target != 0 && profile_add(&b->profile, at->ip, x->target, stayed, 0) < 0)
        return -1;
    if (x->candidate == NO_BLOCK)
        return 0;
    /* Of f * hits votes for and (1 - f) * hits against it, 2 * f - 1 are left. */
    uint64_t there = ((uint64_t)x->hits + x->votes) / 2;
    return profile_add(&b->profile, at->ip, b->block[x->candidate].ip, there, x->hits - there);
}

static int
note_block(struct blocks *b, const struct block *block)
{
    const struct exit *end = &b->exit[block->first_exit]; /* side exits follow in their order */
    uint64_t hits = end->hits;

    /* A branch just before the end has its own side exit, which says all. */
    if (end->kind == EXIT_INDIRECT && note_exit(b, end, 0) < 0)
        return -1;
    for (uint32_t i = block->exits; --i > 0;) {
        if (end[i].kind == EXIT_CROSSED)
            continue;
        if (note_exit(b, &end[i], hits) < 0)
            return -1;
        hits += end[i].hits;
    }
    return hits == 0 ? 0 : profile_add(&b->profile, block->ip | PROFILE_HEAD, 0, hits, 0);
}

bool
blocks_want_guiding(const struct blocks *b)
{
    uint64_t hits[2] = {0, 0};

    for (size_t i = 0; i < b->exits; i++)
        hits[b->block[b->exit[i].block].is_guided] += b->exit[i].hits;
    return hits[0] >= GUIDING_RECORDS && hits[0] > (hits[0] + hits[1]) / GUIDING_SHARE;
}

int
blocks_guide(struct blocks *b)
{
    profile_age(&b->profile);
    for (size_t i = 0; i < b->count; i++)
        if (note_block(b, &b->block[i]) < 0)
            return -1;
    blocks_flush(b);
    return 0;
}

/* ---- Finding one's way back ---- */

bool
blocks_locate(const struct blocks *b, uint32_t offset, uint32_t *block, uint32_t *instruction)
{
    size_t low = 0, high = b->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (b->block[middle].end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == b->count || offset < b->block[low].cold)
        return false;
    const struct block *found = &b->block[low];
    *block = (uint32_t)low;
    *instruction = NO_BLOCK;
    for (uint32_t i = 0; i < found->instructions; i++)
        if (b->instruction[found->first_instruction + i].code_at <= offset &&
            offset < found->body_end)
            *instruction = found->first_instruction + i;
    return true;
}

long
blocks_exit_at(const struct blocks *b, uint32_t offset)
{
    uint32_t block, instruction;

    if (!blocks_locate(b, offset, &block, &instruction))
        return -1;
    const struct block *found = &b->block[block];
    for (uint32_t i = found->first_exit; i < found->first_exit + found->exits; i++)
        if (b->exit[i].link_at == offset)
            return (long)i;
    return -1;
}
