#include "core.h"
#include "burst.h"
#include "stored_memory.h"
#include "supplying.h"
#include "trace_buffer.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RETRY_NANOSECONDS 500000L /* after the first stop in vain; twice as long after each */
#define LONGEST_RETRY_NANOSECONDS 8000000L
#define PREDICTED_SHARE 0.4 /* of the hold, and of the time beyond it */
#define PREDICTED_SHARE_OF_TRIAL 0.8
#define STORED_SHARE 0.9 /* of what is left of the hold */
#define SHORTEST_TRIAL 0.25  /* of the hold, where it did not do again and again */
#define TRIAL_MARGIN 1.5     /* by which the pace may rise */
#define CALL_SECONDS 0.02   /* that a call may take before it counts as asleep */
#define LOOK_SECONDS 0.001
#define STRETCH_SECONDS 0.05 /* for a stretch, on a machine whose CPUs are all busy */
#define STRETCH_FACTOR 10.0
#define PARTING_ROUNDS 2000
#define PARTING_NANOSECONDS 50000L
#define BURST_STACK_BYTES (512u << 10)
#define HURRIED_NICENESS (-15)
#define HURRIED_SECONDS 0.02 /* for longer, nobody may be kept from a CPU */
#define COLD_SHARE 0.2
#define BUSY_FACTOR 5.0
#define SHORTEST_BEYOND 0.4 /* of the time beyond the hold */
#define SHORTEST_RUN_SECONDS 0.0005
#define LEARNING_SECONDS 0.02 /* behind a burst that came to cold code */
#define LEARNING_LOOK_SECONDS 0.004 /* longer runs look so often whether they still learn */
#define COUNTING_SECONDS 0.005 /* so often it is looked how far a run beyond the hold is */
#define FURTHER_SECONDS 0.003 /* CPU time */
#define PART_WORDS 512 /* more than a record has */
#define ARRIVAL_LOOK_MILLISECONDS 20 /* between looks whether the burst is cancelled */
#define ROOM_BYTES (4u << 20) /* for the translations of one burst */

/* What the burst's thread works with. */
struct burst {
    struct runner *r;
    const struct burst_order *order;
    struct burst_result *result;
    struct alarm *alarm;
    cpu_set_t cpus; /* where this thread may run */
    struct held held;
};

/* ---- Where it runs ---- */

/* With its tracer and its replica on its own CPU, which it does not use while it is held, nothing waits
 * for another CPU to wake up. Where we may not use that one, both go to one of ours. The target's own
 * affinity is left alone. */
static void
go_to_cpu_of(pid_t tid, pid_t replica)
{
    cpu_set_t ours, one;
    int cpu = thread_cpu(tid);

    if (sched_getaffinity(0, sizeof ours, &ours) < 0)
        return;
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &ours))
        cpu = sched_getcpu();
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        sched_setaffinity(replica, sizeof one, &one);
}

/* Back to where this thread might run at first, with its replica. */
static void
go_anywhere(struct burst *b)
{
    sched_setaffinity(0, sizeof b->cpus, &b->cpus);
    sched_setaffinity(b->r->process.pid, sizeof b->cpus, &b->cpus);
}

/* Go before others, who would prolong the hold; as far as that is permitted. */
static void
hurry(pid_t replica)
{
    /* We go before the replica: it would not make way for one of its own rank, when the time is over. */
    const struct sched_param first = {.sched_priority = 2}, second = {.sched_priority = 1};

    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0 &&
        sched_setscheduler(replica, SCHED_FIFO, &second) == 0)
        return;
    setpriority(PRIO_PROCESS, 0, HURRIED_NICENESS);
    setpriority(PRIO_PROCESS, (id_t)replica, HURRIED_NICENESS);
}

static void
unhurry(pid_t replica)
{
    const struct sched_param none = {.sched_priority = 0};

    sched_setscheduler(replica, SCHED_OTHER, &none);
    setpriority(PRIO_PROCESS, (id_t)replica, 0);
    sched_setscheduler(0, SCHED_OTHER, &none);
}

