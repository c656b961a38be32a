#include "code_change.h"
#include "expansion.h"

#include <string.h>

#define PIECES_MOST 128 /* of about equal weight; half as many at least, unless records are few */
#define FIRST_WEIGHT 1024.0 /* of a piece to begin with */
#define BINS 64        /* blocks by a hash */
#define ALIKE 0.5      /* pieces that have so much of their code in common are of one part */
#define MIXED_MOST (2 * PARTS_MOST - 1) /* parts, and a piece between each two that is like neither */
#define UNLIKE_SPEED 3  /* parts whose accesses take so many times as long, one or the other */
#define FEWEST_ACCESSES 2000

/* Some records: how much of what they did, instructions and accesses, they did where. */
struct piece {
    const uint64_t *begin;
    uint64_t accesses;
    double weight, bin[BINS];
};

struct pieces {
    struct piece item[PIECES_MOST];
    size_t count;
    double weight; /* with so much of it one is complete */
    struct record_list records; /* that they are made of */
};

static unsigned
bin_of(const struct exit *x)
{
    return (uint32_t)x->block * UINT32_C(0x9E3779B1) >> 26;
}

_Static_assert(BINS == 1 << (32 - 26), "a bin for each hash");

static double
weight_of(const struct exit *x, uint64_t accesses)
{
    return (double)(x->instructions + accesses);
}

static void
add(struct piece *sum, const struct piece *more)
{
    sum->accesses += more->accesses;
    sum->weight += more->weight;
    for (unsigned i = 0; i < BINS; i++)
        sum->bin[i] += more->bin[i];
}

static double
in_common(const struct piece *a, const struct piece *b)
{
    double common = 0;

    for (unsigned i = 0; i < BINS; i++) {
        const double x = a->bin[i] / a->weight, y = b->bin[i] / b->weight;
        common += x < y ? x : y;
    }
    return common;
}

/* Make pieces of twice the weight of those that there are. One that does more is a piece by itself. */
static void
make_larger(struct pieces *p)
{
    size_t count = 1;

    p->weight *= 2;
    for (size_t i = 1; i < p->count; i++) {
        struct piece *last = &p->item[count - 1];
        if (last->weight < p->weight && p->item[i].weight < p->weight)
            add(last, &p->item[i]);
        else
            p->item[count++] = p->item[i];
    }
    p->count = count;
}

/* In one go, as nobody knows before what all records did that are up to so many accesses. */
static void
cut_into_pieces(const struct blocks *b, const struct record_list *records, uint64_t most_accesses,
                struct pieces *p)
{
    const uint64_t *at = records->at;
    const struct exit *x;
    struct piece *last = NULL;
    uint64_t sum = 0;
    size_t words;

    for (; sum < most_accesses && (x = record_at(b, records, at, &words)) != NULL; at += words) {
        const uint64_t accesses = record_accesses(b, x, at);
        const double more = weight_of(x, accesses);
        if (last == NULL || last->weight >= p->weight || more >= p->weight) {
            while (p->count == PIECES_MOST)
                make_larger(p);
            last = &p->item[p->count++];
            *last = (struct piece){.begin = at};
        }
        sum += accesses;
        last->accesses += accesses;
        last->weight += more;
        last->bin[bin_of(x)] += more;
    }
    p->records = *records;
    if (at <= records->end) { /* else they are all in it */
        p->records.end = at;
        p->records.cut = NULL;
    }
}

/* Of parts one after the other. */
static struct record_list
records_of(const struct pieces *p, size_t first, size_t last)
{
    const uint64_t *begin = p->item[first].begin;

    if (last + 1 < p->count)
        return (struct record_list){begin, p->item[last + 1].begin, NULL};
    return (struct record_list){begin, p->records.end, p->records.cut};
}

