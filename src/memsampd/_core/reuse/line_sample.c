#include "line_sample.h"

#define MOST_LINES 4096
#define MOST_REUSES 16384
#define FIRST_BITS 8

int
line_sample_init(line_sample *self, uint64_t seed)
{
    self->seed = seed;
    self->distant = malloc(MOST_REUSES * sizeof *self->distant);
    return self->distant ? table_init(&self->lines, FIRST_BITS) : -1;
}

int
line_sample_begin(line_sample *self)
{
    self->seed += UINT64_C(0x9E3779B97F4A7C15);
    self->distants = self->halvings = self->line_halvings = 0;
    if (self->lines.used == 0)
        return 0;
    table_free(&self->lines);
    return table_init(&self->lines, FIRST_BITS);
}

void
line_sample_free(line_sample *self)
{
    table_free(&self->lines);
    free(self->distant);
}

/* Leave every other line out. */
static void
halve(line_sample *self)
{
    size_t kept = 0;

    self->halvings++;
    for (size_t i = 0; i < self->distants; i++)
        if (line_sample_is_left(self->distant[i].hash, self->halvings))
            self->distant[kept++] = self->distant[i];
    self->distants = kept;
}

/* ... and forget it. */
static int
halve_lines(line_sample *self)
{
    const line_table all = self->lines;

    if (table_init(&self->lines, all.bits)) {
        self->lines = all;
        return -1;
    }
    if (self->halvings == self->line_halvings)
        halve(self);
    self->line_halvings++;
    for (uint64_t i = 0; i < table_entries(&all); i++) {
        const table_entry *entry = &all.entries[i];
        if (entry->value &&
            line_sample_is_left(line_sample_hash(self, entry->line), self->line_halvings))
            table_find_or_add(&self->lines, entry->line, entry->value);
    }
    free(all.entries);
    return 0;
}

int
line_sample_put(line_sample *self, uint64_t line, uint64_t time)
{
    const uint64_t hash = line_sample_hash(self, line);

    while (line_sample_is_left(hash, self->line_halvings) && self->lines.used >= MOST_LINES &&
           self->line_halvings < HASH_BITS)
        if (halve_lines(self) < 0)
            return -1;
    if (!line_sample_is_left(hash, self->line_halvings))
        return 0;
    if (table_reserve(&self->lines, 1) < 0)
        return -1;
    table_find_or_add(&self->lines, line, time)->value = time;
    return 1;
}

void
line_sample_note(line_sample *self, uint64_t line, uint64_t before, uint64_t now)
{
    const uint64_t hash = line_sample_hash(self, line);

    while (self->distants == MOST_REUSES && self->halvings < HASH_BITS)
        halve(self);
    if (self->distants < MOST_REUSES && line_sample_is_left(hash, self->halvings))
        self->distant[self->distants++] = (reuse){before, now, hash};
}
