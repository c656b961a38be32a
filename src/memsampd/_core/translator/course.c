#include "course.h"
#include "superblock.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CHECKPOINT ((uint64_t)1 << 16)
#define FIRST_EXITS 1024
/* A stretch is so long, and a sixteenth of the course at least: long enough to see most of what belongs
 * together, and short beside what came before. Other code altogether: hardly anything else in it. */
#define STRETCH_ROWS ((uint64_t)1 << 16)
#define STRETCH_SHARE 16
#define CHANGED(count, rows) (16 * (count) > 15 * (rows))
/* From here on a part of a stretch counts as where the change began. */
#define BEGUN(count, rows) (8 * (count) > (rows))
/* Before a repetition as long as a stretch: less is not worth to be ended for. */
#define ROWS_WORTH_ENDING 4096
/* Seconds of uncertainty: of beginning and ending, and of each arrival that is counted. */
#define BASE_COST 3e-6
#define ARRIVAL_COST 2e-9
/* What a counter replaces, and how far two must lie apart (sampler/shadow/arrivals.py). */
#define PATCH_BYTES 5
#define PATCH_MAXIMUM_BYTES (PATCH_BYTES - 1 + INSTRUCTION_MAXIMUM_BYTES)
#define TRIES 256

void
course_begin(struct course *c, uint64_t limit)
{
    struct course_counts *all[3] = {&c->now, &c->earlier, &c->earliest};

    c->limit = limit;
    c->rows = 0;
    c->checkpoint = FIRST_CHECKPOINT;
    c->is_void = c->has_changed = false;
    c->stretch = 0;
    c->stretch_start = 0;
    c->stretch_end = STRETCH_ROWS;
    c->news = c->earlier_news = (struct course_news){NO_EXIT, 0, 0};
    for (int i = 0; i < 3; i++) {
        all[i]->rows = 0;
        if (c->exits != 0)
            memset(all[i]->exit, 0, c->exits * sizeof *all[i]->exit);
    }
}

void
course_free(struct course *c)
{
    free(c->now.exit);
    free(c->earlier.exit);
    free(c->earliest.exit);
    memset(c, 0, sizeof *c);
}

int
course_reserve(struct course *c, size_t exits)
{
    struct course_counts *all[3] = {&c->now, &c->earlier, &c->earliest};
    size_t bigger = c->exits == 0 ? FIRST_EXITS : c->exits;

    while (bigger < exits)
        bigger *= 2;
    for (int i = 0; i < 3; i++) {
        struct exit_count *counts = realloc(all[i]->exit, bigger * sizeof *counts);
        if (counts == NULL)
            return -1;
        memset(counts + c->exits, 0, (bigger - c->exits) * sizeof *counts);
        all[i]->exit = counts;
    }
    c->exits = bigger;
    return 0;
}

void
course_keep(struct course *c)
{
    struct course_counts oldest = c->earliest;

    c->earliest = c->earlier;
    c->earlier = oldest;
    memcpy(c->earlier.exit, c->now.exit, c->exits * sizeof *c->now.exit);
    c->earlier.rows = c->rows;
    while (c->checkpoint <= c->rows)
        c->checkpoint *= 2;
}

/* It ended before this. */
static void
change(struct course *c, struct course_news news)
{
    c->has_changed = true;
    c->news = news;
    c->rows = news.rows;
    if (c->earlier.rows >= c->rows)
        c->earlier.rows = 0;
    if (c->earliest.rows >= c->rows)
        c->earliest.rows = 0;
}

uint32_t
course_first_stretch(const struct course *c, const struct blocks *b, uint32_t exit)
{
    const struct block *block = &b->block[b->exit[exit].block];
    uint32_t first = c->stretch;

    for (uint32_t e = block->first_exit; e < block->first_exit + block->exits && e < c->exits; e++)
        if (c->now.exit[e].hits != 0 && c->now.exit[e].stretch < first)
            first = c->now.exit[e].stretch;
    return first;
}

/* What was new from that stretch on never was part of it. */
static void
forget_from(struct course *c, uint32_t stretch)
{
    for (size_t e = 0; e < c->exits; e++)
        if (c->now.exit[e].stretch >= stretch)
            c->now.exit[e].hits = 0, c->now.exit[e].repeats = 0;
}