/* Pieces one after the other that have code in common are made one. */
static void
join_alike(struct pieces *p)
{
    size_t parts = 0;

    for (size_t i = 0; i < p->count; i++) {
        if (parts != 0 && in_common(&p->item[parts - 1], &p->item[i]) >= ALIKE)
            add(&p->item[parts - 1], &p->item[i]);
        else
            p->item[parts++] = p->item[i];
    }
    p->count = parts;
}

/* What is too short to be a part goes with the neighbour that it has most in common with: where one kind
 * of code ends within a piece, the piece may be like neither. */
static void
join_short(struct pieces *p)
{
    for (size_t i = 0; i < p->count && p->count > 1;) {
        if (p->item[i].accesses >= FEWEST_ACCESSES) {
            i++;
            continue;
        }
        const bool is_last = i + 1 == p->count;
        const bool goes_with_next =
            i == 0 || (!is_last && in_common(&p->item[i + 1], &p->item[i]) >
                                       in_common(&p->item[i - 1], &p->item[i]));
        const size_t into = goes_with_next ? i : i - 1;
        add(&p->item[into], &p->item[into + 1]);
        p->count--;
        memmove(&p->item[into + 1], &p->item[into + 2], (p->count - into - 1) * sizeof(p->item[0]));
        i = into;
    }
}

/* Where best to cut between two parts: most of what is like the one before, most like the other behind. */
static const uint64_t *
best_cut(const struct blocks *b, const struct piece *before, const struct piece *behind,
         const struct record_list *both)
{
    const uint64_t *at = both->at, *best = behind->begin;
    double score = 0, most = 0;
    const struct exit *x;
    size_t words;

    for (; (x = record_at(b, both, at, &words)) != NULL; at += words) {
        if (score > most) {
            most = score;
            best = at;
        }
        const unsigned bin = bin_of(x);
        const double more = weight_of(x, record_accesses(b, x, at));
        score += before->bin[bin] / before->weight > behind->bin[bin] / behind->weight ? more : -more;
    }
    return best;
}

/* What tells how fast code is. */
struct paces {
    struct core_model *model;
    const struct blocks *blocks;
    const uint64_t *segment_base;
    const struct pieces *pieces;
    double known[PARTS_MOST]; /* cycles an access; below 0: not asked for yet, as it takes a millisecond */
};

static double
pace(struct paces *p, size_t part)
{
    if (p->known[part] < 0) {
        const struct record_list records = records_of(p->pieces, part, part);
        const struct core_times t =
            core_model_run(p->model, p->blocks, p->segment_base, &records);
        p->known[part] = t.accesses != 0 ? t.distant_cycles / (double)t.accesses : 0;
    }
    return p->known[part];
}

static bool
are_unlike(struct paces *p, size_t part, size_t next)
{
    const double a = pace(p, part), b = pace(p, next);
    return a > UNLIKE_SPEED * b || b > UNLIKE_SPEED * a;
}

struct burst_parts
find_parts(struct core_model *m, const struct blocks *blocks, const uint64_t segment_base[3],
           const struct record_list *records, uint64_t most_accesses, bool is_sought)
{
    struct burst_parts parts = {1, {records->end}};
    struct pieces p;

    p.count = 0;
    p.weight = FIRST_WEIGHT;
    cut_into_pieces(blocks, records, most_accesses, &p);
    join_alike(&p);
    if (p.count > MIXED_MOST)
        return parts; /* code that alternates stays one burst */
    join_short(&p);
    join_alike(&p);
    if (p.count < 2 || p.count > PARTS_MOST)
        return parts;
    for (size_t i = 1; i < p.count; i++) {
        const struct record_list both = records_of(&p, i - 1, i);
        p.item[i].begin = best_cut(blocks, &p.item[i - 1], &p.item[i], &both);
    }
    parts.count = 0;
    struct paces paces = {m, blocks, segment_base, &p, {-1, -1, -1, -1}};
    for (size_t i = 1; i < p.count; i++)
        if (is_sought || are_unlike(&paces, i - 1, i))
            parts.end[parts.count++] = p.item[i].begin;
    parts.end[parts.count++] = records->end;
    return parts;
}
