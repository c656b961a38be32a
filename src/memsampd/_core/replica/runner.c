/* A run: the replica is entered, runs on from stop to stop, and ends. */
#include "core.h"
#include "stops.h"
#include "trace_buffer.h"

#include <elf.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define FIRST_WORDS_PER_ACCESS 0.5
#define LOOKS_SECONDS 0.05

const char *
run_end_name(enum run_end end)
{
    static const char *const names[] = {
        "",      "full",     "hold",       "syscall", "asleep", "signal",   "differed", "unsupported",
        "fault", "modified", "unreadable", "cold",    "cold",   "deadline", "exit",     "memory",
    };
    return names[end];
}

bool
runner_end(struct runner *r, enum run_end end, long number)
{
    r->end = end;
    r->number = number;
    return false;
}

void
runner_resume(struct runner *r)
{
    r->end = RUN_GOES_ON;
    r->has_cut_record = false;
}

/* Have waits end in time, and meanwhile now and then: it may be cancelled. */
static void
look_up(struct alarm *alarm, double until_seconds)
{
    double soon = now_seconds() + LOOKS_SECONDS;

    if (alarm != NULL)
        alarm_set(alarm, until_seconds < soon ? until_seconds : soon);
}

/* On to its next stop. */
static void
run_to_stop(struct runner *r, struct alarm *alarm, double until_seconds)
{
    double started = now_seconds();
    bool is_late = r->is_cancelled || started >= until_seconds;
    int status, waited;

    if (is_late)
        ptrace(PTRACE_INTERRUPT, r->process.pid, NULL, NULL);
    if (ptrace(PTRACE_CONT, r->process.pid, NULL, NULL) < 0) {
        runner_end(r, RUN_EXIT, 0);
        return;
    }
    while ((waited = held_wait(r->process.pid, &status)) == 1) {
        if (is_late)
            continue;
        if (now_seconds() < until_seconds && !r->is_cancelled) {
            look_up(alarm, until_seconds);
            continue;
        }
        is_late = true;
        ptrace(PTRACE_INTERRUPT, r->process.pid, NULL, NULL);
    }
    r->run_seconds += now_seconds() - started;
    r->traps++;
    if (waited < 0)
        runner_end(r, RUN_EXIT, 0);
    else if (is_event_stop(status) && is_late)
        runner_take_stop(r, r->is_cancelled ? RUN_DEADLINE : RUN_HOLD);
    else if (status >> 16 == 0)
        runner_take_signal(r, WSTOPSIG(status));
}

static void
enter_block(struct runner *r)
{
    uint32_t block = NO_BLOCK;
    double started = now_seconds();
    enum translation result = r->from_exit >= 0
                                  ? blocks_link(&r->blocks, (uint32_t)r->from_exit, &block)
                                  : blocks_translate(&r->blocks, r->ip, &block);

    r->translation_seconds += now_seconds() - started;
    if (result != TRANSLATED) {
        runner_end(r, result == TRANSLATION_NEEDS_FORM ? RUN_COLD
                  : result == TRANSLATION_FULL     ? RUN_FLUSHED
                                                   : RUN_NO_MEMORY, 0);
        return;
    }
    if (r->is_indirect)
        blocks_publish(&r->blocks, block);
    r->regs.rip = r->blocks.area_address + r->blocks.block[block].cold;
    r->needs_target = false;
    if (!write_registers(r->process.pid, &r->regs))
        runner_end(r, RUN_EXIT, 0);
}

static void
start_at(struct runner *r, uint64_t ip)
{
    r->end = RUN_GOES_ON;
    r->number = 0;
    r->ip = r->regs.rip = ip;
    r->regs.orig_rax = (unsigned long)-1;
    r->from_exit = r->call_exit = -1;
    r->is_indirect = false;
    r->has_cut_record = false;
    r->needs_target = true;
}

bool
runner_enter(struct runner *r, const struct held *h, uint64_t accesses)
{
    struct iovec state = {(void *)h->xstate, h->xstate_bytes};

    r->regs = h->regs;
    r->expansion.segment_base[ACCESS_FS] = h->regs.fs_base;
    r->expansion.segment_base[ACCESS_GS] = h->regs.gs_base;
    runner_begin_recording(r, accesses);
    blocks_forget_written(&r->blocks);
    start_at(r, h->regs.rip);
    return ptrace(PTRACE_SETREGSET, r->process.pid, (void *)NT_X86_XSTATE, &state) == 0;
}

enum run_end
runner_run(struct runner *r, struct alarm *alarm, double until_seconds)
{
    look_up(alarm, until_seconds);
    while (r->end == RUN_GOES_ON || runner_goes_on_filling(r)) {
        while (r->needs_target && r->end == RUN_GOES_ON)
            enter_block(r);
        if (r->end == RUN_GOES_ON)
            run_to_stop(r, alarm, until_seconds);
    }
    return r->end;
}

bool
runner_cross(struct runner *r, const struct user_regs_struct *behind)
{
    uint64_t *record = (uint64_t *)(uintptr_t)r->written;

    if (r->call_exit < 0 || record + 1 > buffer_end(r)) {
        r->end = r->call_exit < 0 ? RUN_UNSUPPORTED : RUN_FULL;
        return false;
    }
    const size_t crossed = (size_t)r->call_exit + 1; /* EXIT_CROSSED */
    *record = record_word(&r->blocks.exit[crossed], crossed);
    r->written = record + 1;
    *slot(r, SLOT_BUFFER) = to_replica(r, r->written);
    r->regs = *behind;
    start_at(r, behind->rip);
    return true;
}

void
runner_go_further(struct runner *r, size_t words)
{
    runner_rewind(r, words);
    *slot(r, SLOT_BUFFER) = to_replica(r, r->written);
    start_at(r, r->ip);
}

int
runner_init(struct runner *r)
{
    r->area.memfd = -1;
    r->process.uffd = r->process.frames.file = -1;
    r->remote.maps = r->remote.pagemap = r->remote.memory = -1;
    r->remote.pipe[0] = r->remote.pipe[1] = -1;
    r->words_per_access = FIRST_WORDS_PER_ACCESS;
    r->trial_share = TRIAL_SHARE;
    r->beyond_share = 1.0;
    if (area_create(&r->area) < 0 || pages_init(&r->pages) < 0)
        return -1;
    blocks_init(&r->blocks, r->area.bytes);
    r->blocks.read_code = remote_read_code;
    r->blocks.reader = &r->remote;
    r->expansion.blocks = &r->blocks;
    r->expansion.xstate = calloc(1, RECIPE_XSTATE_BYTES);
    return r->expansion.xstate != NULL ? 0 : -1;
}

void
runner_free(struct runner *r)
{
    process_destroy(&r->process);
    remote_close(&r->remote);
    pages_free(&r->pages);
    blocks_free(&r->blocks);
    rows_clear(&r->expansion.rows);
    line_marks_free(&r->expansion.marks);
    visits_free(&r->expansion.visits);
    free(r->expansion.xstate);
    area_free(&r->area);
}