void
course_look(struct course *c)
{
    const uint64_t rows = c->rows - c->stretch_start;
    const uint64_t earlier_rows = c->stretch_start - c->last_start;
    const struct course_news news = c->news, earlier = c->earlier_news;

    if (CHANGED(news.count, rows)) {
        bool began_earlier = news.exit == NO_EXIT || BEGUN(earlier.count, earlier_rows) ||
                             c->now.exit[news.exit].stretch < c->stretch;
        began_earlier = began_earlier && earlier.exit != NO_EXIT;
        forget_from(c, c->stretch - began_earlier);
        change(c, began_earlier ? earlier : news);
        return;
    }
    const uint64_t share = c->rows / STRETCH_SHARE;
    c->earlier_news = news;
    c->news = (struct course_news){NO_EXIT, 0, 0};
    c->stretch++;
    c->last_start = c->stretch_start;
    c->stretch_start = c->rows;
    c->stretch_end = c->rows + (share > STRETCH_ROWS ? share : STRETCH_ROWS);
}

static bool
has_run(const struct course *c, const struct block *block)
{
    for (uint32_t e = block->first_exit; e < block->first_exit + block->exits; e++)
        if (e < c->exits && c->now.exit[e].hits != 0)
            return true;
    return false;
}

enum course_added
course_repeats(struct course *c, const struct blocks *b, uint32_t exit, uint64_t rows)
{
    if (c->has_changed || c->is_void)
        return COURSE_GOES_ON;
    if (exit >= c->exits && course_reserve(c, b->exits) < 0)
        return COURSE_NO_MEMORY;
    if (rows >= STRETCH_ROWS && rows >= c->rows / STRETCH_SHARE && c->rows >= ROWS_WORTH_ENDING &&
        !has_run(c, &b->block[b->exit[exit].block])) {
        change(c, (struct course_news){exit, c->rows, rows});
        return COURSE_CHANGED;
    }
    c->now.exit[exit].repeats += rows;
    return COURSE_GOES_ON;
}

/* ---- Where a twin can be stopped ---- */

/* How often and when an instruction was executed, as part of one block, or of all that contain it. */
struct visits {
    uint64_t ip;
    uint64_t hits[2], last[2]; /* until the lead-in's moment, and in all */
    uint64_t repeats;          /* beyond these */
    uint32_t block[2], place[2]; /* those of the last: which instruction of which block */
    bool is_refused;           /* no twin can be stopped there */
};

struct visited {
    struct visits *items;
    size_t count, capacity;
};

static int
compare_ip(const void *a, const void *b)
{
    uint64_t one = ((const struct visits *)a)->ip, other = ((const struct visits *)b)->ip;
    return (one > other) - (one < other);
}

/* Which instruction of a block was repeated. */
static uint32_t
repeated_instruction(const struct blocks *b, const struct block *block, const struct exit *exit)
{
    uint32_t a = 0;

    while (a < exit->accesses &&
           b->accesses.operand[block->first_access + a].source != ACCESS_SPECIAL)
        a++;
    return a < exit->accesses ? b->accesses.instruction[block->first_access + a] : UINT32_MAX;
}

/* Those of one block: an exit tells that all instructions up to it were executed. */
static bool
add_block(struct visited *v, const struct blocks *b, uint32_t number,
          const struct course_counts *moments[2])
{
    const struct block *block = &b->block[number];

    if (!blocks_grow((void **)&v->items, &v->capacity, v->count + block->instructions,
                     sizeof *v->items))
        return false;
    for (uint32_t i = 0; i < block->instructions; i++) {
        struct visits visits = {.ip = b->instruction[block->first_instruction + i].ip,
                                .block = {number, number},
                                .place = {i, i}};
        for (uint32_t e = block->first_exit; e < block->first_exit + block->exits; e++) {
            if (b->exit[e].kind == EXIT_CROSSED || b->exit[e].instructions <= i)
                continue;
            const struct exit_count *counted = &moments[1]->exit[e];
            if (counted->repeats != 0 && repeated_instruction(b, block, &b->exit[e]) == i)
                visits.repeats += counted->repeats;
            for (int m = 0; m < 2; m++) {
                if (moments[m] == NULL || moments[m]->exit[e].hits == 0)
                    continue;
                visits.hits[m] += moments[m]->exit[e].hits;
                if (moments[m]->exit[e].last > visits.last[m])
                    visits.last[m] = moments[m]->exit[e].last;
            }
        }
        if (visits.hits[1] == 0)
            break;
        v->items[v->count++] = visits;
    }
    return true;
}

