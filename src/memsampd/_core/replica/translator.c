/* Executing a shadow in translated code, and writing down what it references. */
#include "core.h"
#include "area.h"
#include "emulation.h"
#include "expansion.h"
#include "watchdog.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_WORDS (BUFFER_BYTES / 8)
#define PART_MAXIMUM_WORDS (GUARD_BYTES / 8)
#define SMALLEST_CHUNK_WORDS 4096
#define FIRST_WORDS_PER_ACCESS 0.7
#define STEPS_TO_A_BOUNDARY 20000
#define ROWS_CHUNK ((size_t)1 << 15) /* in a cache still, and few enough to cost Python little */

/* What is to be done before the shadow can run on. */
enum need {
    NEED_NOTHING,
    NEED_TARGET, /* it stands at the program's `ip`: find or make its translation */
    NEED_SWAP,   /* the buffer is full: put the record that was being written at its start */
};

#define WRITABLE_RANGES 64

struct range {
    uint64_t start, end;
};

typedef struct {
    PyObject_HEAD
    struct area area;
    struct blocks blocks;
    struct expansion expansion;
    struct watchdog watchdog;
    struct emulation emulation;

    /* The present run. */
    pid_t pid;
    int pidfd;
    uint64_t syscall_address;
    struct range writable_code[WRITABLE_RANGES]; /* made read-only: stores into it are noticed */
    unsigned writable_ranges;
    enum need need;
    const char *end;    /* NULL while it goes on */
    long number;        /* of the signal or the system call that ended it */
    uint64_t ip;        /* of the program, where it stands or ended */
    long from_exit;     /* by which it came there: to be linked, or -1 */
    bool is_indirect;   /* to be published */
    struct user_regs_struct regs; /* as the program sees them; rip is `ip` */
    const uint64_t *drained;      /* in our mapping: what follows is not expanded yet */
    const uint64_t *written;      /* the end of what is to be expanded */
    uint64_t part[PART_MAXIMUM_WORDS];
    size_t part_words;
    struct exit part_exit; /* of a record that a fault cut off; part_words then are its words */
    bool has_cut_record;

    PyObject *counter; /* a ReuseCounter that takes the lines, or NULL */

    /* What it cost, all runs together. */
    uint64_t traps;
    double run_seconds, translation_seconds, expansion_seconds;
} Translator;

static uint64_t *
slot(Translator *self, uint32_t which)
{
    return (uint64_t *)(self->area.bytes + AREA_SLOTS + which);
}

static uint64_t *
buffer_start(Translator *self)
{
    return (uint64_t *)(self->area.bytes + AREA_BUFFER);
}

static uint64_t
to_shadow(Translator *self, const void *ours)
{
    return self->blocks.area_address + (uint64_t)((const uint8_t *)ours - self->area.bytes);
}

static const uint64_t *
from_shadow(Translator *self, uint64_t address)
{
    return (const uint64_t *)(self->area.bytes + (address - self->blocks.area_address));
}

static uint64_t *
gpr(struct user_regs_struct *regs, unsigned number)
{
    return (uint64_t *)regs + gpr_words[number];
}

