/* Memory that bursts store to is read in the hold: a replica that goes on behind it would find there what the
 * target did meanwhile. */
#include "core.h"
#include "stored_memory.h"
#include "supplying.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_STORES 4u /* in a block */
#define LEARNING 0.3
#define MANY_PAGES 256u

void
pages_note_stores(struct pages *p, const uint64_t *address, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t number = address[i] / (BLOCK_PAGES * PAGE_BYTES);
        struct stored_block *block = &p->stored[number * 0x9e3779b97f4a7c15u >> 56];
        if (block->number == number)
            block->stores++;
        else if (block->stores == 0)
            *block = (struct stored_block){.number = number, .stores = 1};
        else
            block->stores--;
    }
}

static int
by_stores(const void *a, const void *b)
{
    const uint32_t x = ((const struct stored_block *)a)->stores, y = ((const struct stored_block *)b)->stores;
    return x < y ? 1 : x == y ? 0 : -1;
}

/* Pages of a block that the replica lacks and that can be read to where it will have them. */
static size_t
pages_of_block(struct pages *p, struct process *process, uint64_t number, uint64_t *wanted)
{
    size_t count = 0;

    for (size_t i = 0; i < BLOCK_PAGES; i++) {
        const struct page *page = pages_find(p, (number * BLOCK_PAGES + i) * PAGE_BYTES);
        if (page->address != 0 && !(page->flags & (PAGE_IS_HERE | PAGE_IS_READ)) &&
            process_place(process, page->address, page->era) != NULL)
            wanted[count++] = page->address;
    }
    return count;
}

static void
read_pages(struct pages *p, struct process *process, struct remote *remote, const uint64_t *address,
           size_t count)
{
    struct batch batch;

    pages_read(p, process, remote, address, count, &batch);
    for (size_t i = 0; i < count; i++) {
        struct page *page = pages_find(p, address[i]);
        if (batch.result[i] == PAGE_UNREADABLE || p->gifts >= PAGES_SLOTS)
            continue;
        p->given[p->gifts++] = (uint32_t)(page - p->slot);
        page->flags = (uint8_t)(PAGE_IS_READ | (batch.is_writable[i] ? PAGE_IS_WRITABLE : 0));
    }
}

void
pages_read_stored(struct pages *p, struct process *process, struct remote *remote, double seconds)
{
    const double started = now_seconds();
    struct stored_block block[PAGES_STORED_BLOCKS];
    uint64_t wanted[BLOCK_PAGES];
    double spent = 0.0;
    size_t read = 0;

    memcpy(block, p->stored, sizeof block);
    qsort(block, PAGES_STORED_BLOCKS, sizeof *block, by_stores);
    for (size_t i = 0; i < PAGES_STORED_BLOCKS && block[i].stores >= LEAST_STORES; i++) {
        const double room = (seconds - spent) / p->seconds_a_read;
        if (room < 1)
            break;
        size_t count = pages_of_block(p, process, block[i].number, wanted);
        count = (double)count < room ? count : (size_t)room;
        read_pages(p, process, remote, wanted, count);
        read += count;
        spent = now_seconds() - started;
    }
    if (read >= MANY_PAGES)
        p->seconds_a_read += LEARNING * (spent / (double)read - p->seconds_a_read);
}

void
pages_show_read(struct pages *p, struct process *process, struct remote *remote)
{
    struct batch batch;
    uint64_t address[REMOTE_BATCH];
    const size_t gifts = p->gifts;
    size_t count = 0;

    for (size_t i = 0; i < gifts; i++) {
        struct page *page = &p->slot[p->given[i]];
        if (page->flags & PAGE_IS_READ) {
            batch.result[count] = PAGE_READ;
            batch.is_placed[count] = true;
            batch.is_writable[count] = (page->flags & PAGE_IS_WRITABLE) != 0;
            address[count++] = page->address;
            page->flags = 0;
        }
        if (count == REMOTE_BATCH || i + 1 == gifts) {
            pages_show(p, process, remote, address, count, &batch);
            count = 0;
        }
    }
}