/* ---- A chain ---- */

/* The registers that the program sees must be the same before a call; but for how long it is to wait,
 * which programs work out from the time of day. */
static bool
is_equal(const struct user_regs_struct *replica, const struct user_regs_struct *target)
{
    const bool waits_by_r10 = replica->rax == SYS_epoll_wait || replica->rax == SYS_epoll_pwait;
    const bool waits_by_rdx = replica->rax == SYS_poll;

    return target->rip == replica->rip + 2 && target->orig_rax == replica->rax &&
           target->rsp == replica->rsp && target->rdi == replica->rdi &&
           target->rsi == replica->rsi &&
           (target->rdx == replica->rdx || waits_by_rdx) &&
           (target->r10 == replica->r10 || waits_by_r10) && target->r8 == replica->r8 &&
           target->r9 == replica->r9 && target->rbx == replica->rbx &&
           target->rbp == replica->rbp && target->r12 == replica->r12 &&
           target->r13 == replica->r13 && target->r14 == replica->r14 &&
           target->r15 == replica->r15;
}

/* Whether a call's result says that a signal broke it off: most of those are to be made again. */
static bool
is_broken_off(long result)
{
    return result == -EINTR || (result <= -512 && result >= -516);
}

static void
take_outputs(struct burst *b, const struct user_regs_struct *before, long number, long result)
{
    struct runner *r = b->r;
    struct call_outputs out;

    if (!call_outputs(&r->remote, before, number, result, &out)) {
        r->end = RUN_SYSCALL;
        return;
    }
    if (out.changes_areas)
        remote_forget(&r->remote);
    for (size_t i = 0; i < out.ranges; i++) {
        if (out.is_dropping)
            pages_drop(&r->pages, &r->process, out.range[i].start, out.range[i].end);
        else
            pages_mark_written(&r->pages, out.range[i].start, out.range[i].end);
    }
    if (b->held.rseq_address != 0) /* the kernel tells there which CPU it runs on */
        pages_mark_written(&r->pages, b->held.rseq_address, b->held.rseq_address + 32);
    pages_refresh(&r->pages, &r->process, &r->remote, b->order->has_company);
}

/* Have the target make the call that its replica stands before, and put the replica behind it. False:
 * the burst ends. `words` is what was recorded before this stretch, of which `run_seconds` is the time. */
static bool
cross(struct burst *b, size_t words, double run_seconds)
{
    struct runner *r = b->r;
    struct held *h = &b->held;
    const struct user_regs_struct before = r->regs;
    const long number = (long)before.rax;
    double now = now_seconds();

    if (!call_is_known(number))
        return false;
    b->result->compared++;
    enum held_call got =
        held_to_call(h, b->alarm, now + STRETCH_SECONDS + STRETCH_FACTOR * run_seconds);
    if (got == CALL_GONE)
        return runner_end(b->r, RUN_EXIT, 0);
    if (got == CALL_SIGNAL)
        return runner_end(b->r, RUN_SIGNAL, h->signal);
    if (got == CALL_LATE)
        held_interrupt(h);
    if (got == CALL_LATE || !is_equal(&before, &h->regs)) {
        if (got == CALL_REACHED)
            held_enter_call(h);
        runner_rewind(r, words);
        return runner_end(b->r, RUN_DIFFERED, number);
    }
    b->result->equal++;
    got = held_to_call(h, b->alarm, now_seconds() + CALL_SECONDS);
    if (got == CALL_GONE)
        return runner_end(b->r, RUN_EXIT, 0);
    if (got == CALL_LATE) {
        h->is_asleep = true;
        return runner_end(b->r, RUN_ASLEEP, number);
    }
    if (got == CALL_REACHED && is_broken_off((long)h->regs.rax))
        held_settle_call(h);
    if (got == CALL_SIGNAL || is_broken_off((long)h->regs.rax))
        return runner_end(b->r, RUN_SIGNAL, h->signal);
    r->end = RUN_GOES_ON;
    take_outputs(b, &before, number, (long)h->regs.rax);
    if (r->end != RUN_GOES_ON)
        return false;
    b->result->calls++;
    return runner_cross(r, &h->regs);
}

