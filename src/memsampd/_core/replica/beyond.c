/* The replica goes on while the target runs: to end its burst, to see where registers go, to learn code. */
#include "core.h"
#include "beyond.h"
#include "burst_cpus.h"
#include "circles.h"
#include "stops.h"
#include "stored_memory.h"
#include "supplying.h"
#include "trace_buffer.h"

#include <math.h>
#include <string.h>

#define BUSY_FACTOR 5.0
#define SHORTEST_BEYOND 0.4 /* of the time beyond the hold */
#define SHORTEST_RUN_SECONDS 0.0005
#define LEARNING_SECONDS 0.02 /* behind a burst that came to cold code */
#define LEARNING_LOOK_SECONDS 0.004 /* longer runs look so often whether they still learn */
#define COUNTING_SECONDS 0.005 /* so often it is looked how far a run beyond the hold is ... */
#define FIRST_LOOK_SECONDS 0.001 /* ... and at first sooner */
#define FEW_ACCESSES 5000u /* where no more will come of a run beyond the hold it ends ... */
#define LEAST_ACCESSES 1000u /* ... with so many, which say something of the smallest caches */
#define SUPPLIED 2.0 /* as long as reading a page takes; the rest of the time is for running on them */
#define FURTHER_SECONDS 0.003 /* CPU time */
#define PART_WORDS 512 /* more than a record has */

/* Run on while the target does the same, to learn code; forms that are not known are asked for. */
static void
run_dry(struct burst *b, double seconds)
{
    struct runner *r = b->r;
    const double give_up = now_seconds() + seconds;

    do {
        if (r->end == RUN_COLD)
            r->end = RUN_GOES_ON;
        runner_run(r, b->alarm, give_up);
    } while (r->end == RUN_COLD && now_seconds() < give_up && b->order->describe != NULL &&
             b->order->describe(b->order->context));
}

/* Of this thread and the replica. */
static double
cpu_seconds(const struct burst *b)
{
    return thread_cpu_seconds() + process_cpu_seconds(&b->r->process);
}

/* How a run beyond the hold got on. */
struct progress {
    uint64_t accesses;
    double left; /* CPU seconds */
};

/* Whether it goes so slowly from miss to miss that little will come of it. Where blocks are few enough to be
 * read, it will soon go faster. */
static bool
is_hopeless(const struct pages *p, const struct progress *before, const struct progress *now)
{
    const double made = (double)(now->accesses - before->accesses), spent = before->left - now->left;

    return now->accesses >= LEAST_ACCESSES && p->blocks_met > p->blocks_most && spent > SHORTEST_RUN_SECONDS &&
           (double)now->accesses + made * now->left / spent < FEW_ACCESSES;
}

/* A burst as it is, to come back to. */
struct standing {
    uint64_t part[PART_WORDS]; /* of a record in progress */
    size_t part_words;
    enum run_end end;
    long number;
    uint64_t ip;
    size_t words; /* of whole records: these may be moved */
    struct exit part_exit;
    bool has_cut_record;
    struct user_regs_struct regs;
};

static void
save(const struct runner *r, struct standing *s)
{
    const size_t room = runner_room_words(r);

    s->part_words = room < PART_WORDS ? room : PART_WORDS;
    memcpy(s->part, r->written, s->part_words * sizeof *s->part);
    s->end = r->end;
    s->number = r->number;
    s->ip = r->ip;
    s->words = runner_words(r);
    s->part_exit = r->part_exit;
    s->has_cut_record = r->has_cut_record;
    s->regs = r->regs;
}

/* Unless the replica is gone. */
static void
restore(struct runner *r, const struct standing *s)
{
    memcpy((uint64_t *)(uintptr_t)r->start + s->words, s->part, s->part_words * sizeof *s->part);
    if (r->end == RUN_EXIT && process_is_dead(&r->process))
        return;
    r->end = s->end;
    r->number = s->number;
    r->ip = s->ip;
    r->written = r->start + s->words;
    r->part_exit = s->part_exit;
    r->has_cut_record = s->has_cut_record;
    r->regs = s->regs;
}

/* Where it stood after a quarter to half of its time so far, and later; at first where it began. */
struct half_way {
    struct standing half, later;
    double later_seconds;
};

static void
look_back(const struct runner *r, struct half_way *way, double spent)
{
    if (spent < 2 * way->later_seconds)
        return;
    way->half = way->later;
    save(r, &way->later);
    way->later_seconds = spent;
}

/* Run on for so much CPU time of ours, on a machine whose CPUs are all busy for some times that. What moves
 * much memory by few instructions takes little room: so it is looked how far it is now and then. */
static void
run_on(struct burst *b, double seconds, struct half_way *way)
{
    struct runner *r = b->r;
    const double began = cpu_seconds(b), give_up = now_seconds() + BUSY_FACTOR * seconds;
    struct progress before, now = {runner_accesses(r), seconds};

    for (;;) {
        before = now;
        const double spent = seconds - before.left;
        run_dry(b, fmin(before.left, fmin(fmax(spent, FIRST_LOOK_SECONDS), COUNTING_SECONDS)));
        now.left = fmin(seconds - (cpu_seconds(b) - began), give_up - now_seconds());
        if (r->end != RUN_HOLD || now.left < SHORTEST_RUN_SECONDS || r->is_cancelled)
            return;
        now.accesses = runner_accesses(r);
        if (now.accesses >= b->order->accesses) {
            r->end = RUN_FULL;
            return;
        }
        if (is_hopeless(&r->pages, &before, &now))
            return;
        look_back(r, way, seconds - now.left);
        runner_resume(r);
    }
}

