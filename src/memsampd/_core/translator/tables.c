#include "tables.h"
#include "lookup.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 4096
#define FIRST_SECONDS_A_PAGE 1.5e-6

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
        if (b->block[entry - 1].ip == ip && !b->block[entry - 1].is_dead)
            return entry - 1;
    }
}

void
blocks_index(struct blocks *b, uint32_t block)
{
    size_t slot = hash(b->block[block].ip, b->index_capacity);
    while (b->index[slot] != 0)
        slot = (slot + 1) & (b->index_capacity - 1);
    b->index[slot] = block + 1;
}

void
blocks_index_anew(struct blocks *b)
{
    memset(b->index, 0, b->index_capacity * sizeof *b->index);
    for (uint32_t i = 0; i < b->count; i++)
        if (!b->block[i].is_dead)
            blocks_index(b, i);
}

bool
blocks_reserve_index(struct blocks *b)
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
    blocks_index_anew(b);
    return true;
}

void
blocks_init(struct blocks *b, uint8_t *area)
{
    memset(b, 0, sizeof *b);
    b->area = area;
    b->hot_executions = HOT_EXECUTIONS;
    b->seconds_a_page = FIRST_SECONDS_A_PAGE;
    b->code_used = LOOKUP_ROUTINE_BYTES;
    b->lookup_trap = lookup_init(area);
}

static void
forget_pages(struct blocks *b)
{
    struct code_page *page = b->pages.items;

    for (size_t i = 0; i < b->pages.capacity; i++)
        free(page[i].bytes);
    keyed_clear(&b->pages);
}

void
blocks_flush(struct blocks *b)
{
    b->count = b->exits = b->instructions = b->specials = b->accesses.count = 0;
    b->records[0] = b->records[1] = 0;
    b->code_used = LOOKUP_ROUTINE_BYTES;
    if (b->index_capacity != 0)
        memset(b->index, 0, b->index_capacity * sizeof *b->index);
    forget_pages(b);
    b->lookup_trap = lookup_init(b->area);
}

void
blocks_free(struct blocks *b)
{
    forget_pages(b);
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
    keyed_clear(&b->forms);
    keyed_clear(&b->profile);
    memset(b, 0, sizeof *b);
}

/* ---- The program's code ---- */

struct code_page *
blocks_page(struct blocks *b, uint64_t address)
{
    const size_t before = b->pages.count;
    struct code_page *page = keyed_add(&b->pages, sizeof *page, address);

    if (page != NULL && b->pages.count != before) {
        enum code_kind kind = CODE_UNREADABLE;
        page->bytes = malloc(PAGE_BYTES);
        if (page->bytes != NULL)
            b->read_code(b->reader, &address, 1, page->bytes, &kind);
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
        struct code_page *page = blocks_page(b, page_of(at));
        if (page == NULL || page->bytes == NULL)
            break;
        size_t offset = at & (PAGE_BYTES - 1), part = PAGE_BYTES - offset;
        part = part < INSTRUCTION_MAXIMUM_BYTES - done ? part : INSTRUCTION_MAXIMUM_BYTES - done;
        memcpy(code + done, page->bytes + offset, part);
        page->used |= code_lines(at, part);
        page->burst = b->burst;
        done += part;
    }
    return done;
}

uint64_t
code_lines(uint64_t address, size_t bytes)
{
    const uint64_t first = address & (PAGE_BYTES - 1), behind = first + bytes;
    const uint64_t last = (behind < PAGE_BYTES ? behind : PAGE_BYTES) - 1;

    return ALL_LINES << first / CODE_LINE_BYTES & ALL_LINES >> (63 - last / CODE_LINE_BYTES);
}

bool
blocks_use(const struct blocks *b, uint64_t address, size_t bytes)
{
    const struct code_page *page = keyed_get(&b->pages, sizeof *page, page_of(address));

    return page != NULL && (page->used & code_lines(address, bytes)) != 0;
}

struct written_code *
blocks_note_written(struct blocks *b, uint64_t page, uint64_t lines)
{
    unsigned i = 0;

    while (i < b->written_pages && b->written[i].page != page)
        i++;
    if (i == WRITTEN_PAGES)
        return NULL;
    if (i == b->written_pages)
        b->written[b->written_pages++] = (struct written_code){.page = page};
    b->written[i].lines |= lines;
    b->written[i].stores++;
    return &b->written[i];
}

bool
blocks_was_written(const struct blocks *b, uint64_t address)
{
    for (unsigned i = 0; i < b->written_pages; i++)
        if (b->written[i].page == page_of(address))
            return (b->written[i].lines & code_lines(address, 1)) != 0;
    return false;
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

void
blocks_cut(struct blocks *b, struct exit *x)
{
    static const uint8_t trap[LINK_BYTES] = {0xcc, 0x90, 0x90, 0x90, 0x90};
    memcpy(b->area + x->link_at, trap, sizeof trap);
    x->linked = NO_BLOCK;
}
