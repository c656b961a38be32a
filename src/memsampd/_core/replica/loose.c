#include "core.h"
#include "loose.h"

#include <sys/ptrace.h>
#include <sys/wait.h>

#define CLOSE_SECONDS 60e-6 /* of a run: the stop itself is a third of that */
#define CLOSE_STOPS 6       /* then it pays to let it loose, which takes as long as some stops */
#define QUIET_SECONDS 300e-6
#define LEAST_SECONDS 300e-6 /* of a run that is let loose */
#define LEAST_SHARE 0.7      /* of the other CPU */
#define WORTH_TRYING 0.25    /* in the mean: in vain it costs 0.3 ms, else it doubles a burst */
#define TRY_EVERY 8          /* bursts, where it got less */
#define LEARNING 0.25
#define ROUNDS_A_LOOK 64
#define STEPS_OUT 6

void
loose_choose(struct loose *l, const cpu_set_t *cpus)
{
    cpu_set_t ours;

    CPU_ZERO(&l->away);
    if (sched_getaffinity(0, sizeof l->home, &l->home) == 0) {
        ours = l->home;
        if (CPU_COUNT(&ours) > 1) {
            CPU_ZERO(&ours);
            CPU_SET(sched_getcpu(), &ours);
        }
        CPU_AND(&l->away, cpus, &ours);
        CPU_XOR(&l->away, cpus, &l->away);
    }
    l->may_begin = CPU_COUNT(&l->away) > 0 &&
                   (l->share >= WORTH_TRYING || ++l->refusals % TRY_EVERY == 0);
}

void
loose_forbid(struct loose *l, const cpu_set_t *cpus)
{
    l->may_begin = false;
    l->home = *cpus;
    l->policy = SCHED_OTHER;
}

void
loose_note_stop(struct loose *l, double ran_seconds)
{
    l->close_stops = ran_seconds < CLOSE_SECONDS ? l->close_stops + 1 : 0;
}

bool
loose_is_due(struct loose *l, double seconds_left)
{
    return l->may_begin && l->close_stops >= CLOSE_STOPS && seconds_left >= LEAST_SECONDS;
}

static void
begin_measuring(struct loose *l, const struct process *p)
{
    l->begun_seconds = now_seconds();
    l->begun_cpu_seconds = process_cpu_seconds(p);
}

void
loose_begin(struct loose *l, struct process *p, const struct area *area)
{
    const struct sched_param none = {.sched_priority = 0};

    l->policy = sched_getscheduler(p->pid);
    if (l->policy == SCHED_FIFO) /* others may need that CPU */
        sched_setscheduler(p->pid, SCHED_OTHER, &none);
    sched_setaffinity(p->pid, sizeof l->away, &l->away);
    begin_measuring(l, p);
    post_clear(area->bytes);
    l->has_frame = false;
    l->is_on = true;
    p->is_ours = false;
    ptrace(PTRACE_DETACH, p->pid, NULL, NULL);
}

enum loose_wait
loose_wait(struct loose *l, struct process *p, const struct area *area, double until_seconds,
           const volatile int *is_cancelled)
{
    const double quiet_from = now_seconds();
    double now = quiet_from;

    for (unsigned round = 1;; round++) {
        if (post_state(area->bytes) != POST_EMPTY) {
            l->posted_seconds = now_seconds();
            l->has_frame = post_read(area->bytes, p->area_address, 0, 0, &l->stop);
            return l->has_frame ? LOOSE_STOPPED : LOOSE_GONE;
        }
        if (now >= until_seconds || *is_cancelled)
            return LOOSE_LATE;
        if (now - quiet_from > QUIET_SECONDS) {
            l->close_stops = 0;
            return LOOSE_QUIET;
        }
        while (round % ROUNDS_A_LOOK != 0 && post_state(area->bytes) == POST_EMPTY) {
            __builtin_ia32_pause();
            round++;
        }
        now = now_seconds();
    }
}

