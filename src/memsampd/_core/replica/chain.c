/* The replica runs while the target is held, and goes over system calls: the target makes them. */
#include "core.h"
#include "chain.h"
#include "supplying.h"
#include "trace_buffer.h"

#include <errno.h>
#include <math.h>
#include <sys/syscall.h>

#define SHORTEST_TRIAL 0.25  /* of the hold, where it did not do again and again */
#define TRIAL_MARGIN 1.5     /* by which the pace may rise */
#define CALL_SECONDS 0.02    /* that a call may take before it counts as asleep */
#define STRETCH_SECONDS 0.05 /* for a stretch, on a machine whose CPUs are all busy */
#define STRETCH_FACTOR 10.0
#define FEW_PAGES 64u /* of more, those that hold code are gone through */

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

/* Whether memory of which something was translated may be other code now. */
static bool
changes_code(const struct blocks *b, const struct call_outputs *out)
{
    const struct code_page *known = b->pages.items;

    for (size_t i = 0; i < out->ranges && !out->is_no_code; i++) {
        const struct call_range *range = &out->range[i];
        if (range->end - range->start <= FEW_PAGES * PAGE_BYTES) {
            for (uint64_t at = range->start; at < range->end; at = page_of(at) + PAGE_BYTES)
                if (blocks_use(b, at, range->end - at))
                    return true;
            continue;
        }
        for (size_t k = 0; k < b->pages.capacity; k++)
            if (known[k].used != 0 && known[k].address >= range->start && known[k].address < range->end)
                return true;
    }
    return false;
}

bool
look_for_company(struct burst *b)
{
    const bool has_run = company_has_run(&b->company);

    b->result->has_company |= has_run;
    return has_run;
}

/* `has_company`: another thread ran since the replica's pages were read, and may have written to them. */
static void
take_outputs(struct burst *b, const struct user_regs_struct *before, long number, long result,
             bool has_company)
{
    struct runner *r = b->r;
    struct call_outputs out;

    if (!call_outputs(&r->remote, before, number, result, &out)) {
        r->end = RUN_SYSCALL;
        return;
    }
    if (changes_code(&r->blocks, &out)) {
        runner_end(r, RUN_MODIFIED, 0);
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
    pages_refresh(&r->pages, &r->process, &r->remote, has_company || b->has_company);
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
        return runner_end(r, RUN_EXIT, 0);
    if (got == CALL_SIGNAL)
        return runner_end(r, RUN_SIGNAL, h->signal);
    if (got == CALL_LATE)
        held_interrupt(h);
    if (got == CALL_LATE || !is_equal(&before, &h->regs)) {
        if (got == CALL_REACHED)
            held_enter_call(h);
        runner_rewind(r, words);
        return runner_end(r, RUN_DIFFERED, number);
    }
    b->result->equal++;
    const bool had_company = look_for_company(b); /* before it sleeps, perhaps */
    got = held_to_call(h, b->alarm, now_seconds() + CALL_SECONDS);
    if (got == CALL_GONE)
        return runner_end(r, RUN_EXIT, 0);
    if (got == CALL_LATE) {
        h->is_asleep = true;
        return runner_end(r, RUN_ASLEEP, number);
    }
    if (got == CALL_REACHED && is_broken_off((long)h->regs.rax))
        held_settle_call(h);
    if (got == CALL_SIGNAL || is_broken_off((long)h->regs.rax))
        return runner_end(r, RUN_SIGNAL, h->signal);
    r->end = RUN_GOES_ON;
    take_outputs(b, &before, number, (long)h->regs.rax, look_for_company(b) || had_company);
    if (r->end != RUN_GOES_ON)
        return false;
    b->result->calls++;
    return runner_cross(r, &h->regs);
}

double
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

double
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

void
run_chain(struct burst *b)
{
    struct runner *r = b->r;
    const double give_up = now_seconds() + b->order->chain_seconds;
    double started;
    size_t words;

    held_begin_calls(&b->held);
    do {
        started = now_seconds();
        words = runner_words(r);
        run_held(b);
        if (r->end == RUN_SYSCALL)
            r->end = chain_end(b, give_up);
    } while (r->end == RUN_SYSCALL && cross(b, words, now_seconds() - started));
    held_end_calls(&b->held);
}
