/* What a stop of the replica tells: an exit from its code, a page that lacks, a fault, the end of its time. */
#include "core.h"
#include "page_faults.h"
#include "stops.h"
#include "trace_buffer.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define STEPS_MOST 64 /* to a block, and to where the registers are the program's */
#define ALARMS_A_STEP 10
#define FEW_STORES 8 /* into a page of which nothing was translated */
#define MOST_STORED_BYTES 64 /* by an instruction of which it is not known how much */

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
    runner_has_written(r, *gpr(now, block->buffer_register));
    if (r->end != RUN_GOES_ON)
        return;
    if (x->kind == EXIT_DIRECT)
        r->from_exit = (long)number;
    if (x->kind == EXIT_SYSCALL) {
        r->call_exit = (long)number;
        runner_end(r, RUN_SYSCALL, (long)r->regs.rax);
    } else if (x->kind == EXIT_UNSUPPORTED) {
        runner_end(r, block->is_passing ? RUN_MODIFIED : RUN_UNSUPPORTED, 0);
    } else if (x->kind == EXIT_REFUSED) {
        runner_end(r, RUN_UNREADABLE, SIGSEGV);
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
    r->needs_target = r->end == RUN_GOES_ON;
    runner_has_written(r, *slot(r, SLOT_BUFFER));
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

/* Of an instruction that repeats itself, if the offset is where that itself stands, or behind it; or NULL. */
static const struct special *
repeated_at(const struct blocks *b, const struct block *block, const struct instruction *at, uint64_t offset)
{
    const size_t access = (size_t)block->first_access + at->accesses_before;

    if (at->accesses_before == block->accesses || b->accesses.operand[access].source != ACCESS_SPECIAL)
        return NULL;
    const struct special *x = &b->special[b->accesses.delta[access]];
    return x->recipe.flags & RECIPE_REPEATED && offset >= x->copy_at ? x : NULL;
}

/* The record in progress is cut off at a repeated instruction, or behind it: what that did is part of it. The
 * record is told how far it got, as by the code that follows the instruction, if there is room for that. */
static void
add_repeated(struct runner *r, const struct special *x, bool is_done)
{
    uint64_t *words = (uint64_t *)(uintptr_t)r->written;

    if (is_done)
        r->ip = r->regs.rip = r->ip + x->recipe.length;
    if (runner_room_words(r) <= x->pointer_after_word)
        return;
    words[x->count_after_word] = r->regs.rcx;
    words[x->pointer_after_word] = ((const uint64_t *)&r->regs)[x->recipe.reference[0].base];
    const bool is_begun = repeated_elements(x, words) != 0;
    r->part_exit.accesses += is_begun;
    r->part_exit.instructions += is_done || (is_begun && recipe_moves_lines(&x->recipe));
}

/* End in the midst of a block: the record in progress is cut off before the instruction at which it
 * stands, or within one that repeats itself. False: it stands in none. */
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
    runner_has_written(r, pointer);
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
    const struct special *repeated = repeated_at(&r->blocks, block, at, offset);
    if (repeated != NULL)
        add_repeated(r, repeated, offset > repeated->copy_at);
    return true;
}