/* One entry an instruction, in order of address. */
static void
merge(struct visited *v)
{
    size_t kept = 0;

    if (v->count == 0)
        return;
    qsort(v->items, v->count, sizeof *v->items, compare_ip);
    for (size_t i = 1; i < v->count; i++) {
        struct visits *to = &v->items[kept], *from = &v->items[i];
        if (from->ip != to->ip) {
            v->items[++kept] = *from;
            continue;
        }
        to->repeats += from->repeats;
        for (int m = 0; m < 2; m++) {
            to->hits[m] += from->hits[m];
            if (from->last[m] > to->last[m] ||
                (from->last[m] == to->last[m] && from->place[m] > to->place[m])) {
                to->last[m] = from->last[m];
                to->block[m] = from->block[m];
                to->place[m] = from->place[m];
            }
        }
    }
    v->count = kept + 1;
}

/* Whether a block that ran comes to the instruction otherwise than from the one before it. */
static bool
is_entered(const struct course *c, const struct blocks *b, uint64_t ip)
{
    for (size_t n = 0; n < b->count; n++) {
        const struct block *block = &b->block[n];
        const struct instruction *at = &b->instruction[block->first_instruction];
        for (uint32_t i = 0; i < block->instructions; i++)
            if (at[i].ip == ip && (i == 0 || at[i - 1].flow != FLOW_NEXT) && has_run(c, block))
                return true;
    }
    return false;
}

/* Whether a jump can take the place of the instruction, and of those behind it that it needs the bytes
 * of: nothing jumps to these, and they do the same elsewhere. */
static bool
can_be_patched(const struct course *c, struct blocks *b, uint64_t ip)
{
    uint8_t code[INSTRUCTION_MAXIMUM_BYTES];
    struct parsed p;

    for (unsigned bytes = 0; bytes < PATCH_BYTES;) {
        if (bytes != 0 && is_entered(c, b, ip + bytes))
            return false;
        size_t size = blocks_read_code(b, ip + bytes, code);
        const struct form *form = parse(code, size, &p) ? form_table_get(&b->forms, p.key) : NULL;
        if (form == NULL || form->flags & (RECIPE_SYSCALL | RECIPE_UNSUPPORTED))
            return false;
        bytes += (unsigned)p.length + form->immediate_bytes;
        bool may_go_on = form->flow == FLOW_NEXT || form->flow == FLOW_BRANCH;
        bool may_end = may_go_on || form->flow == FLOW_JUMP || form->flow == FLOW_RETURN ||
                       form->flow == FLOW_JUMP_INDIRECT;
        if (bytes < PATCH_BYTES ? !may_go_on : !may_end)
            return false;
    }
    return true;
}

/* Rows before the instruction in the last record that it is part of; false if they cannot be told. */
static bool
rows_before(const struct blocks *b, const struct visits *visits, int moment, uint64_t *rows)
{
    const struct block *block = &b->block[visits->block[moment]];

    const struct instruction *at =
        &b->instruction[block->first_instruction + visits->place[moment]];

    for (uint32_t a = 0; a < at->accesses_before; a++)
        if (b->accesses.operand[block->first_access + a].source == ACCESS_SPECIAL)
            return false;
    *rows = visits->last[moment] + at->accesses_before;
    return true;
}

