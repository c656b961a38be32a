/* A burst from the wait for its thread to the thread's release, in a thread of its own. */
#include "core.h"
#include "beyond.h"
#include "burst_cpus.h"
#include "chain.h"
#include "stops.h"
#include "stored_memory.h"
#include "supplying.h"
#include "trace_buffer.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#define RETRY_NANOSECONDS 500000L /* after the first stop in vain; twice as long after each */
#define LONGEST_RETRY_NANOSECONDS 8000000L
#define PREDICTED_SHARE_OF_TRIAL 0.8
#define STORED_SHARE 0.9 /* of what is left of the hold */
#define CHECKED_SHARE 0.4 /* of the hold, for comparing code that the program can write to */
#define KEPT_SHARE 0.2 /* such code as can be compared in it is kept, and what was used lately */
#define KEPT_BURSTS 32
#define LIST_SHARE 0.2 /* of the hold, for reading the list of areas anew: if that takes longer it stays as it was */
#define LOOK_SECONDS 0.001
#define PARTING_ROUNDS 2000
#define PARTING_NANOSECONDS 50000L
#define BURST_STACK_BYTES (512u << 10)
#define ARRIVAL_LOOK_MILLISECONDS 20 /* between looks whether the burst is cancelled */
#define ROOM_BYTES (4u << 20) /* for the translations of one burst */
#define CODE_PAGES_MOST 16384u /* of the target, of which we have copies */

/* Whether the target has nothing where the translator's area is. */
static bool
area_is_free(struct runner *r)
{
    return remote_find(&r->remote, r->process.area_address) == NULL &&
           remote_find(&r->remote, r->process.area_address + AREA_BYTES - 1) == NULL;
}

/* Stop the thread where a burst can begin; what is wasted on stops in vain is no more than a hold. */
static enum held_status
hold(struct burst *b)
{
    const struct burst_order *order = b->order;
    struct timespec pause = {0, RETRY_NANOSECONDS};
    const double give_up = now_seconds() + order->patience_seconds;
    double wasted = 0.0, longest = 0.0;
    unsigned holds = 0;

    for (;;) {
        alarm_set(b->alarm, now_seconds() + LOOK_SECONDS); /* if another thread of ours was told */
        enum held_status status = held_stop(&b->held, &b->r->remote, order->tid,
                                            order->patience_seconds, &b->r->is_cancelled);
        const bool is_over = now_seconds() > give_up || b->r->is_cancelled || b->held.is_asleep ||
                             wasted + b->held.held_seconds >= order->hold_seconds;
        if (status == HELD_OK || is_over ||
            (status != HELD_NOT_RUNNING && status != HELD_IN_SYSCALL && status != HELD_IN_RSEQ)) {
            b->held.held_seconds += wasted;
            b->held.holds += holds;
            b->held.longest_seconds = fmax(longest, b->held.longest_seconds);
            return status;
        }
        wasted += b->held.held_seconds;
        longest = fmax(longest, b->held.longest_seconds);
        holds += b->held.holds;
        alarm_set(b->alarm, 0); /* or it would end the pause */
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 < LONGEST_RETRY_NANOSECONDS ? pause.tv_nsec * 2
                                                                      : LONGEST_RETRY_NANOSECONDS;
    }
}

/* Wait until the thread comes to one of the places. All that takes time has been done before: it runs on
 * until it is held. */
static bool
arrives(const struct burst *b)
{
    const struct burst_order *order = b->order;
    struct pollfd look[] = {{.fd = order->arrival, .events = POLLIN},
                            {.fd = order->arrival_end, .events = POLLIN}};
    const double give_up = now_seconds() + order->arrival_seconds;

    if (order->arrival < 0)
        return true;
    if (ioctl(order->arrival_leader, PERF_EVENT_IOC_ENABLE, 0) < 0)
        return false;
    while (!b->r->is_cancelled && now_seconds() < give_up)
        if (poll(look, 2, ARRIVAL_LOOK_MILLISECONDS) > 0)
            return (look[0].revents & POLLIN) != 0; /* else it has ended, or the wait */
    return false;
}