static void
handle_fault(struct runner *r, struct user_regs_struct *now, enum run_end end, int signal)
{
    runner_end(r, end, signal);
    r->ip = now->rip;
    /* int3 of the program's own stops behind itself */
    cut_record(r, now, signal == SIGTRAP ? now->rip - 1 : now->rip);
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

/* How many bytes the instruction stores at which it stands in translated code; 0: some, anywhere in its page. */
static size_t
stored_bytes(const struct blocks *b, uint64_t ip)
{
    const uint64_t offset = ip - b->area_address;
    uint32_t block_number, number;
    size_t bytes = 0;

    if (offset >= AREA_BUFFER ||
        !blocks_locate(b, (uint32_t)offset, &block_number, &number) || number == NO_BLOCK)
        return MOST_STORED_BYTES;
    const struct block *block = &b->block[block_number];
    const bool is_last = number + 1 == block->first_instruction + block->instructions;
    const unsigned end = is_last ? block->accesses : b->instruction[number + 1].accesses_before;
    for (unsigned i = b->instruction[number].accesses_before; i < end; i++) {
        const size_t at = block->first_access + i;
        if (b->accesses.operand[at].source == ACCESS_SPECIAL) {
            const struct special *special = &b->special[b->accesses.delta[at]];
            return (special->recipe.flags & RECIPE_REPEATED) != 0 ? MOST_STORED_BYTES : 0;
        }
        if (b->accesses.is_write[at] && b->accesses.size_bytes[at] > bytes)
            bytes = b->accesses.size_bytes[at];
    }
    return bytes != 0 ? bytes : MOST_STORED_BYTES;
}

/* Have it make one store into a page that it is kept from writing to. */
static bool
store_once(struct runner *r, uint64_t page)
{
    process_unprotect(&r->process, page);
    const bool is_made = step_once(r->process.pid);
    return process_protect(&r->process, page) && is_made;
}

/* A store into memory that can be executed, too. As there may be data beside code, each is looked at, but for
 * pages that have many and of which nothing was translated: these are no longer code. Into translated code it
 * ends the burst, as what was translated would then be wrong. */
static void
handle_code_store(struct runner *r, struct user_regs_struct *now, uint64_t address)
{
    struct blocks *b = &r->blocks;
    const uint64_t page = page_of(address);
    size_t bytes = stored_bytes(b, now->rip);
    if (bytes == 0) {
        address = page;
        bytes = PAGE_BYTES;
    }
    struct written_code *written = blocks_note_written(b, page, code_lines(address, bytes));

    if (written == NULL || blocks_use(b, address, bytes)) {
        handle_fault(r, now, RUN_MODIFIED, 0);
    } else if (written->stores > FEW_STORES && !blocks_use(b, page, PAGE_BYTES)) {
        written->lines = ALL_LINES;
        pages_unguard(&r->pages, &r->process, page);
    } else if (!store_once(r, page)) {
        handle_fault(r, now, RUN_MODIFIED, 0);
    }
}

/* It touched a page that it lacks, or may not write to. Mostly the page is all that it needs. */
static void
handle_page(struct runner *r, uint64_t address)
{
    struct user_regs_struct now;
    enum page_fault fault = pages_fault(&r->pages, &r->process, &r->remote, address);

    r->faults++;
    if (fault == FAULT_SUPPLIED)
        return;
    if (!read_registers(r->process.pid, &now))
        runner_end(r, RUN_EXIT, 0);
    else if (fault == FAULT_GUARDED)
        handle_code_store(r, &now, address);
    else if (fault == FAULT_UNMAPPED || fault == FAULT_FORBIDDEN)
        handle_fault(r, &now, RUN_FAULT, SIGSEGV);
    else
        handle_fault(r, &now, fault == FAULT_FULL ? RUN_FULL : RUN_UNREADABLE, 0);
}

void
runner_take_signal(struct runner *r, int signal)
{
    struct user_regs_struct now;
    const uint64_t base = r->blocks.area_address;
    const bool is_memory = signal == SIGBUS || signal == SIGSEGV;
    siginfo_t info;

    if (ptrace(PTRACE_GETSIGINFO, r->process.pid, NULL, &info) < 0) {
        runner_end(r, RUN_EXIT, 0);
        return;
    }
    const uint64_t address = (uint64_t)(uintptr_t)info.si_addr;
    if (signal == SIGBUS && info.si_code == BUS_ADRERR && address - base >= AREA_BYTES) {
        handle_page(r, address);
        return;
    }
    if (!read_registers(r->process.pid, &now)) {
        runner_end(r, RUN_EXIT, 0);
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

/* Whether it stands where nothing is done of the instruction that comes next, or only what is recorded of it, or in
 * one that repeats itself: elsewhere some registers may be ours. */
static bool
is_between_instructions(const struct blocks *b, uint64_t ip)
{
    const uint64_t offset = ip - b->area_address;
    uint32_t block_number, number;

    if (offset >= AREA_BUFFER || !blocks_locate(b, (uint32_t)offset, &block_number, &number) || number == NO_BLOCK)
        return false;
    const struct block *block = &b->block[block_number];
    const bool is_last = number + 1 == block->first_instruction + block->instructions;
    const struct instruction *at = &b->instruction[number];
    return offset == at->code_at || (at->flow == FLOW_NEXT && !is_last) || /* that one's record follows */
           repeated_at(b, block, at, offset) != NULL;
}

/* Whether it stands at a trap of ours, of which nobody has been told, or at a jump in place of one: there all
 * is as the program has it. It stays there, as it does behind one whose signal is still to come. */
static bool
is_at_exit(struct runner *r, struct user_regs_struct *now)
{
    struct user_regs_struct behind = *now;
    const uint64_t behind_lookup = r->blocks.area_address + r->blocks.lookup_trap + 1;
    const bool is_found = now->rip == behind_lookup && now->rcx == 0; /* it jumped over that trap */

    behind.rip++;
    return (!is_found && handle_trap(r, now)) || handle_trap(r, &behind);
}

void
runner_take_stop(struct runner *r, enum run_end end)
{
    struct user_regs_struct now;

    runner_end(r, end, 0);
    for (int steps = 0; read_registers(r->process.pid, &now); steps++)
        if (cut_record(r, &now, now.rip) || steps == STEPS_MOST ||
            is_at_call(r, now.rip) || !step_once(r->process.pid))
            return;
}

void
runner_settle(struct runner *r)
{
    struct user_regs_struct now;

    if ((r->end != RUN_HOLD && r->end != RUN_DEADLINE) || r->needs_target)
        return;
    for (int steps = 0; steps < STEPS_MOST && read_registers(r->process.pid, &now); steps++) {
        if (is_at_exit(r, &now)) {
            r->has_cut_record = false; /* it is whole */
            return;
        }
        if (is_between_instructions(&r->blocks, now.rip)) {
            cut_record(r, &now, now.rip);
            return;
        }
        if (is_at_call(r, now.rip) || !step_once(r->process.pid))
            return;
    }
}