/* Held time that is left. */
static double
hold_left(const struct burst *b)
{
    double held = b->held.held_seconds;

    if (b->held.since_seconds != 0)
        held += now_seconds() - b->held.since_seconds;
    return b->order->hold_seconds - held;
}

/* Why a chain is not to go on over the next call; RUN_SYSCALL: it is. */
static enum run_end
chain_end(struct burst *b, double give_up)
{
    if (b->r->is_cancelled)
        return RUN_DEADLINE;
    if (runner_accesses(b->r) > b->order->accesses)
        return RUN_FULL;
    return hold_left(b) <= 0 || now_seconds() > give_up ? RUN_HOLD : RUN_SYSCALL;
}

/* Held time after which it is judged whether the rest of it would do; it all, where nothing is to follow, or
 * nothing came of that the last time. */
static double
trial_seconds(const struct burst *b)
{
    return b->order->hold_seconds * (b->order->beyond_seconds > 0 ? b->r->trial_share : 1.0);
}

/* Whether the burst may come to its end while the target is held, at the pace of `run_seconds`. */
static bool
is_within_reach(const struct burst *b, double run_seconds)
{
    const double done = (double)runner_accesses(b->r), left = (double)b->order->accesses - done;

    return left * run_seconds <= TRIAL_MARGIN * done * hold_left(b);
}

/* Run for as long as the target may be held; where the burst can be gone on with while the target runs, for
 * a part of that if the whole of it would not do either. If so, less is tried the next time. Not where it has
 * gone over a call, as it would end at the next one, nor where code is cold, as it is translated soonest now. */
static void
run_held(struct burst *b)
{
    struct runner *r = b->r;
    const double started = now_seconds(), translated = r->translation_seconds;
    const double rest = b->order->hold_seconds - trial_seconds(b);

    if (rest > 0 && b->result->calls == 0) {
        runner_run(r, b->alarm, started + hold_left(b) - rest);
        if (r->end != RUN_HOLD)
            return;
        const double ran = now_seconds() - started;
        const bool is_cold = r->translation_seconds - translated > COLD_SHARE * ran;
        if (!is_cold && !is_within_reach(b, ran)) {
            r->trial_share = fmax(r->trial_share / 2, SHORTEST_TRIAL);
            return;
        }
        runner_resume(r);
    }
    runner_run(r, b->alarm, now_seconds() + hold_left(b));
}

static void
run_chain(struct burst *b)
{
    struct runner *r = b->r;
    const double give_up = now_seconds() + b->order->chain_seconds;

    for (;;) {
        double started = now_seconds();
        size_t words = runner_words(r);
        run_held(b);
        if (r->end != RUN_SYSCALL)
            return;
        r->end = chain_end(b, give_up);
        if (r->end != RUN_SYSCALL || !cross(b, words, now_seconds() - started))
            return;
    }
}

/* ---- A burst ---- */

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
        enum held_status status =
            held_stop(&b->held, b->r->remote.pid, order->tid);
        const bool is_over = now_seconds() > give_up || b->r->is_cancelled ||
                             wasted + b->held.held_seconds >= order->hold_seconds;
        if (status == HELD_OK || is_over ||
            (status != HELD_NOT_RUNNING && status != HELD_IN_SYSCALL && status != HELD_IN_RSEQ)) {
            b->held.held_seconds += wasted;
            b->held.holds += holds;
            b->held.longest_seconds =
                longest > b->held.longest_seconds ? longest : b->held.longest_seconds;
            return status;
        }
        wasted += b->held.held_seconds;
        longest = b->held.longest_seconds > longest ? b->held.longest_seconds : longest;
        holds += b->held.holds;
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
    r->remote.is_running = b->order->has_company;
    if (!area_is_free(r) || blocks_check_code(&r->blocks, true) < 0)
        return runner_end(b->r, RUN_NO_MEMORY, 0);
    if (!runner_enter(r, &b->held, b->order->accesses))
        return runner_end(b->r, RUN_UNSUPPORTED, 0);
    const double most = b->order->hold_seconds * PREDICTED_SHARE;
    const double some = trial_seconds(b) * PREDICTED_SHARE_OF_TRIAL;
    pages_predict(&r->pages, &r->process, &r->remote, some < most ? some : most);
    return true;
}

