#include "core.h"
#include "page_faults.h"
#include "runner.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define SMALLEST_CHUNK_WORDS 4096u
#define FURTHER_PARTS 16u /* of a burst: after so much of it registers are noted again */
#define SMALLEST_PART_WORDS 2048u
#define FIRST_WORDS_PER_ACCESS 0.5
#define ROOM_SHARE 0.9 /* of what is expected: what lacks is found later, what is too much was run in vain */
#define STEPS_TO_A_BLOCK 64
#define LOOKS_SECONDS 0.05
#define ALARMS_A_STEP 10

const char *
run_end_name(enum run_end end)
{
    static const char *const names[] = {
        "",      "full",     "hold",       "syscall", "asleep", "signal",   "differed", "unsupported",
        "fault", "modified", "unreadable", "cold",    "cold",   "deadline", "exit",     "memory",
    };
    return names[end];
}

static uint64_t *
slot(struct runner *r, uint32_t which)
{
    return (uint64_t *)(r->area.bytes + AREA_SLOTS + which);
}

static uint64_t *
buffer_start(const struct runner *r)
{
    return (uint64_t *)(r->area.bytes + AREA_BUFFER);
}

static uint64_t *
buffer_end(const struct runner *r)
{
    return buffer_start(r) + BUFFER_WORDS;
}

static uint64_t
to_replica(struct runner *r, const void *ours)
{
    return r->blocks.area_address + (uint64_t)((const uint8_t *)ours - r->area.bytes);
}

/* Where a pointer into the buffer points in our mapping. The replica says so, and it runs code that may
 * mean harm: what does not lie behind what is known of the run is not believed. */
static const uint64_t *
believed(struct runner *r, uint64_t address)
{
    uint64_t offset = address - r->blocks.area_address - AREA_BUFFER;
    uint64_t known = (uint64_t)((const uint8_t *)r->written - (const uint8_t *)buffer_start(r));

    if (offset > BUFFER_BYTES + GUARD_BYTES || offset % 8 != 0 || offset < known)
        return NULL;
    offset = offset < BUFFER_BYTES ? offset : BUFFER_BYTES;
    return buffer_start(r) + offset / 8;
}

static uint64_t *
gpr(struct user_regs_struct *regs, unsigned number)
{
    return (uint64_t *)regs + gpr_words[number];
}

static void
finish(struct runner *r, enum run_end end, long number)
{
    r->end = end;
    r->number = number;
}

/* Take over how far it has written. */
static void
has_written(struct runner *r, uint64_t address)
{
    const uint64_t *at = believed(r, address);

    if (at == NULL)
        finish(r, RUN_EXIT, 0); /* nothing of what it says can be used */
    else
        r->written = at;
}

void
runner_resume(struct runner *r)
{
    r->end = RUN_GOES_ON;
    r->has_cut_record = false;
}

/* ---- Stops ---- */

/* The program's registers at an exit: the pair lies in its slots. */
static void
recover_registers(struct runner *r, const struct user_regs_struct *now, const struct block *block)
{
    r->regs = *now;
    *gpr(&r->regs, block->buffer_register) = *slot(r, SLOT_GPR(block->buffer_register));
    *gpr(&r->regs, block->scratch_register) = *slot(r, SLOT_GPR(block->scratch_register));
}

static void
handle_exit(struct runner *r, struct user_regs_struct *now, uint32_t number)
{
    const struct exit *x = &r->blocks.exit[number];
    const struct block *block = &r->blocks.block[x->block];

    recover_registers(r, now, block);
    r->from_exit = -1;
    r->is_indirect = false;
    r->regs.rip = r->ip = x->target;
    *slot(r, SLOT_BUFFER) = *gpr(now, block->buffer_register);
    has_written(r, *gpr(now, block->buffer_register));
    if (r->end != RUN_GOES_ON)
        return;
    if (x->kind == EXIT_DIRECT)
        r->from_exit = (long)number;
    if (x->kind == EXIT_SYSCALL) {
        r->call_exit = (long)number;
        finish(r, RUN_SYSCALL, (long)r->regs.rax);
    } else if (x->kind == EXIT_UNSUPPORTED) {
        finish(r, blocks_was_written(&r->blocks, x->target) ? RUN_MODIFIED : RUN_UNSUPPORTED, 0);
    } else if (x->kind == EXIT_REFUSED) {
        finish(r, RUN_UNREADABLE, SIGSEGV);
    } else {
        r->needs_target = true;
    }
}