void
go_on_dry(struct burst *b)
{
    struct standing before;

    save(b->r, &before);
    b->r->end = before.end == RUN_COLD ? RUN_COLD : RUN_GOES_ON;
    b->r->pages.is_dry = true;
    b->r->wanted = 0;
    run_dry(b, LEARNING_SECONDS);
    restore(b->r, &before);
}

bool
goes_beyond(const struct burst *b)
{
    struct runner *r = b->r;

    return b->order->beyond_seconds > 0 && (r->end == RUN_HOLD || r->end == RUN_COLD) &&
           !b->held.is_asleep && !r->is_cancelled && runner_accesses(r) < b->order->accesses;
}

/* What a program comes to that goes on from one moment with the data of another, if they do not fit. */
static bool
went_astray(enum run_end end)
{
    return end == RUN_FAULT || end == RUN_UNSUPPORTED || end == RUN_MODIFIED ||
           end == RUN_UNREADABLE || end == RUN_EXIT;
}

void
go_beyond(struct burst *b)
{
    struct runner *r = b->r;
    struct standing before;
    struct half_way way;
    const double seconds = b->order->beyond_seconds * r->beyond_share;

    save(r, &before);
    way = (struct half_way){.half = before, .later = before};
    b->result->held_words = runner_words(r);
    b->result->held_accesses = runner_accesses(r);
    b->result->released = r->regs;
    pages_show_read(&r->pages, &r->process, &r->remote);
    pages_predict(&r->pages, &r->process, &r->remote, seconds * PREDICTED_SHARE);
    r->pages.reads_around = true;
    if (r->beyond_share == 1.0) /* else there is no room for them */
        r->pages.blocks_most = (size_t)(seconds / (BLOCK_PAGES * SUPPLIED * r->pages.seconds_a_read));
    r->has_cut_record = false;
    r->end = before.end == RUN_COLD ? RUN_COLD : RUN_GOES_ON;
    run_on(b, seconds, &way);
    runner_settle(r);
    r->pages.reads_around = false;
    r->pages.blocks_most = 0;
    r->pages.is_cut = r->end == RUN_HOLD;
    if (r->end == RUN_COLD)
        r->end = RUN_HOLD;
    const bool is_astray = went_astray(r->end);
    if (is_astray) /* what led it there has been there for a while */
        restore(r, &way.half);
    const bool is_circle =
        goes_in_a_circle(&r->blocks, r->start + b->result->held_words, r->written);
    /* The next one is to have its whole hold. */
    if (is_astray || is_circle || (r->end != RUN_FULL && r->end != RUN_HOLD))
        r->trial_share = 1.0;
    else if (r->trial_share > TRIAL_SHARE)
        r->trial_share = TRIAL_SHARE;
    /* Where a burst has no room for all pages that it would touch, more bursts tell more than long ones. */
    if (2 * runner_accesses(r) >= b->order->accesses)
        r->beyond_share = fmin(r->beyond_share * 2, 1.0);
    else if (r->pages.here >= PAGES_AROUND_MOST)
        r->beyond_share = fmax(r->beyond_share / 2, SHORTEST_BEYOND);
    if (is_circle)
        restore(r, &before);
}

bool
goes_further(const struct burst *b)
{
    const struct runner *r = b->r;

    return r->end == RUN_FULL && runner_room_words(r) < PART_WORDS && b->order->beyond_seconds > 0 &&
           b->result->calls == 0 && !b->held.is_asleep && !r->is_cancelled;
}

void
go_further(struct burst *b)
{
    struct runner *r = b->r;
    struct burst_result *result = b->result;
    struct standing before;
    const size_t words = runner_words(r);
    const double give_up = now_seconds() + b->order->beyond_seconds, began = cpu_seconds(b);
    const uint64_t missed = r->pages.missed;
    uint64_t seen = 0;

    save(r, &before);
    if (!runner_make_room(r, words))
        return;
    go_aside(b);
    r->pages.is_dry = true;
    r->wanted = 0;
    do {
        runner_go_further(r, words);
        run_dry(b, give_up - now_seconds());
        if (r->end != RUN_FULL || !r->has_cut_record || runner_room_words(r) >= PART_WORDS)
            break; /* or there is no room for pages */
        seen += count_accesses(&r->blocks, r->start + words, r->written);
        result->further[result->furthers++] = (struct moment){.accesses = seen, .regs = r->regs};
    } while (result->furthers < FURTHER_MOST && cpu_seconds(b) - began < FURTHER_SECONDS);
    r->pages.missed = missed;
    if (went_astray(r->end))
        result->furthers = 0;
    restore(r, &before);
}

void
run_to_learn(struct burst *b, double seconds)
{
    struct runner *r = b->r;
    const double give_up = now_seconds() + seconds;
    double ran = 0.0;

    for (;;) {
        const uint64_t known = r->blocks.translated_instructions;
        const double began = cpu_seconds(b);

        run_dry(b, fmin(give_up - now_seconds(), LEARNING_LOOK_SECONDS));
        ran = r->blocks.translated_instructions > known ? 0.0 : ran + cpu_seconds(b) - began;
        if (ran >= LEARNING_LOOK_SECONDS / 2 || now_seconds() >= give_up)
            return;
        if (r->end == RUN_HOLD)
            runner_resume(r);
        else if (r->end != RUN_FULL || !runner_begin_again(r)) /* nobody reads what was recorded */
            return;
    }
}