/* Before the hold: what takes time. */
static bool
get_ready(struct runner *r)
{
    pages_begin(&r->pages);
    remote_forget(&r->remote);
    if (blocks_check_code(&r->blocks, false) < 0)
        return false;
    if (r->blocks.code_used + ROOM_BYTES > AREA_CODE_BYTES)
        blocks_flush(&r->blocks);
    return !blocks_want_guiding(&r->blocks) || blocks_guide(&r->blocks) == 0;
}

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

/* Run on for so much CPU time of ours, on a machine whose CPUs are all busy for some times that. What moves
 * much memory by few instructions takes little room: so it is looked how far it is now and then. */
static void
run_on(struct burst *b, double seconds)
{
    struct runner *r = b->r;
    const double began = cpu_seconds(b), give_up = now_seconds() + BUSY_FACTOR * seconds;
    double left = seconds;

    for (;;) {
        run_dry(b, fmin(left, COUNTING_SECONDS));
        left = fmin(seconds - (cpu_seconds(b) - began), give_up - now_seconds());
        if (r->end != RUN_HOLD || left < SHORTEST_RUN_SECONDS || r->is_cancelled)
            return;
        if (runner_accesses(r) >= b->order->accesses) {
            r->end = RUN_FULL;
            return;
        }
        runner_resume(r);
    }
}