/* An indirect jump, call or return to where nothing is known to be. */
static void
handle_miss(struct runner *r, const struct user_regs_struct *now)
{
    r->regs = *now;
    r->regs.r10 = *slot(r, SLOT_GPR(R10));
    r->regs.r11 = *slot(r, SLOT_GPR(R11));
    r->regs.rcx = *slot(r, SLOT_RCX);
    r->regs.rip = r->ip = *slot(r, SLOT_TARGET);
    r->from_exit = -1;
    r->is_indirect = true;
    r->needs_target = true;
    has_written(r, *slot(r, SLOT_BUFFER));
}

/* Whether it stands behind a trap of ours. */
static bool
handle_trap(struct runner *r, struct user_regs_struct *now)
{
    const uint64_t trap = now->rip - 1 - r->blocks.area_address;
    long exit;

    if (trap >= AREA_BUFFER)
        return false;
    if (trap == r->blocks.lookup_trap)
        handle_miss(r, now);
    else if ((exit = blocks_exit_at(&r->blocks, (uint32_t)trap)) >= 0)
        handle_exit(r, now, (uint32_t)exit);
    else
        return false;
    return true;
}

/* End in the midst of a block: the record in progress is cut off before the instruction at which it
 * stands. False: it stands in none. */
static bool
cut_record(struct runner *r, const struct user_regs_struct *now, uint64_t ip)
{
    uint32_t block_number, instruction;
    const uint64_t offset = ip - r->blocks.area_address;

    if (offset >= AREA_BUFFER ||
        !blocks_locate(&r->blocks, (uint32_t)offset, &block_number, &instruction))
        return false;
    const struct block *block = &r->blocks.block[block_number];
    if (offset < block->warm)
        return false;
    recover_registers(r, now, block);
    uint64_t pointer = *gpr((struct user_regs_struct *)now, block->buffer_register);
    if (instruction == NO_BLOCK && believed(r, pointer) == NULL)
        pointer = *slot(r, SLOT_BUFFER); /* the register serves to look up where an exit goes */
    has_written(r, pointer);
    if (instruction == NO_BLOCK || r->end == RUN_EXIT)
        return true;
    const struct instruction *at = &r->blocks.instruction[instruction];
    r->ip = r->regs.rip = at->ip;
    r->part_exit = (struct exit){
        .block = block_number,
        .accesses = at->accesses_before,
        .first_access = block->first_access,
        .instructions = (uint16_t)(instruction - block->first_instruction),
        .prefetches = at->prefetches_before,
    };
    r->has_cut_record = true;
    return true;
}

static void
handle_fault(struct runner *r, struct user_regs_struct *now, enum run_end end, int signal)
{
    finish(r, end, signal);
    r->ip = now->rip;
    /* int3 of the program's own stops behind itself */
    cut_record(r, now, signal == SIGTRAP ? now->rip - 1 : now->rip);
}

/* A store into memory that can be executed, too. Into translated code it ends the burst, as what was
 * translated would then be wrong; other pages are no longer code. */
static void
handle_code_store(struct runner *r, struct user_regs_struct *now, uint64_t address)
{
    struct blocks *b = &r->blocks;
    uint64_t page = page_of(address);

    if (blocks_use_page(b, page) || b->written_pages == WRITTEN_PAGES) {
        handle_fault(r, now, RUN_MODIFIED, 0);
        return;
    }
    b->written_page[b->written_pages++] = page;
    pages_unguard(&r->pages, &r->process, page);
}

/* It touched a page that it lacks, or may not write to. Mostly the page is all that it needs. */
static void
handle_page(struct runner *r, uint64_t address)
{
    struct user_regs_struct now;
    double started = now_seconds();
    enum page_fault fault = pages_fault(&r->pages, &r->process, &r->remote, address);

    r->faults++;
    r->fault_seconds += now_seconds() - started;
    if (fault == FAULT_SUPPLIED)
        return;
    if (!read_registers(r->process.pid, &now))
        finish(r, RUN_EXIT, 0);
    else if (fault == FAULT_GUARDED)
        handle_code_store(r, &now, address);
    else if (fault == FAULT_UNMAPPED || fault == FAULT_FORBIDDEN)
        handle_fault(r, &now, RUN_FAULT, SIGSEGV);
    else
        handle_fault(r, &now, fault == FAULT_FULL ? RUN_FULL : RUN_UNREADABLE, 0);
}