/* The replica stands where the held thread does, with the pages that it is likely to need. */
static bool
prepare(struct burst *b)
{
    struct runner *r = b->r;

    remote_forget(&r->remote);
    r->remote.list_seconds = LIST_SHARE * b->order->hold_seconds;
    r->remote.is_running = b->has_company;
    b->result->is_lost = !area_is_free(r); /* another one is made elsewhere */
    if (b->result->is_lost)
        return runner_end(r, RUN_NO_MEMORY, 0);
    if (!runner_enter(r, &b->held, b->order->accesses))
        return runner_end(r, RUN_UNSUPPORTED, 0);
    const enum code_check checked =
        blocks_check_code(&r->blocks, true, now_seconds() + b->order->hold_seconds * CHECKED_SHARE);
    if (checked != CODE_CHECKED)
        return runner_end(r, checked == CODE_LATE ? RUN_HOLD : RUN_NO_MEMORY, 0);
    const double most = b->order->hold_seconds * PREDICTED_SHARE;
    const double some = trial_seconds(b) * PREDICTED_SHARE_OF_TRIAL;
    pages_predict(&r->pages, &r->process, &r->remote, fmin(some, most));
    return true;
}

/* Before the hold: what takes time. Where no more code is kept than can be compared again in the hold, that need not
 * be gone on from unchecked; but translating it again and again would take longer. */
static bool
get_ready(struct runner *r, const struct burst_order *order)
{
    const uint32_t kept_bursts = order->beyond_seconds > 0 ? KEPT_BURSTS : 0;

    r->blocks.burst++;
    pages_begin(&r->pages);
    remote_look_round(&r->remote);
    blocks_forget_written(&r->blocks);
    if (blocks_check_code(&r->blocks, false, INFINITY) != CODE_CHECKED ||
        !blocks_forget_code(&r->blocks, KEPT_SHARE * order->hold_seconds, kept_bursts))
        return false;
    if (r->blocks.code_used + ROOM_BYTES > AREA_CODE_BYTES ||
        r->blocks.pages.count > CODE_PAGES_MOST)
        blocks_flush(&r->blocks);
    return !blocks_want_guiding(&r->blocks) || blocks_guide(&r->blocks) == 0;
}

/* From now on the target runs, but for a thread that sleeps in a call: that is let go when it is over. */
static void
let_go(struct burst *b)
{
    if (!b->held.is_asleep)
        held_release(&b->held);
    b->r->remote.is_running = true;
    b->r->remote.list_seconds = INFINITY;
}

/* The target runs on, and nobody believes what the replica does. */
static void
take_dry(struct burst *b)
{
    struct runner *r = b->r;

    let_go(b);
    unhurry(b);
    go_anywhere(b);
    r->pages.is_dry = true;
    if (runner_enter(r, &b->held, b->order->accesses))
        run_to_learn(b, b->order->dry_seconds);
    else
        runner_end(r, RUN_UNSUPPORTED, 0);
}

static void
take_held(struct burst *b)
{
    struct runner *r = b->r;
    const double translated = r->translation_seconds;

    b->result->held_words = SIZE_MAX;
    b->result->first = b->held.regs;
    b->has_company = b->result->has_company = company_is_running(&b->company);
    const bool is_checked = prepare(b);
    if (is_checked)
        run_chain(b);
    const bool goes_on = goes_beyond(b);
    if (goes_on)
        pages_read_stored(&r->pages, &r->process, &r->remote, STORED_SHARE * hold_left(b));
    if (!b->held.is_asleep) /* else others ran behind the last record, perhaps */
        look_for_company(b);
    let_go(b);
    if (r->end == RUN_FULL)
        r->trial_share = fmax(r->trial_share, TRIAL_SHARE);
    bool was_cold = r->end == RUN_COLD || (r->end == RUN_HOLD && r->translation_seconds - translated >
                                                                    COLD_SHARE * b->held.held_seconds);
    if (goes_on || r->end == RUN_HOLD || r->end == RUN_DEADLINE) {
        unhurry(b);
        go_aside(b); /* nobody waits now while it is stepped on */
        runner_settle(r);
    }
    if (goes_on) {
        if (!is_checked && blocks_check_code(&r->blocks, false, INFINITY) != CODE_CHECKED)
            runner_end(r, RUN_NO_MEMORY, 0);
        else
            go_beyond(b);
    } else if (was_cold && !b->held.is_asleep) {
        unhurry(b);
        go_anywhere(b);
        go_on_dry(b);
    }
    if (goes_further(b)) {
        unhurry(b);
        go_further(b);
    }
}

