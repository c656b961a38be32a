#include "core_model.h"
#include "expansion.h"

#include <emmintrin.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 5          /* instructions a cycle */
#define ACCESSES_WIDTH 3 /* accesses a cycle */
#define WINDOW 256       /* instructions under way */
#define LOAD_CYCLES 4
#define WRONG_GUESS_CYCLES 13 /* from the moment the branch is known */

#define STRETCHES 4
#define STRETCH_INSTRUCTIONS 12288
#define WARM_INSTRUCTIONS 4096

/* ---- Branches: a small predictor with a geometric series of histories (Seznec's TAGE) ---- */

#define GUESS_BITS 13
#define TABLES 4 /* by so many latest branches; the last one ends loops of a hundred rounds: */
static const unsigned history_bits[TABLES] = {0, 10, 30, 110};

struct guess {
    uint8_t tag;    /* 0: none yet */
    int8_t counter; /* taken if not negative */
};

struct predictor {
    struct guess guess[TABLES][1 << GUESS_BITS];
    uint64_t target[1 << GUESS_BITS]; /* of indirect ones, and above it where they went to */
    unsigned __int128 history;
};

static uint32_t
hash(uint64_t value)
{
    return (uint32_t)(value * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static uint64_t
remembered(const struct predictor *p, unsigned table)
{
    const unsigned __int128 latest =
        p->history & (((unsigned __int128)1 << history_bits[table]) - 1);

    return (uint64_t)latest ^ (uint64_t)(latest >> 64) * UINT64_C(0xD6E8FEB86659FD93);
}

static void
learn(struct guess *g, bool is_taken)
{
    if (is_taken && g->counter < 3)
        g->counter++;
    else if (!is_taken && g->counter > -4)
        g->counter--;
}

static bool
is_sure(const struct guess *g)
{
    return g->counter > 0 || g->counter < -1;
}

/* Whether a branch was guessed as it went: by the longest history that is sure, else by none. One that was
 * not met before was: the program has met it. */
static bool
guess_branch(struct predictor *p, uint32_t branch, bool is_taken)
{
    struct guess *slot[TABLES];
    uint8_t tag[TABLES];
    unsigned by = TABLES, longest = TABLES;

    for (unsigned i = 0; i < TABLES; i++) {
        const uint32_t place = hash((uint64_t)branch << 32 ^ remembered(p, i) * 0x9E3779B1u);
        slot[i] = &p->guess[i][place >> (32 - GUESS_BITS)];
        tag[i] = (uint8_t)(place & 0xff) | 1;
        if (slot[i]->tag != tag[i])
            continue;
        longest = i;
        by = i == 0 || is_sure(slot[i]) ? i : by;
    }
    p->history = p->history << 1 | is_taken;
    if (by == TABLES) {
        *slot[0] = (struct guess){tag[0], is_taken ? 0 : -1};
        return true;
    }
    const bool is_right = (slot[by]->counter >= 0) == is_taken;
    learn(slot[by], is_taken);
    if (longest != by)
        learn(slot[longest], is_taken);
    else if (!is_right && by + 1 < TABLES)
        *slot[by + 1] = (struct guess){tag[by + 1], is_taken ? 0 : -1};
    return is_right;
}

/* The same of an indirect one, by where it went. */
static bool
guess_target(struct predictor *p, uint32_t branch, uint32_t to)
{
    uint64_t *target = &p->target[hash((uint64_t)branch << 32 ^ (uint64_t)(p->history & 0xfff)) >>
                                  (32 - GUESS_BITS)];
    const uint64_t now = (uint64_t)to << 32 | branch;
    const bool is_right = *target == now || (uint32_t)*target != branch;

    *target = now;
    p->history = p->history << 2 | (hash((uint64_t)to << 32) >> 30);
    return is_right;
}

/* ---- Which accesses are distant ---- */

#define SETS 64
#define WAYS 8
#define STREAMS 64 /* lines that were fetched lately */

struct nearest {
    uint64_t line[SETS][WAYS]; /* the latest first */
    uint32_t fetched[STREAMS]; /* the low bits of each: as many as are compared at once */
    unsigned next;
};

/* Whether a line before or behind this one was fetched lately. */
static bool
is_beside_fetched(const struct nearest *n, uint64_t line)
{
    const uint32_t before = (uint32_t)line - 1, behind = (uint32_t)line + 1;
    uint32_t found = 0;

    for (unsigned i = 0; i < STREAMS; i++)
        found |= (uint32_t)(n->fetched[i] == before) | (uint32_t)(n->fetched[i] == behind);
    return found != 0;
}

static bool
is_distant(struct nearest *n, uint64_t address)
{
    const uint64_t line = address >> 6;
    uint64_t *way = n->line[line % SETS];
    unsigned i = 0;

    while (i < WAYS - 1 && way[i] != line)
        i++;
    const bool is_there = way[i] == line;
    for (; i > 0; i--)
        way[i] = way[i - 1];
    way[0] = line;
    if (is_there)
        return false;
    const bool is_near = is_beside_fetched(n, line);
    n->fetched[n->next++ % STREAMS] = (uint32_t)line;
    return !is_near;
}

/* ---- Cores ---- */

#define STORES 256 /* latest stores by address: loads of the same word wait for them */

/* Cycles on the core whose caches always hit, and on the other one: what is done is the same. */
typedef __m128d times;

struct cores {
    times ready[64];       /* by register: when it is known */
    times retired[WINDOW]; /* by instruction: when it and all before it had ended */
    times fetched;         /* when the next one can be */
    times ports;           /* when there is one for the next access */
    struct {
        times ready;
        uint64_t word;
    } store[STORES];
};

struct core_model {
    struct predictor predictor;
    struct nearest nearest;
    struct cores cores;
    struct user_regs_struct regs; /* scratch for recipes, as in struct expansion */
    uint8_t xstate[RECIPE_XSTATE_BYTES];
    uint64_t count; /* instructions so far */
    uint64_t stored[CORE_MODEL_STORES];
    size_t stores;
};

static inline times
latest(const struct cores *c, uint64_t registers, times time)
{
    for (; registers != 0; registers &= registers - 1)
        time = _mm_max_pd(c->ready[__builtin_ctzll(registers)], time);
    return time;
}

/* What an instruction accesses. */
struct touched {
    uint64_t load_word, store_word; /* 0: none */
    unsigned accesses, distant_cycles;
    bool loads;
};

static inline void
step(struct cores *c, uint64_t count, const struct dependences *d, const struct touched *t,
     bool is_wrong)
{
    const times begin = _mm_max_pd(c->fetched, c->retired[count % WINDOW]);
    times known = latest(c, d->data, begin);

    c->ports = _mm_max_pd(c->ports, begin) + _mm_set1_pd((double)t->accesses / ACCESSES_WIDTH);
    if (t->loads) {
        const times port = c->ports - _mm_set1_pd(1.0 / ACCESSES_WIDTH); /* of the last one */
        const times more = _mm_set_pd(t->distant_cycles, 0);
        times loaded = latest(c, d->address, port) + _mm_set1_pd(LOAD_CYCLES) + more;
        const unsigned at = hash(t->load_word) % STORES;
        if (c->store[at].word == t->load_word)
            loaded = _mm_max_pd(c->store[at].ready + _mm_set1_pd(LOAD_CYCLES), loaded);
        known = _mm_max_pd(loaded, known);
    }
    known += _mm_set1_pd(d->latency_cycles);
    for (uint64_t set = d->results; set != 0; set &= set - 1)
        c->ready[__builtin_ctzll(set)] = known;
    if (t->store_word != 0) {
        const unsigned at = hash(t->store_word) % STORES;
        c->store[at].word = t->store_word;
        c->store[at].ready = known;
    }
    c->retired[count % WINDOW] = _mm_max_pd(known, c->retired[(count + WINDOW - 1) % WINDOW]);
    c->fetched = begin + _mm_set1_pd(1.0 / WIDTH);
    if (is_wrong)
        c->fetched = _mm_max_pd(known + _mm_set1_pd(WRONG_GUESS_CYCLES), c->fetched);
}

/* ---- Records ---- */

struct walk {
    struct core_model *model;
    const struct blocks *blocks;
    const uint64_t *segment_base;
    uint64_t instructions, accesses, distant;
};

static void
touch_address(struct walk *w, struct touched *t, uint64_t address, bool is_write)
{
    const bool distant = is_distant(&w->model->nearest, address);

    w->distant += distant;
    t->accesses++;
    if (is_write) {
        t->store_word = address >> 3 | 1ull << 63;
        w->model->stored[w->model->stores++ % CORE_MODEL_STORES] = address;
    } else {
        t->load_word = address >> 3 | 1ull << 63;
        t->distant_cycles |= distant ? DISTANT_CYCLES : 0;
        t->loads = true;
    }
}

struct touching {
    struct walk *walk;
    struct touched *touched;
};

/* A recipe_emit: `context` is a struct touching. */
static int
touch_reference(void *context, uint64_t Py_UNUSED(ip), uint64_t address, unsigned Py_UNUSED(size_bytes),
                int is_write)
{
    const struct touching *now = context;

    touch_address(now->walk, now->touched, address, is_write != 0);
    return 0;
}

/* Of a repeated instruction the first elements, and the last: all between come one after the other. */
static void
touch_special(struct walk *w, struct touched *t, const struct special *s, const uint64_t *words)
{
    struct core_model *m = w->model;
    const bool is_repeated = s->recipe.flags & RECIPE_REPEATED;
    const uint64_t all = special_accesses(s, words), size_bytes = s->recipe.reference[0].size_bytes;
    const unsigned before = t->accesses;

    special_operands(s, words, &m->regs, m->xstate);
    if (is_repeated && all == 0)
        return;
    recipe_references(&s->recipe, &m->regs, m->xstate, touch_reference, &(struct touching){w, t});
    if (!is_repeated)
        return;
    const int64_t moved = repeated_bytes(s, words, &m->regs);
    const uint64_t last = (uint64_t)moved + (moved < 0 ? size_bytes : -size_bytes);
    m->regs.rsi += last;
    m->regs.rdi += last;
    struct walk swept = *w; /* it is in the cache then, but nothing waits for it */
    struct touched unseen = {0};
    recipe_references(&s->recipe, &m->regs, m->xstate, touch_reference,
                      &(struct touching){&swept, &unseen});
    t->accesses = before + (all < 100000 ? (unsigned)all : 100000);
}

/* What the accesses of an instruction touch, from `*access` on. */
static struct touched
touch(struct walk *w, const struct exit *x, unsigned instruction, size_t *access,
      const uint64_t *words)
{
    const struct accesses *a = &w->blocks->accesses;
    const size_t end = (size_t)x->first_access + x->accesses;
    struct touched t = {0};

    for (; *access < end && a->instruction[*access] == instruction; ++*access) {
        if (a->operand[*access].source == ACCESS_SPECIAL)
            touch_special(w, &t, &w->blocks->special[a->delta[*access]], words);
        else
            touch_address(w, &t, address_of_access(w->blocks, w->segment_base, *access, words),
                          a->is_write[*access]);
    }
    w->accesses += t.accesses;
    return t;
}

/* Whether the predictor is wrong about an instruction of a record, if that is a branch. One branch is the same
 * in all blocks that have it. */
static bool
is_wrong_guess(struct walk *w, const struct exit *x, const struct instruction *now, bool is_last,
               const struct exit *next)
{
    const struct blocks *b = w->blocks;
    struct predictor *p = &w->model->predictor;
    const bool leaves = is_last && x != &b->exit[b->block[x->block].first_exit]; /* the path, by its side */

    switch (now->flow) {
    case FLOW_BRANCH:
    case FLOW_SHORT_BRANCH:
        return !guess_branch(p, (uint32_t)now->ip, leaves != now->is_followed);
    case FLOW_JUMP_INDIRECT:
    case FLOW_CALL_INDIRECT:
        if (!is_last)
            return !guess_target(p, (uint32_t)now->ip, (uint32_t)now[1].ip);
        return next != NULL &&
               !guess_target(p, (uint32_t)now->ip, (uint32_t)b->block[next->block].ip);
    default: /* a core has a stack of what calls return to */
        return false;
    }
}

static void
run_record(struct walk *w, const struct exit *x, const struct exit *next, const uint64_t *words)
{
    const struct block *block = &w->blocks->block[x->block];
    struct core_model *m = w->model;
    size_t access = x->first_access;
    const size_t end = access + x->accesses;
    const bool is_cut = x->words == 0; /* it did not leave its block */

    if (x->kind == EXIT_CROSSED) { /* the kernel's: its block has no instruction for it */
        w->instructions++;
        return;
    }
    for (unsigned i = 0; i < x->instructions || access < end; i++) { /* a repeated one may not be done */
        const struct instruction *now = &w->blocks->instruction[block->first_instruction + i];
        const struct touched t = touch(w, x, i, &access, words);
        const bool is_wrong = is_wrong_guess(w, x, now, !is_cut && i + 1u == x->instructions, next);
        step(&m->cores, m->count, &now->dependences, &t, is_wrong);
        m->count++;
    }
    w->instructions += x->instructions;
}

static times
time_of(const struct core_model *m)
{
    return m->cores.retired[(m->count + WINDOW - 1) % WINDOW];
}

static void
add_stretch(struct core_times *sum, const struct walk *w, const struct walk *warm, times lasted)
{
    sum->instructions += w->instructions - warm->instructions;
    sum->accesses += w->accesses - warm->accesses;
    sum->distant += w->distant - warm->distant;
    sum->near_cycles += lasted[0];
    sum->distant_cycles += lasted[1];
}

/* One stretch from `*at` on, moved behind it. */
static void
run_stretch(struct walk *w, struct core_times *sum, const struct record_list *records,
            const uint64_t **at)
{
    struct core_model *m = w->model;
    struct walk warm = *w; /* a stretch that ends before is told whole */
    times begin = time_of(m);
    bool is_warm = false;
    size_t words, next_words;
    const uint64_t begun = w->instructions;

    for (const struct exit *x = record_at(w->blocks, records, *at, &words), *next;
         x != NULL && w->instructions - begun < STRETCH_INSTRUCTIONS; x = next, words = next_words) {
        next = record_at(w->blocks, records, *at + words, &next_words);
        run_record(w, x, next, *at);
        *at += words;
        if (!is_warm && w->instructions - begun >= WARM_INSTRUCTIONS) {
            is_warm = true;
            warm = *w;
            begin = time_of(m);
        }
    }
    add_stretch(sum, w, &warm, time_of(m) - begin);
}

struct core_times
core_model_run(struct core_model *m, const struct blocks *blocks, const uint64_t segment_base[3],
               const struct record_list *records)
{
    struct walk w = {m, blocks, segment_base, 0, 0, 0};
    struct core_times sum = {0};
    const uint64_t *at = records->at;
    const size_t all = (size_t)(records->end - at);
    size_t words;

    m->stores = 0;
    m->regs.fs_base = segment_base[ACCESS_FS];
    m->regs.gs_base = segment_base[ACCESS_GS];
    for (unsigned i = 0; i < STRETCHES; i++) {
        const uint64_t *from = records->at + all / STRETCHES * i;
        while (at < from && record_at(blocks, records, at, &words) != NULL)
            at += words;
        run_stretch(&w, &sum, records, &at);
    }
    return sum;
}

size_t
core_model_stores(const struct core_model *m, const uint64_t **address)
{
    *address = m->stored;
    return m->stores < CORE_MODEL_STORES ? m->stores : CORE_MODEL_STORES;
}

struct core_model *
core_model_create(void)
{
    return calloc(1, sizeof(struct core_model));
}