/* It stopped at a signal. */
static void
handle_signal(struct runner *r, int signal)
{
    struct user_regs_struct now;
    const uint64_t base = r->blocks.area_address;
    const bool is_memory = signal == SIGBUS || signal == SIGSEGV;
    siginfo_t info;

    if (ptrace(PTRACE_GETSIGINFO, r->process.pid, NULL, &info) < 0) {
        finish(r, RUN_EXIT, 0);
        return;
    }
    const uint64_t address = (uint64_t)(uintptr_t)info.si_addr;
    if (signal == SIGBUS && info.si_code == BUS_ADRERR && address - base >= AREA_BYTES) {
        handle_page(r, address);
        return;
    }
    if (!read_registers(r->process.pid, &now)) {
        finish(r, RUN_EXIT, 0);
        return;
    }
    if (signal == SIGTRAP && handle_trap(r, &now))
        return;
    if (is_memory && address - (base + AREA_BYTES) < GUARD_BYTES)
        handle_fault(r, &now, RUN_FULL, 0); /* the end of the buffer */
    else if (is_memory || signal == SIGFPE || signal == SIGILL || signal == SIGTRAP)
        handle_fault(r, &now, RUN_FAULT, signal);
    /* All else comes from outside, and is for nobody. */
}

/* One instruction. Where the alarm goes off again and again it hangs, as code that means harm may. */
static bool
step_once(pid_t pid)
{
    int status, waited;

    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0)
        return false;
    for (int alarms = 0; (waited = held_wait(pid, &status)) == 1 && alarms < ALARMS_A_STEP;)
        alarms++;
    if (waited == 1) {
        ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
        waited = tracee_wait(pid, &status);
    }
    return waited == 0 && WSTOPSIG(status) == SIGTRAP && status >> 16 == 0;
}

/* Whether it stands at or behind a system call, where a step might take for ever. It comes to none in
 * translated code, but programs that mean harm may find other ways. */
static bool
is_at_call(struct runner *r, uint64_t ip)
{
    const uint64_t offset = ip - r->blocks.area_address;

    if (offset < AREA_CODE + 2 || offset >= AREA_BUFFER - 2)
        return false;
    const uint8_t *code = r->area.bytes + offset;
    return ((code[0] == 0x0f && code[1] == 0x05) || (code[-2] == 0x0f && code[-1] == 0x05));
}

/* Stopped from outside: on to where it is known what was recorded. */
static void
handle_stop(struct runner *r, enum run_end end)
{
    struct user_regs_struct now;

    finish(r, end, 0);
    for (int steps = 0; read_registers(r->process.pid, &now); steps++)
        if (cut_record(r, &now, now.rip) || steps == STEPS_TO_A_BLOCK ||
            is_at_call(r, now.rip) || !step_once(r->process.pid))
            return;
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
        finish(r, RUN_EXIT, 0);
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
        finish(r, RUN_EXIT, 0);
    else if (is_event_stop(status) && is_late)
        handle_stop(r, r->is_cancelled ? RUN_DEADLINE : RUN_HOLD);
    else if (status >> 16 == 0)
        handle_signal(r, WSTOPSIG(status));
}

/* ---- What it needs to run on ---- */

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
        finish(r, result == TRANSLATION_NEEDS_FORM ? RUN_COLD
                  : result == TRANSLATION_FULL     ? RUN_FLUSHED
                                                   : RUN_NO_MEMORY, 0);
        return;
    }
    if (r->is_indirect)
        blocks_publish(&r->blocks, block);
    r->regs.rip = r->blocks.area_address + r->blocks.block[block].cold;
    r->needs_target = false;
    if (!write_registers(r->process.pid, &r->regs))
        finish(r, RUN_EXIT, 0);
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
    double wanted = (double)accesses * r->words_per_access * ROOM_SHARE + SMALLEST_CHUNK_WORDS;
    size_t words = wanted > BUFFER_WORDS ? BUFFER_WORDS : (size_t)wanted;

    r->regs = h->regs;
    r->expansion.segment_base[ACCESS_FS] = h->regs.fs_base;
    r->expansion.segment_base[ACCESS_GS] = h->regs.gs_base;
    r->start = r->written = buffer_end(r) - words;
    r->wanted = accesses;
    r->counted_words = r->counted_accesses = 0;
    *slot(r, SLOT_BUFFER) = to_replica(r, r->start);
    start_at(r, h->regs.rip);
    r->blocks.written_pages = 0;
    return ptrace(PTRACE_SETREGSET, r->process.pid, (void *)NT_X86_XSTATE, &state) == 0;
}

