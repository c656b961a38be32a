#include "core.h"
#include "page_faults.h"
#include "stepper.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define TRAP_FLAG_BYTE 1 /* of the flags: its lowest bit */
#define DEADLINE_CHECK_STEPS 256

int
stepper_init(struct stepper *s)
{
    memset(s, 0, sizeof *s);
    s->xstate = calloc(1, XSTATE_MAXIMUM_BYTES);
    return s->xstate != NULL ? 0 : -1;
}

void
stepper_free(struct stepper *s)
{
    keyed_clear(&s->recipes);
    rows_clear(&s->rows);
    free(s->xstate);
    s->xstate = NULL;
}

bool
stepper_enter(struct runner *r, const struct held *h)
{
    struct iovec state = {(void *)h->xstate, h->xstate_bytes};

    r->regs = h->regs;
    r->regs.orig_rax = (unsigned long)-1;
    return write_registers(r->process.pid, &r->regs) &&
           ptrace(PTRACE_SETREGSET, r->process.pid, (void *)NT_X86_XSTATE, &state) == 0;
}

/* Whether the code at `recipe` is still what was decoded: programs with a JIT compiler rewrite theirs. */
static bool
is_current(struct runner *r, const struct recipe *recipe)
{
    uint8_t code[RECIPE_CODE_BYTES];

    return remote_copy(r->remote.pid, recipe->ip, code, recipe->length) &&
           memcmp(code, recipe->code, recipe->length) == 0;
}

/* Whether the replica has not written something else over it. */
static bool
is_unwritten(struct runner *r, const struct recipe *recipe)
{
    uint8_t code[RECIPE_CODE_BYTES];
    const uint8_t flags = pages_find(&r->pages, page_of(recipe->ip))->flags;

    if (!(flags & PAGE_IS_WRITABLE) || flags & PAGE_IS_GUARDED)
        return true;
    return pread(r->process.frames.file, code, recipe->length, (off_t)recipe->ip) == recipe->length &&
           memcmp(code, recipe->code, recipe->length) == 0;
}

/* Supply a page that it touched, or let it write to code, which is looked at before it runs. */
static bool
settle_fault(struct runner *r, uint64_t address)
{
    const enum page_fault fault = pages_fault(&r->pages, &r->process, &r->remote, address);

    if (fault == FAULT_GUARDED)
        pages_unguard(&r->pages, &r->process, page_of(address));
    return fault == FAULT_SUPPLIED || fault == FAULT_GUARDED;
}

/* The flags that pushf wrote show the trap flag that stepping sets: the program never had it. */
static void
hide_trap_flag(struct runner *r, uint64_t stack_pointer)
{
    const uint64_t address = stack_pointer + TRAP_FLAG_BYTE;
    uint8_t flags;

    if (pread(r->process.frames.file, &flags, 1, (off_t)address) != 1)
        return;
    flags &= 0xfe;
    frames_write(&r->process.frames, address, &flags, 1);
}

/* One instruction (one iteration of a repeated one). NULL, or why it ends here. */
static const char *
step(struct runner *r, const struct recipe *recipe, struct user_regs_struct *regs, long *number)
{
    const uint64_t count = regs->rcx; /* of a repeated instruction, which a step leaves in place */
    const pid_t pid = r->process.pid;
    siginfo_t info;
    int status;

    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0)
            return "exit";
        if (tracee_wait(pid, &status) < 0 || !read_registers(pid, regs))
            return "exit";
        if (status >> 16 != 0)
            continue; /* no step: job control */
        if (ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) < 0)
            return "exit";
        *number = WSTOPSIG(status);
        if (*number == SIGBUS && info.si_code == BUS_ADRERR &&
            settle_fault(r, (uint64_t)(uintptr_t)info.si_addr))
            continue;
        if (*number == SIGTRAP && info.si_code == TRAP_BRKPT && regs->rip == recipe->ip &&
            regs->rcx == count)
            continue;
        break;
    }
    if (*number != SIGTRAP || (info.si_code != TRAP_TRACE && info.si_code != TRAP_BRKPT))
        return "fault";
    *number = 0; /* that was the step's */
    if (recipe->flags & RECIPE_PUSHES_FLAGS)
        hide_trap_flag(r, regs->rsp);
    return NULL;
}

/* Where the iteration before loaded and stored. */
struct element {
    uint64_t first_line[2], last_line[2];
    bool is_there;
};

/* Of the rows of an iteration from `from` on keep those that touch a line that the one before did not.
 * Returns whether it counts as an instruction. */
static bool
keep_other_lines(struct rows *rows, size_t from, struct element *before)
{
    const struct element was = *before;
    size_t kept = from;

    before->is_there = rows->count > from;
    for (size_t i = from; i < rows->count; i++) {
        const uint8_t way = rows->is_write[i];
        const uint64_t first = rows->address[i] >> MOVED_LINE_SHIFT;
        const uint64_t last = (rows->address[i] + rows->size_bytes[i] - 1) >> MOVED_LINE_SHIFT;
        before->first_line[way] = first;
        before->last_line[way] = last;
        if (was.is_there && (first == was.first_line[way] || first == was.last_line[way]) &&
            (last == was.first_line[way] || last == was.last_line[way]))
            continue;
        rows->address[kept] = rows->address[i];
        rows->size_bytes[kept] = rows->size_bytes[i];
        rows->is_write[kept++] = way;
    }
    rows->count = kept;
    return !was.is_there || kept > from;
}

const char *
stepper_run(struct stepper *s, struct runner *r, size_t max_rows, double until_seconds,
            uint64_t *ip, long *number)
{
    struct user_regs_struct regs;
    const pid_t pid = r->process.pid;
    const char *end = NULL;
    struct element element = {.is_there = false};

    *number = 0;
    if (!read_registers(pid, &regs))
        return "exit";
    for (unsigned steps = 0; end == NULL; steps++) {
        *ip = regs.rip;
        const struct recipe *recipe = recipe_table_get(&s->recipes, regs.rip);
        if (recipe == NULL || !is_current(r, recipe))
            return "decode";
        if (!is_unwritten(r, recipe))
            return "modified";
        if (s->rows.count >= max_rows)
            return "full";
        if (r->is_cancelled || (steps % DEADLINE_CHECK_STEPS == 0 && now_seconds() > until_seconds))
            return "hold";
        if (recipe->flags & RECIPE_UNSUPPORTED)
            return "unsupported";
        if (recipe->flags & RECIPE_SYSCALL) {
            *number = (long)regs.rax;
            return "syscall";
        }
        if (recipe->flags & RECIPE_NEEDS_VECTORS) {
            struct iovec area = {s->xstate, XSTATE_MAXIMUM_BYTES};
            if (ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &area) < 0)
                return "exit";
        }
        size_t before = s->rows.count;
        if (recipe_references(recipe, &regs, s->xstate, rows_add, &s->rows) != 0)
            return "memory";
        const bool moves_lines = recipe_moves_lines(recipe);
        const bool counts = moves_lines && keep_other_lines(&s->rows, before, &element);
        end = step(r, recipe, &regs, number);
        if (end != NULL) {
            s->rows.count = before; /* it did not happen */
            break;
        }
        const bool goes_on = recipe->flags & RECIPE_REPEATED && regs.rip == recipe->ip;
        element.is_there &= goes_on;
        s->instructions += moves_lines ? counts : !goes_on;
        s->prefetches += (recipe->flags & RECIPE_PREFETCHES) != 0;
    }
    return end;
}