static void
take(struct burst *b)
{
    struct runner *r = b->r;
    const struct burst_order *order = b->order;

    sched_getaffinity(0, sizeof b->cpus, &b->cpus);
    if (!process_seize(&r->process)) {
        b->result->is_lost = true;
        runner_end(r, RUN_EXIT, 0);
        return;
    }
    if (!get_ready(r, order)) {
        runner_end(r, RUN_NO_MEMORY, 0);
        process_park(&r->process);
        return;
    }
    company_meet(&b->company, r->remote.pid, order->tid);
    go_to_cpu_of(order->tid, r->process.pid);
    if (1e3 * order->hold_seconds <= HURRIED_MILLISECONDS)
        hurry(b);
    b->result->status = arrives(b) ? hold(b) : HELD_NOT_REACHED;
    if (order->arrival >= 0)
        ioctl(order->arrival_leader, PERF_EVENT_IOC_DISABLE, 0);
    b->result->started_seconds = b->held.since_seconds;
    if (b->result->status == HELD_OK && order->dry_seconds > 0)
        take_dry(b);
    else if (b->result->status == HELD_OK)
        take_held(b);
    unhurry(b);
    company_part(&b->company);
    if (r->end == RUN_EXIT && process_is_dead(&r->process))
        b->result->is_lost = true;
    process_park(&r->process);
}

static void *
run_burst(void *argument)
{
    struct burst *b = argument;
    struct burst_result *result = b->result;
    double own = thread_cpu_seconds();

    b->r->end = RUN_GOES_ON;
    if ((b->alarm = alarm_create()) == NULL) /* or as many signals wait as may: RLIMIT_SIGPENDING */
        runner_end(b->r, RUN_NO_MEMORY, 0);
    else
        take(b);
    alarm_free(b->alarm);
    result->end = b->r->end;
    result->last = b->r->regs;
    if (result->held_words == SIZE_MAX)
        result->released = result->last;
    result->error = b->held.error;
    result->held_seconds = b->held.held_seconds;
    result->longest_seconds = b->held.longest_seconds;
    result->holds = b->held.holds;
    result->cut_short = b->held.cut_short;
    result->pages_predicted = b->r->pages.predicted;
    result->pages_missed = b->r->pages.missed;
    result->replica_cpu_seconds = process_cpu_since(&b->r->process);
    result->tracer_cpu_seconds = thread_cpu_seconds() - own;
    return NULL;
}

/* When the target has been let go for good. */
static void
count_recorded(struct burst *b)
{
    struct runner *r = b->r;
    struct burst_result *result = b->result;

    result->accesses = runner_accesses(r);
    if (result->held_words == SIZE_MAX)
        result->held_accesses = result->accesses;
    for (unsigned i = 0; i < result->furthers; i++)
        result->further[i].accesses += result->accesses;
}

/* The end of a thread takes effect on its tracees with some delay. */
static void
wait_until_parted(pid_t tid)
{
    const struct timespec pause = {0, PARTING_NANOSECONDS};

    for (unsigned round = 0; round < PARTING_ROUNDS && !thread_is_untraced(tid); round++)
        nanosleep(&pause, NULL);
}

int
burst_take(struct runner *r, const struct burst_order *order, struct burst_result *result)
{
    struct burst b = {.r = r, .order = order, .result = result};
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    memset(result, 0, sizeof *result);
    result->status = HELD_UNEXPECTED;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, BURST_STACK_BYTES);
    sigfillset(&all); /* the program's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, run_burst, &b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        errno = error;
        return -1;
    }
    pthread_join(thread, NULL);
    process_end_burst(&r->process); /* a sleeper has been let go before */
    if (b.held.is_asleep)
        wait_until_parted(order->tid);
    count_recorded(&b);
    return 0;
}