/* Where it stands with its buffer full: have it write the record in progress to another place, and go on.
 * With `may` false it is only told whether that can be done. */
static bool
redirect(struct runner *r, const uint64_t *to, bool may)
{
    struct user_regs_struct now;
    uint32_t block, instruction;

    if (r->end != RUN_FULL || !read_registers(r->process.pid, &now))
        return false;
    const uint64_t offset = now.rip - r->blocks.area_address;
    if (offset >= AREA_BUFFER || !blocks_locate(&r->blocks, (uint32_t)offset, &block, &instruction))
        return false;
    uint64_t *pointer = gpr(&now, r->blocks.block[block].buffer_register);
    if (*pointer != to_replica(r, r->written))
        return false;
    if (!may)
        return true;
    *pointer = to_replica(r, to);
    r->written = to;
    runner_resume(r);
    if (!write_registers(r->process.pid, &now))
        finish(r, RUN_EXIT, 0);
    return true;
}

static size_t
room_before(const struct runner *r, size_t wanted)
{
    const size_t free = (size_t)(r->start - buffer_start(r));

    wanted += SMALLEST_PART_WORDS;
    return free < SMALLEST_PART_WORDS ? 0 : wanted < free ? wanted : free;
}

uint64_t
runner_accesses(struct runner *r)
{
    const size_t words = runner_words(r);

    if (words < r->counted_words) /* some of it was dropped */
        r->counted_words = r->counted_accesses = 0;
    r->counted_accesses += count_accesses(&r->blocks, r->start + r->counted_words, r->start + words);
    r->counted_words = words;
    return r->counted_accesses;
}

/* How many words an access takes is known roughly. Where the buffer is full and as much as is wanted was not
 * recorded: room for the rest of it. False: it was, or there is no more room. */
static bool
goes_on_filling(struct runner *r)
{
    if (r->end != RUN_FULL || runner_room_words(r) >= SMALLEST_PART_WORDS || r->wanted == 0)
        return false; /* no room for pages, perhaps */
    const uint64_t accesses = runner_accesses(r);
    if (accesses >= r->wanted)
        return false;
    const double words = (double)runner_words(r) / (double)(accesses + 1);
    const size_t more = room_before(r, (size_t)(words * (double)(r->wanted - accesses)));
    if (more == 0 || !redirect(r, NULL, false))
        return false;
    memmove((uint64_t *)(uintptr_t)r->start - more, r->start,
            (size_t)(buffer_end(r) - r->start) * sizeof *r->start);
    r->start -= more;
    return redirect(r, r->written - more, true);
}

enum run_end
runner_run(struct runner *r, struct alarm *alarm, double until_seconds)
{
    look_up(alarm, until_seconds);
    while (r->end == RUN_GOES_ON || goes_on_filling(r)) {
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

size_t
runner_room_words(const struct runner *r)
{
    return (size_t)(buffer_end(r) - r->written);
}

bool
runner_begin_again(struct runner *r)
{
    const size_t room = runner_room_words(r);

    if (room >= SMALLEST_PART_WORDS || !redirect(r, NULL, false)) /* no room for pages, perhaps */
        return false;
    memmove((uint64_t *)(uintptr_t)r->start, r->written, room * sizeof *r->start);
    return redirect(r, r->start, true);
}

bool
runner_make_room(struct runner *r, size_t words)
{
    const size_t more = room_before(r, words / FURTHER_PARTS);

    if (more == 0 || r->end != RUN_FULL || !r->has_cut_record)
        return false;
    uint64_t *start = (uint64_t *)(uintptr_t)r->start - more;
    memmove(start, r->start, words * sizeof *start);
    r->start = start;
    return true;
}

void
runner_go_further(struct runner *r, size_t words)
{
    runner_rewind(r, words);
    *slot(r, SLOT_BUFFER) = to_replica(r, r->written);
    start_at(r, r->ip);
}

void
runner_park(struct runner *r)
{
    process_park(&r->process);
}

size_t
runner_words(const struct runner *r)
{
    return (size_t)(r->written - r->start);
}

void
runner_rewind(struct runner *r, size_t words)
{
    r->written = r->start + words;
    r->has_cut_record = false;
}

/* ---- Its life ---- */

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