/* From anywhere in the handler before it goes back. */
static bool
leave_handler(const struct process *p, struct user_regs_struct *regs)
{
    process_unblock(p); /* a step would reset the handler of a blocked signal */
    regs->rip = p->area_address + post_handler_end();
    regs->orig_rax = (unsigned long)-1;
    return write_registers(p->pid, regs);
}

/* It spun for too long, and sleeps. */
static bool
wake(struct loose *l, struct process *p, const struct area *area)
{
    struct user_regs_struct regs;
    int status;

    if (!process_catch(p, &status) || !read_registers(p->pid, &regs))
        return false;
    p->is_ours = false;
    const bool is_right = post_is_handler(regs.rip - p->area_address) && leave_handler(p, &regs);
    post_clear(area->bytes);
    begin_measuring(l, p);
    ptrace(PTRACE_DETACH, p->pid, NULL, NULL);
    return is_right;
}

bool
loose_answer(struct loose *l, struct process *p, const struct area *area)
{
    const enum post_state state = post_answer(area->bytes, &l->stop);

    l->has_frame = false;
    return state == POST_EMPTY || (state == POST_ASLEEP && wake(l, p, area));
}

void
loose_rest(struct loose *l, const struct area *area)
{
    if (l->is_on && l->has_frame)
        post_put_to_sleep(area->bytes);
}

/* Out of its handler, which it is about to leave. */
static enum loose_end
step_out(struct process *p, int *status)
{
    struct user_regs_struct regs;
    int waited;

    for (int steps = 0; steps < STEPS_OUT && read_registers(p->pid, &regs); steps++) {
        if (!post_is_handler(regs.rip - p->area_address))
            return LOOSE_AT_CODE;
        if (ptrace(PTRACE_SINGLESTEP, p->pid, NULL, NULL) < 0)
            break;
        while ((waited = held_wait(p->pid, status)) == 1)
            ;
        if (waited < 0)
            break;
        if (WSTOPSIG(*status) != SIGTRAP)
            return LOOSE_AT_SIGNAL;
    }
    return LOOSE_AT_END;
}

/* Caught by the tracer's interrupt: where? */
static enum loose_end
find_out(struct loose *l, struct process *p, const struct area *area, int *status)
{
    struct user_regs_struct regs;

    if (!read_registers(p->pid, &regs))
        return LOOSE_AT_END;
    const uint64_t offset = regs.rip - p->area_address;
    if (!post_is_handler(offset))
        return LOOSE_AT_CODE;
    if (offset > post_handler_end()) {
        process_unblock(p);
        return step_out(p, status);
    }
    const bool is_answered =
        offset >= post_handler_posted() && post_state(area->bytes) == POST_EMPTY;
    l->has_frame = !is_answered &&
                   post_read(area->bytes, p->area_address, regs.rdx, regs.rsi, &l->stop);
    post_clear(area->bytes);
    if (!leave_handler(p, &regs) || (!is_answered && !l->has_frame))
        return LOOSE_AT_END;
    return is_answered ? step_out(p, status) : LOOSE_AT_POST;
}

/* What it got of its CPU until then, as is known when it stands: less, if others ran there, too. */
static void
learn_share(struct loose *l, const struct process *p, double until_seconds)
{
    const double share = (process_cpu_seconds(p) - l->begun_cpu_seconds) /
                         (until_seconds - l->begun_seconds);

    l->share += LEARNING * ((share < 1 ? share : 1) - l->share);
    l->may_begin &= share >= LEAST_SHARE;
}

enum loose_end
loose_end(struct loose *l, struct process *p, const struct area *area, int *status)
{
    const struct sched_param second = {.sched_priority = 1};

    const double until = l->has_frame ? l->posted_seconds : now_seconds();

    l->is_on = l->has_frame = false;
    /* Before that: to come to its stop it has to run. */
    if (l->policy == SCHED_FIFO)
        sched_setscheduler(p->pid, SCHED_FIFO, &second);
    sched_setaffinity(p->pid, sizeof l->home, &l->home);
    if (!process_catch(p, status))
        return LOOSE_AT_END;
    learn_share(l, p, until);
    return is_event_stop(*status) ? find_out(l, p, area, status) : LOOSE_AT_SIGNAL;
}