/* What a stop there is worth to a twin that is timed from `start` on: rows for uncertainty. */
static double
worth_of(const struct visits *v, int moment, const struct course_point *start, uint64_t limit)
{
    uint64_t distance = v->ip > start->ip ? v->ip - start->ip : start->ip - v->ip;
    uint64_t counted = v->hits[moment] - (moment == 1 ? v->hits[0] : 0);

    if (v->is_refused || v->hits[moment] == 0 || v->last[moment] <= start->rows ||
        v->last[moment] > limit ||
        (distance != 0 && distance < PATCH_MAXIMUM_BYTES))
        return 0.0;
    return (double)(v->last[moment] - start->rows) / (BASE_COST + ARRIVAL_COST * (double)counted);
}

/* The best instruction to stop at: late, and not so often come to that counting disturbs. */
static struct course_point
best_point(const struct course *c, struct blocks *b, struct visited *v, int moment,
           const struct course_point *start)
{
    for (unsigned tries = 0; tries < TRIES; tries++) {
        struct visits *best = NULL;
        double best_worth = 0.0;
        for (size_t i = 0; i < v->count; i++) {
            double worth = worth_of(&v->items[i], moment, start, c->rows);
            if (worth > best_worth) {
                best_worth = worth;
                best = &v->items[i];
            }
        }
        if (best == NULL)
            break;
        struct course_point point = {best->ip, best->hits[moment], 0};
        if (can_be_patched(c, b, best->ip) && rows_before(b, best, moment, &point.rows))
            return point;
        best->is_refused = true;
    }
    return (struct course_point){0, 0, 0};
}

/* Entries for all that ran, one an instruction, `since` some moment and in all. */
static bool
visit_all(struct course *c, const struct blocks *b, const struct course_counts *since,
          struct visited *visited)
{
    const struct course_counts *moments[2] = {since, &c->now};

    if (b->exits > c->exits && course_reserve(c, b->exits) < 0)
        return false;
    for (uint32_t i = 0; i < b->count; i++)
        if (!b->block[i].is_dead && has_run(c, &b->block[i]) &&
            !add_block(visited, b, i, moments))
            return false;
    merge(visited);
    return true;
}

static bool
copy_visits(const struct visited *visited, struct course_visits *visits)
{
    visits->ip = calloc(visited->count + 1, sizeof *visits->ip);
    visits->times = calloc(visited->count + 1, sizeof *visits->times);
    if (visits->ip == NULL || visits->times == NULL)
        return false;
    for (size_t i = 0; i < visited->count; i++) {
        visits->ip[i] = visited->items[i].ip;
        visits->times[i] = visited->items[i].hits[1] + visited->items[i].repeats;
    }
    visits->count = visited->count;
    return true;
}

/* Where the course ended, because other code began there: nothing is better to stop at, if it had not
 * run before. */
static bool
add_change(const struct course *c, const struct blocks *b, struct visited *v)
{
    const uint32_t number = b->exit[c->news.exit].block;
    const uint64_t ip = b->block[number].ip;

    for (size_t i = 0; i < v->count; i++)
        if (v->items[i].ip == ip)
            return true;
    if (!blocks_grow((void **)&v->items, &v->capacity, v->count + 1, sizeof *v->items))
        return false;
    v->items[v->count++] = (struct visits){
        .ip = ip, .hits = {0, 1}, .last = {0, c->rows}, .block = {number, number}};
    return true;
}

bool
course_points(struct course *c, struct blocks *b, struct course_point *lead_in,
              struct course_point *end, struct course_visits *visits)
{
    if (!c->has_changed && !c->is_void && c->rows > c->stretch_start + ROWS_WORTH_ENDING)
        course_look(c); /* at the stretch that it ended in */
    const struct course_counts *since = c->earliest.rows != 0 ? &c->earliest : &c->earlier;
    struct visited visited = {NULL, 0, 0};

    *lead_in = *end = (struct course_point){0, 0, 0};
    *visits = (struct course_visits){NULL, NULL, 0};
    if (c->is_void || c->exits == 0)
        return true;
    if (!visit_all(c, b, since->rows != 0 ? since : NULL, &visited) ||
        !copy_visits(&visited, visits) || (c->has_changed && !add_change(c, b, &visited))) {
        free(visited.items);
        return false;
    }
    if (since->rows != 0)
        *lead_in = best_point(c, b, &visited, 0, lead_in);
    *end = best_point(c, b, &visited, 1, lead_in);
    free(visited.items);
    return true;
}