static bool
transfer_registers(pid_t pid, struct user_regs_struct *regs, bool set)
{
    struct iovec area = {regs, sizeof *regs};
    return ptrace(set ? PTRACE_SETREGSET : PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0;
}

/* Where the next chunk begins: close to the end of the buffer if little is wanted still, so that
 * the shadow does not run far beyond. */
static uint64_t *
chunk_start(Translator *self)
{
    const struct expansion *x = &self->expansion;
    uint64_t rows = x->is_full ? 0 : x->limit - x->total;
    double wanted = (double)rows * FIRST_WORDS_PER_ACCESS;
    size_t words = wanted > BUFFER_WORDS ? BUFFER_WORDS : (size_t)wanted;
    words = words < SMALLEST_CHUNK_WORDS ? SMALLEST_CHUNK_WORDS : words;
    return buffer_start(self) + (BUFFER_WORDS - words);
}

static void
finish(Translator *self, const char *end, long number)
{
    self->end = end;
    self->number = number;
}

/* ---- Stops ---- */

/* The program's registers at an exit: the pair lies in its slots. */
static void
recover_registers(Translator *self, const struct user_regs_struct *now, const struct block *block)
{
    self->regs = *now;
    *gpr(&self->regs, block->buffer_register) = *slot(self, SLOT_GPR(block->buffer_register));
    *gpr(&self->regs, block->scratch_register) = *slot(self, SLOT_GPR(block->scratch_register));
}

/* Go on behind a system call whose result is known; else the burst ends before it. */
static void
cross_syscall(Translator *self, uint32_t exit)
{
    const long number = (long)self->regs.rax;
    const uint64_t our_gs_base = self->regs.gs_base;

    self->regs.gs_base = self->expansion.segment_base[ACCESS_GS]; /* as the program sees it */
    enum emulated outcome = syscall_emulate(self->pid, &self->emulation, &self->regs);
    self->regs.gs_base = our_gs_base;
    switch (outcome) {
    case NOT_EMULATED:
        finish(self, "syscall", number);
        return;
    case EMULATION_LOST:
        finish(self, "exit", 0);
        return;
    case EMULATED:
        break;
    }
    uint64_t *record = (uint64_t *)(uintptr_t)self->written;
    *record = exit + 1; /* EXIT_CROSSED */
    self->written = record + 1;
    *slot(self, SLOT_BUFFER) = to_shadow(self, self->written);
    self->ip = self->regs.rip;
    self->need = NEED_TARGET;
    if (watchdog_has_fired(&self->watchdog)) /* an injected call may have taken its signal */
        finish(self, "deadline", 0);
}

static void
handle_exit(Translator *self, struct user_regs_struct *now, uint32_t number)
{
    const struct exit *x = &self->blocks.exit[number];
    const struct block *block = &self->blocks.block[x->block];

    recover_registers(self, now, block);
    self->from_exit = -1;
    self->is_indirect = false;
    self->regs.rip = self->ip = x->target;
    *slot(self, SLOT_BUFFER) = *gpr(now, block->buffer_register);
    self->written = from_shadow(self, *slot(self, SLOT_BUFFER));
    if (x->kind == EXIT_DIRECT)
        self->from_exit = (long)number;
    if (x->kind == EXIT_SYSCALL)
        cross_syscall(self, number);
    else if (x->kind == EXIT_UNSUPPORTED)
        finish(self, "unsupported", 0);
    else if (x->kind == EXIT_REFUSED)
        finish(self, "fault", SIGSEGV);
    else
        self->need = NEED_TARGET;
}

/* An indirect jump, call or return to where nothing is known to be. */
static void
handle_miss(Translator *self, const struct user_regs_struct *now)
{
    self->regs = *now;
    self->regs.r10 = *slot(self, SLOT_GPR(R10));
    self->regs.r11 = *slot(self, SLOT_GPR(R11));
    self->regs.rcx = *slot(self, SLOT_RCX);
    self->regs.rip = self->ip = *slot(self, SLOT_TARGET);
    self->written = from_shadow(self, *slot(self, SLOT_BUFFER));
    self->from_exit = -1;
    self->is_indirect = true;
    self->need = NEED_TARGET;
}

/* Whether the shadow stands behind a trap of ours. */
static bool
handle_trap(Translator *self, struct user_regs_struct *now)
{
    const uint32_t trap = (uint32_t)(now->rip - 1 - self->blocks.area_address);
    long exit;

    if (trap == self->blocks.lookup_trap)
        handle_miss(self, now);
    else if ((exit = blocks_exit_at(&self->blocks, trap)) >= 0)
        handle_exit(self, now, (uint32_t)exit);
    else
        return false;
    return true;
}

/* The record in progress crossed the end of the buffer: keep what is written of it. */
static void
handle_buffer_end(Translator *self, struct user_regs_struct *now, const struct block *block)
{
    const uint64_t *record = from_shadow(self, *gpr(now, block->buffer_register));
    const uint64_t *buffer_end = buffer_start(self) + BUFFER_WORDS;

    self->regs = *now;
    self->written = record;
    self->part_words = record < buffer_end ? (size_t)(buffer_end - record) : 0;
    memcpy(self->part, record, 8 * self->part_words);
    self->ip = block->buffer_register; /* which register to move: see swap() */
    self->need = NEED_SWAP;
}

static void
handle_fault(Translator *self, struct user_regs_struct *now, int signal)
{
    uint32_t block_number, instruction;
    uint32_t offset = (uint32_t)(now->rip - self->blocks.area_address);
    bool inside = now->rip >= self->blocks.area_address &&
                  now->rip - self->blocks.area_address < AREA_BUFFER;

    finish(self, "fault", signal);
    self->ip = now->rip;
    /* int3 of the program's own stops behind itself */
    if (!inside || !blocks_locate(&self->blocks, signal == SIGTRAP ? offset - 1 : offset,
                                  &block_number, &instruction)) {
        self->written = self->drained; /* nobody knows how far it came */
        return;
    }
    const struct block *block = &self->blocks.block[block_number];
    recover_registers(self, now, block);
    self->written = from_shadow(self, *gpr(now, block->buffer_register));
    if (instruction == NO_BLOCK)
        return;
    const struct instruction *at = &self->blocks.instruction[instruction];
    self->ip = self->regs.rip = at->ip;
    self->part_exit = (struct exit){
        .block = block_number,
        .accesses = at->accesses_before,
        .instructions = (uint16_t)(instruction - block->first_instruction),
        .prefetches = at->prefetches_before,
    };
    self->part_words = PART_MAXIMUM_WORDS;
    size_t left = (size_t)(buffer_start(self) + BUFFER_WORDS - self->written);
    self->part_words = left < self->part_words ? left : self->part_words;
    memcpy(self->part, self->written, 8 * self->part_words);
    self->has_cut_record = true;
}

static bool
step_once(pid_t pid, int *status, siginfo_t *info)
{
    info->si_code = 0;
    return ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0 &&
           waitpid(pid, status, __WALL) == pid && WIFSTOPPED(*status) &&
           (*status >> 16 != 0 || ptrace(PTRACE_GETSIGINFO, pid, NULL, info) == 0);
}

/* Stopped from outside: step on to an entry of a block, where the record and the program's
 * registers are whole. */
static void
handle_deadline(Translator *self, struct user_regs_struct *now)
{
    uint32_t block_number, instruction;
    siginfo_t info;
    int status;

    finish(self, "deadline", 0);
    self->written = self->drained;
    for (int steps = 0; steps < STEPS_TO_A_BOUNDARY; steps++) {
        uint32_t offset = (uint32_t)(now->rip - self->blocks.area_address);
        if (blocks_locate(&self->blocks, offset, &block_number, &instruction)) {
            const struct block *block = &self->blocks.block[block_number];
            if (offset == block->warm) {
                recover_registers(self, now, block);
                self->written = from_shadow(self, *gpr(now, block->buffer_register));
                self->ip = self->regs.rip = block->ip;
                return;
            }
        }
        if (!step_once(self->pid, &status, &info) || !transfer_registers(self->pid, now, false))
            return;
        if (status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP && info.si_code != TRAP_TRACE) {
            if (handle_trap(self, now)) {
                self->end = self->end != NULL ? self->end : "deadline";
                self->need = NEED_NOTHING;
            }
            return;
        }
    }
}

static bool
protect(Translator *self, const struct user_regs_struct *now, struct range where, int protection)
{
    const uint64_t arguments[6] = {where.start, where.end - where.start, (uint64_t)protection};
    long result;
    return tracee_inject_shadow(self->pid, now, self->syscall_address, SYS_mprotect, arguments,
                                &result) == TRACEE_OK;
}

/* A store into memory that is both code and writable. Into translated code it ends the burst, as
 * what was translated would then be wrong; other pages become writable, and are no longer code. */
static bool
handle_code_store(Translator *self, struct user_regs_struct *now, uint64_t address)
{
    struct blocks *b = &self->blocks;
    uint64_t page = address & ~(uint64_t)4095;
    bool inside = false;

    for (unsigned i = 0; i < self->writable_ranges; i++)
        inside |= address - self->writable_code[i].start <
                  self->writable_code[i].end - self->writable_code[i].start;
    for (unsigned i = 0; i < b->written_pages; i++)
        inside &= b->written_page[i] != page; /* a fault for another reason */
    if (!inside)
        return false;
    if (blocks_use_page(b, page) || b->written_pages == WRITTEN_PAGES) {
        handle_fault(self, now, 0);
        self->end = "modified";
        return true;
    }
    b->written_page[b->written_pages++] = page;
    if (!protect(self, now, (struct range){page, page + 4096}, PROT_READ | PROT_WRITE | PROT_EXEC))
        finish(self, "exit", 0);
    return true;
}

static void
handle_signal(Translator *self, int signal)
{
    struct user_regs_struct now;
    siginfo_t info;
    uint32_t block, instruction;

    if (ptrace(PTRACE_GETSIGINFO, self->pid, NULL, &info) < 0 ||
        !transfer_registers(self->pid, &now, false)) {
        finish(self, "exit", 0);
        return;
    }
    const uint64_t base = self->blocks.area_address;
    if (signal == SIGTRAP && now.rip - base <= AREA_BUFFER && handle_trap(self, &now))
        return;
    if (signal == SIGSEGV && (uint64_t)(uintptr_t)info.si_addr - (base + AREA_BYTES) < GUARD_BYTES &&
        blocks_locate(&self->blocks, (uint32_t)(now.rip - base), &block, &instruction)) {
        handle_buffer_end(self, &now, &self->blocks.block[block]);
        return;
    }
    if (signal == SIGSTOP && watchdog_has_fired(&self->watchdog)) {
        handle_deadline(self, &now);
        return;
    }
    if (signal == SIGSEGV && info.si_code == SEGV_ACCERR &&
        handle_code_store(self, &now, (uint64_t)(uintptr_t)info.si_addr))
        return;
    bool is_fault = signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE ||
                    signal == SIGILL || signal == SIGTRAP;
    if (is_fault && info.si_code > 0)
        handle_fault(self, &now, signal);
    /* All else comes from outside and means the target. */
}

static void
run_to_stop(Translator *self)
{
    int status;
    double started = tracee_now_seconds();

    if (ptrace(PTRACE_CONT, self->pid, NULL, NULL) < 0 ||
        waitpid(self->pid, &status, __WALL) != self->pid || !WIFSTOPPED(status)) {
        finish(self, "exit", 0);
        return;
    }
    self->run_seconds += tracee_now_seconds() - started;
    self->traps++;
    if (status >> 16 == 0)
        handle_signal(self, WSTOPSIG(status));
    /* Stops with an event: the end of the call that prepared the shadow, job control. */
}

/* ---- What the shadow needs to run on ---- */

static void
swap(Translator *self)
{
    uint64_t *start = chunk_start(self);
    unsigned buffer_register = (unsigned)self->ip;

    memcpy(start, self->part, 8 * self->part_words);
    *gpr(&self->regs, buffer_register) = to_shadow(self, start);
    self->drained = self->written = start;
    self->need = NEED_NOTHING;
    if (!transfer_registers(self->pid, &self->regs, true))
        finish(self, "exit", 0);
}

/* NULL, or what Python has to do first. */
static const char *
enter(Translator *self)
{
    uint32_t block = NO_BLOCK;
    double started = tracee_now_seconds();
    enum translation result = self->from_exit >= 0
                                  ? blocks_link(&self->blocks, (uint32_t)self->from_exit, &block)
                                  : blocks_translate(&self->blocks, self->ip, &block);

    self->translation_seconds += tracee_now_seconds() - started;
    if (result == TRANSLATION_NEEDS_FORM)
        return "form";
    if (result == TRANSLATION_NO_MEMORY)
        return "memory";
    if (result == TRANSLATION_FULL) { /* what was recorded is expanded: start over */
        if (!visits_collect(&self->expansion.visits, &self->blocks) ||
            blocks_guide(&self->blocks) < 0)
            return "memory";
        self->from_exit = -1;
        return NULL;
    }
    if (self->is_indirect)
        blocks_publish(&self->blocks, block);
    self->regs.rip = self->blocks.area_address + self->blocks.block[block].cold;
    self->need = NEED_NOTHING;
    if (!transfer_registers(self->pid, &self->regs, true))
        finish(self, "exit", 0);
    return NULL;
}

static double
own_cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Expand what waits; NULL when all is done, or what Python has to do first. */
static const char *
drain(Translator *self)
{
    double started = own_cpu_seconds();
    enum expanded result = expand(&self->expansion, &self->drained, self->written);

    if (result == EXPANDED_ALL && self->has_cut_record && !self->expansion.is_full) {
        result = expand_part(&self->expansion, self->part, &self->part_exit);
        self->has_cut_record = result == EXPANDED_CHUNK;
    }
    self->expansion_seconds += own_cpu_seconds() - started;
    if (result == EXPANDED_NO_MEMORY)
        return "memory";
    if (result == EXPANDED_CHUNK)
        return "chunk";
    if (result == EXPANDED_MALFORMED)
        finish(self, "fault", SIGSEGV);
    if (result == EXPANDED_FULL) {
        self->has_cut_record = false;
        self->drained = self->written;
        finish(self, "full", 0);
    }
    return NULL;
}

static const char *
run(Translator *self)
{
    for (;;) {
        /* Only when the buffer is full, at the end, and before its blocks go. */
        bool is_due = self->need == NEED_SWAP || self->end != NULL ||
                      self->blocks.code_used + (1u << 20) > AREA_CODE_BYTES;
        const char *asked = is_due ? drain(self) : NULL;
        if (asked != NULL)
            return asked;
        if (self->end != NULL)
            return self->end;
        if (self->need == NEED_SWAP)
            swap(self);
        while (self->need == NEED_TARGET && self->end == NULL) {
            asked = enter(self);
            if (asked != NULL)
                return asked;
        }
        if (self->end == NULL)
            run_to_stop(self);
    }
}

/* ---- Python ---- */

/* The area may have been given back since the last run. */
static int
open_area(Translator *self)
{
    if (self->area.bytes != NULL)
        return 0;
    if (area_create(&self->area) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->blocks.area = self->area.bytes;
    blocks_flush(&self->blocks);
    return 0;
}

static PyObject *
translator_begin(Translator *self, PyObject *args)
{
    int pid, memory, pidfd;
    unsigned long long syscall_address, scratch_address, area_address, limit;
    double deadline_seconds;
    const char *ranges;
    Py_ssize_t ranges_bytes;
    PyObject *identity;
    enum tracee_status status = TRACEE_OK;
    unsigned line_shift;
    long dropped = 0;
    int error;
    PyObject *counter;

    if (!PyArg_ParseTuple(args, "iiiKKKy#OKIOd:begin", &pid, &pidfd, &memory, &syscall_address,
                          &scratch_address, &area_address, &ranges, &ranges_bytes, &identity,
                          &limit, &line_shift, &counter, &deadline_seconds))
        return NULL;
    if (ranges_bytes > (Py_ssize_t)sizeof self->writable_code ||
        ranges_bytes % (Py_ssize_t)sizeof(struct range) != 0) {
        PyErr_SetString(PyExc_ValueError, "writable_code is at most 64 pairs of uint64");
        return NULL;
    }
    if (counter != Py_None && (line_shift == 0 || limit > UINT32_MAX / 2)) {
        PyErr_SetString(PyExc_ValueError, "lines are counted, less than 2**31 of them");
        return NULL;
    }
    if (line_shift > 32) {
        PyErr_SetString(PyExc_ValueError, "lines are at most 4 GiB long");
        return NULL;
    }
    if (open_area(self) < 0)
        return NULL;
    memcpy(self->writable_code, ranges, (size_t)ranges_bytes);
    self->writable_ranges = (unsigned)((size_t)ranges_bytes / sizeof(struct range));
    if (emulation_begin(&self->emulation, identity) < 0)
        return NULL;
    if (emulation_forbid(&self->emulation, area_address,
                         area_address + AREA_BYTES + GUARD_BYTES) < 0)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    self->pid = pid;
    self->pidfd = pidfd;
    self->syscall_address = syscall_address;
    self->blocks.memory = memory;
    self->blocks.written_pages = 0;
    if (self->blocks.area_address != area_address)
        blocks_flush(&self->blocks);
    self->blocks.area_address = area_address;
    if (!transfer_registers(pid, &self->regs, false))
        status = TRACEE_GONE;
    else
        status = area_map(&self->area, pid, pidfd, &self->regs, syscall_address, scratch_address,
                          area_address);
    error = errno;
    for (unsigned i = 0; status == TRACEE_OK && i < self->writable_ranges; i++)
        if (!protect(self, &self->regs, self->writable_code[i], PROT_READ | PROT_EXEC))
            status = TRACEE_GONE;
    if (status == TRACEE_OK)
        dropped = blocks_check_code(&self->blocks);
    if (dropped >= 0 && blocks_want_guiding(&self->blocks) && blocks_guide(&self->blocks) < 0)
        dropped = -1;
    Py_END_ALLOW_THREADS
    if (status == TRACEE_CALL_FAILED) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (status != TRACEE_OK) {
        PyErr_Format(PyExc_ProcessLookupError, "shadow %d: %s", pid, tracee_status_name(status));
        return NULL;
    }
    if (dropped < 0)
        return PyErr_NoMemory();
    Py_XDECREF(self->counter);
    self->counter = counter == Py_None ? NULL : Py_NewRef(counter);
    expansion_begin(&self->expansion, limit, line_shift, self->counter != NULL);
    self->expansion.segment_base[ACCESS_FS] = self->regs.fs_base;
    self->expansion.segment_base[ACCESS_GS] = self->regs.gs_base;
    self->end = NULL;
    self->number = 0;
    self->ip = self->regs.rip;
    self->from_exit = -1;
    self->is_indirect = false;
    self->has_cut_record = false;
    self->need = NEED_TARGET;
    uint64_t *start = chunk_start(self);
    *slot(self, SLOT_BUFFER) = to_shadow(self, start);
    self->drained = self->written = start;
    watchdog_arm(&self->watchdog, pidfd, deadline_seconds);
    return PyLong_FromLong(dropped);
}

/* False with an exception set. */
static bool
borrow_counter(Translator *self)
{
    if (self->counter != NULL)
        self->expansion.counter = reuse_counter_borrow(self->counter);
    return self->counter == NULL || self->expansion.counter != NULL;
}

static PyObject *
translator_run(Translator *self, PyObject *ignored)
{
    const char *asked;
    (void)ignored;

    if (self->need == NEED_NOTHING && self->end == NULL) {
        PyErr_SetString(PyExc_ValueError, "begin first");
        return NULL;
    }
    if (!borrow_counter(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    asked = run(self);
    if (asked == self->end)
        watchdog_disarm(&self->watchdog);
    Py_END_ALLOW_THREADS
    if (self->counter != NULL)
        reuse_counter_give_back(self->counter);
    if (strcmp(asked, "memory") == 0)
        return PyErr_NoMemory();
    return Py_BuildValue("(sKl)", asked, (unsigned long long)self->ip, self->number);
}

static PyObject *
translator_wanted_form(Translator *self, PyObject *ignored)
{
    (void)ignored;
    return Py_BuildValue("(Ky#I)", (unsigned long long)self->blocks.sample_key,
                         (const char *)self->blocks.sample, (Py_ssize_t)FORM_SAMPLE_BYTES,
                         self->blocks.sample_operands);
}

static PyObject *
translator_add_form(Translator *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t size;
    struct form form;

    if (!PyArg_ParseTuple(args, "y#:add_form", &bytes, &size))
        return NULL;
    if (size != (Py_ssize_t)sizeof form) {
        PyErr_SetString(PyExc_ValueError, "not a form");
        return NULL;
    }
    memcpy(&form, bytes, sizeof form);
    if (form.references > RECIPE_REFERENCES || form.key == 0) {
        PyErr_SetString(PyExc_ValueError, "malformed form");
        return NULL;
    }
    if (form_table_put(&self->blocks.forms, &form) < 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *
translator_take(Translator *self, PyObject *ignored)
{
    struct expansion *x = &self->expansion;
    (void)ignored;
    PyObject *taken = rows_take(&x->rows, x->instructions, x->prefetches);
    x->instructions = x->prefetches = 0;
    return taken;
}

static PyObject *
translator_take_lines(Translator *self, PyObject *args)
{
    struct expansion *x = &self->expansion;
    unsigned shift;

    if (!PyArg_ParseTuple(args, "I:take_lines", &shift))
        return NULL;
    if (shift != x->line_shift) {
        PyErr_SetString(PyExc_ValueError, "not the lines that begin was asked for");
        return NULL;
    }
    PyObject *taken = lines_take(&x->lines, x->instructions, x->prefetches);
    x->instructions = x->prefetches = 0;
    return taken;
}

/* The rest of the lines is counted, too. */
static PyObject *
translator_take_counts(Translator *self, PyObject *ignored)
{
    struct expansion *x = &self->expansion;
    struct lines *lines = &x->lines;
    (void)ignored;

    if (self->counter == NULL) {
        PyErr_SetString(PyExc_ValueError, "lines are not counted");
        return NULL;
    }
    if (!borrow_counter(self))
        return NULL;
    bool counted = expansion_count(x);
    reuse_counter_give_back(self->counter);
    if (!counted)
        return PyErr_NoMemory();
    PyObject *taken = Py_BuildValue(
        "(KnnKK)", (unsigned long long)lines->accesses, (Py_ssize_t)lines->rows,
        (Py_ssize_t)lines->writes, (unsigned long long)x->instructions,
        (unsigned long long)x->prefetches);
    lines_begin(lines);
    x->instructions = x->prefetches = 0;
    return taken;
}

static PyObject *
translator_registers(Translator *self, PyObject *ignored)
{
    (void)ignored;
    return PyBytes_FromStringAndSize((const char *)&self->regs, sizeof self->regs);
}

static PyObject *
translator_emulated_calls(Translator *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(self->emulation.calls);
}

static PyObject *
words_as_bytes(const uint64_t *words, size_t count)
{
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof *words));
}

/* (addresses of instructions that ran, how often each did): uint64 as bytes; an instruction is there
 * once for each block that it ran in. */
static PyObject *
translator_visits(Translator *self, PyObject *ignored)
{
    const struct ran *ran = &self->expansion.visits.ran;
    (void)ignored;

    if (!visits_collect(&self->expansion.visits, &self->blocks))
        return PyErr_NoMemory();
    return Py_BuildValue("(NN)", words_as_bytes(ran->ip, ran->count),
                         words_as_bytes(ran->times, ran->count));
}

static PyObject *
translator_costs(Translator *self, PyObject *ignored)
{
    (void)ignored;
    return Py_BuildValue(
        "{sK,sd,sd,sd,sK,sK,sK}", "traps", (unsigned long long)self->traps, "run_seconds",
        self->run_seconds, "translation_seconds", self->translation_seconds, "expansion_seconds",
        self->expansion_seconds, "translated_instructions",
        (unsigned long long)self->blocks.translated_instructions, "blocks",
        (unsigned long long)self->blocks.count, "code_bytes",
        (unsigned long long)self->blocks.code_used);
}

static PyObject *
translator_guide(Translator *self, PyObject *args)
{
    unsigned executions;

    if (!PyArg_ParseTuple(args, "I:guide", &executions))
        return NULL;
    self->blocks.hot_executions = executions;
    if (!visits_collect(&self->expansion.visits, &self->blocks))
        return PyErr_NoMemory();
    if (self->area.bytes != NULL && blocks_guide(&self->blocks) < 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *
translator_cancel(Translator *self, PyObject *ignored)
{
    (void)ignored;
    watchdog_cancel(&self->watchdog);
    Py_RETURN_NONE;
}

static PyObject *
translator_close(Translator *self, PyObject *ignored)
{
    (void)ignored;
    if (!visits_collect(&self->expansion.visits, &self->blocks))
        return PyErr_NoMemory();
    if (self->area.bytes != NULL) {
        blocks_flush(&self->blocks);
        area_free(&self->area);
    }
    Py_RETURN_NONE;
}

static PyObject *
translator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

    if (!__builtin_cpu_supports("sse4.2")) {
        PyErr_SetString(PyExc_OSError, "the translator needs a CPU with SSE 4.2");
        return NULL;
    }
    Translator *self = (Translator *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->area.memfd = -1;
    if (area_create(&self->area) < 0 || watchdog_init(&self->watchdog) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    blocks_init(&self->blocks, self->area.bytes);
    self->expansion.blocks = &self->blocks;
    self->expansion.chunk_rows = ROWS_CHUNK;
    self->expansion.xstate = calloc(1, RECIPE_XSTATE_BYTES);
    if (self->expansion.xstate == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
translator_dealloc(Translator *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    watchdog_free(&self->watchdog);
    emulation_end(&self->emulation);
    blocks_free(&self->blocks);
    rows_clear(&self->expansion.rows);
    lines_clear(&self->expansion.lines);
    visits_free(&self->expansion.visits);
    Py_XDECREF(self->counter);
    free(self->expansion.xstate);
    area_free(&self->area);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef translator_methods[] = {
    {"begin", (PyCFunction)translator_begin, METH_VARARGS, "Prepare a stopped shadow."},
    {"run", (PyCFunction)translator_run, METH_NOARGS, "Run it until something is to be done."},
    {"wanted_form", (PyCFunction)translator_wanted_form, METH_NOARGS, "The form to describe."},
    {"add_form", (PyCFunction)translator_add_form, METH_VARARGS, "Describe a form."},
    {"take", (PyCFunction)translator_take, METH_NOARGS, "Hand over the rows recorded so far."},
    {"take_lines", (PyCFunction)translator_take_lines, METH_VARARGS,
     "Hand over the lines (address >> shift) that the rows recorded so far touch."},
    {"take_counts", (PyCFunction)translator_take_counts, METH_NOARGS,
     "Accesses counted so far, rows, stores, instructions, prefetches."},
    {"registers", (PyCFunction)translator_registers, METH_NOARGS, "The program's registers."},
    {"emulated_calls", (PyCFunction)translator_emulated_calls, METH_NOARGS,
     "System calls of the last run that were emulated."},
    {"visits", (PyCFunction)translator_visits, METH_NOARGS,
     "How often each instruction ran in the last run."},
    {"costs", (PyCFunction)translator_costs, METH_NOARGS, "Counts and times of all runs."},
    {"guide", (PyCFunction)translator_guide, METH_VARARGS,
     "Translate anew, along the ways that code took so many times at least."},
    {"close", (PyCFunction)translator_close, METH_NOARGS,
     "Give memory and translations back; a later run makes them anew."},
    {"cancel", (PyCFunction)translator_cancel, METH_NOARGS, "End this run and all later ones."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot translator_slots[] = {
    {Py_tp_doc, (void *)"Runs shadows in translated code and records their data references."},
    {Py_tp_new, (void *)translator_new},
    {Py_tp_dealloc, (void *)translator_dealloc},
    {Py_tp_methods, translator_methods},
    {0, NULL},
};

static PyType_Spec translator_spec = {
    .name = "memsampd._core.Translator",
    .basicsize = sizeof(Translator),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = translator_slots,
};

/* What the translator makes of one instruction's bytes, for tests. */
static PyObject *
take_apart(PyObject *module, PyObject *args)
{
    const char *code;
    Py_ssize_t size;
    struct parsed p;
    uint8_t sample[FORM_SAMPLE_BYTES];
    (void)module;

    if (!PyArg_ParseTuple(args, "y#:take_apart", &code, &size))
        return NULL;
    if (!parse((const uint8_t *)code, (size_t)size, &p))
        Py_RETURN_NONE;
    unsigned operands = form_sample(&p, sample);
    return Py_BuildValue("(KIy#I)", (unsigned long long)p.key, (unsigned)p.length,
                         (const char *)sample, (Py_ssize_t)sizeof sample, operands);
}

static PyMethodDef functions[] = {
    {"take_apart", take_apart, METH_VARARGS, "Key, bytes before immediates, sample of a form."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_translator(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&translator_spec);
    if (type == NULL || PyModule_AddIntConstant(module, "FORM_BYTES", sizeof(struct form)) < 0 ||
        PyModule_AddIntConstant(module, "AREA_BYTES", AREA_BYTES + GUARD_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "HOT_EXECUTIONS", HOT_EXECUTIONS) < 0)
        return -1;
    int result = PyModule_AddObjectRef(module, "Translator", type);
    result = result < 0 ? result : PyModule_AddFunctions(module, functions);
    Py_DECREF(type);
    return result;
}