/* To one CPU that the target does not use now, if there is one: a stop is quickest if both share it. */
static void
go_aside(struct burst *b)
{
    const int theirs = thread_cpu(b->order->tid);
    cpu_set_t one = b->cpus;

    if (theirs >= 0 && theirs < CPU_SETSIZE && CPU_COUNT(&one) > 1)
        CPU_CLR(theirs, &one);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &one) && kept++ != 0)
            CPU_CLR(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(b->r->process.pid, sizeof one, &one);
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

/* Behind a burst that came to code which was not translated: go on, and have it translated for the
 * next one. What was recorded stays. */
static void
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

/* Whether a burst is to be gone on with when its hold is over: the time was too short, not the code. */
static bool
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

/* The target runs on, and so does its replica, on memory as the target has it from now on: what is
 * recorded is what the target may well do, not what it does. Nothing of it is kept if it went astray. */
static void
go_beyond(struct burst *b)
{
    struct runner *r = b->r;
    struct standing before;
    const double seconds = b->order->beyond_seconds * r->beyond_share;

    save(r, &before);
    b->result->held_words = runner_words(r);
    b->result->released = r->regs;
    go_aside(b);
    pages_show_read(&r->pages, &r->process, &r->remote);
    pages_predict(&r->pages, &r->process, &r->remote, seconds * PREDICTED_SHARE);
    r->pages.reads_around = true;
    r->pages.reads_blocks = r->beyond_share == 1.0; /* else there is no room for them */
    r->has_cut_record = false;
    r->end = before.end == RUN_COLD ? RUN_COLD : RUN_GOES_ON;
    run_on(b, seconds);
    r->pages.reads_around = r->pages.reads_blocks = false;
    r->pages.is_cut = r->end == RUN_HOLD;
    if (r->end == RUN_COLD)
        r->end = RUN_HOLD;
    if (r->end != RUN_FULL && r->end != RUN_HOLD) /* the next one is to have its whole hold */
        r->trial_share = 1.0;
    else if (r->trial_share > TRIAL_SHARE)
        r->trial_share = TRIAL_SHARE;
    /* Where a burst has no room for all pages that it would touch, more bursts tell more than long ones. */
    if (2 * runner_accesses(r) >= b->order->accesses)
        r->beyond_share = fmin(r->beyond_share * 2, 1.0);
    else if (r->pages.here >= PAGES_AROUND_MOST)
        r->beyond_share = fmax(r->beyond_share / 2, SHORTEST_BEYOND);
    if (went_astray(r->end))
        restore(r, &before);
}

/* Behind a full burst: go on for a while, to see where the registers go. What is recorded is for nobody,
 * and where it went astray nothing is known. */
static void
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

/* Run to learn code, until none is new for a while. */
static void
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

/* From now on the target runs, but for a thread that sleeps in a call: that is let go when it is over. */
static void
let_go(struct burst *b)
{
    if (!b->held.is_asleep)
        held_release(&b->held);
    b->r->remote.is_running = true;
}

/* The target runs on, and nobody believes what the replica does. */
static void
take_dry(struct burst *b)
{
    struct runner *r = b->r;

    let_go(b);
    unhurry(r->process.pid);
    go_anywhere(b);
    r->pages.is_dry = true;
    if (runner_enter(r, &b->held, b->order->accesses))
        run_to_learn(b, b->order->dry_seconds);
    else
        runner_end(b->r, RUN_UNSUPPORTED, 0);
}

static void
take_held(struct burst *b)
{
    struct runner *r = b->r;
    const double translated = r->translation_seconds;

    b->result->held_words = SIZE_MAX;
    b->result->first = b->held.regs;
    if (prepare(b))
        run_chain(b);
    const bool goes_on = goes_beyond(b);
    if (goes_on)
        pages_read_stored(&r->pages, &r->process, &r->remote, STORED_SHARE * hold_left(b));
    let_go(b);
    if (r->end == RUN_FULL)
        r->trial_share = fmax(r->trial_share, TRIAL_SHARE);
    bool was_cold = r->end == RUN_COLD || (r->end == RUN_HOLD && r->translation_seconds - translated >
                                                                    COLD_SHARE * b->held.held_seconds);
    if (goes_on) {
        unhurry(r->process.pid);
        go_beyond(b);
    } else if (was_cold && !b->held.is_asleep) {
        unhurry(r->process.pid);
        go_anywhere(b);
        go_on_dry(b);
    }
    if (r->end == RUN_FULL && runner_room_words(r) < PART_WORDS && b->order->beyond_seconds > 0 &&
        b->result->calls == 0 && !b->held.is_asleep && !r->is_cancelled) {
        unhurry(r->process.pid);
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
        runner_end(b->r, RUN_EXIT, 0);
        return;
    }
    if (!get_ready(r)) {
        runner_end(b->r, RUN_NO_MEMORY, 0);
        process_park(&r->process);
        return;
    }
    go_to_cpu_of(order->tid, r->process.pid);
    if (order->hold_seconds <= HURRIED_SECONDS)
        hurry(r->process.pid);
    b->result->status = arrives(b) ? hold(b) : HELD_NOT_REACHED;
    if (order->arrival >= 0)
        ioctl(order->arrival_leader, PERF_EVENT_IOC_DISABLE, 0);
    b->result->started_seconds = b->held.since_seconds;
    if (b->result->status == HELD_OK && order->dry_seconds > 0)
        take_dry(b);
    else if (b->result->status == HELD_OK)
        take_held(b);
    unhurry(r->process.pid);
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
    if ((b->alarm = alarm_create()) == NULL)
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

    result->accesses = result->held_accesses = runner_accesses(r);
    if (result->held_words < runner_words(r))
        result->held_accesses =
            count_accesses(&r->blocks, r->start, r->start + result->held_words);
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
    wait_until_parted(order->tid);
    count_recorded(&b);
    return 0;
}
