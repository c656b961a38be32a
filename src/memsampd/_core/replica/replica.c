/* memsampd._core.Replica: bursts of one target, from a process of ours that stands in for it. */
#include "core.h"
#include "burst.h"
#include "code_change.h"
#include "stepper.h"
#include "stored_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_ROWS ((size_t)1 << 15) /* in a cache still, and few enough to cost Python little */

typedef struct {
    PyObject_HEAD
    struct runner runner;
    struct stepper stepper;
    struct core_model *core;
    struct burst_parts parts; /* of the last burst, as far as somebody asked */
    struct held held; /* by the calls that are made one by one */
    pid_t pid;
    bool may_execute, is_open;
    double expansion_seconds, visits_seconds; /* CPU time of this thread's, counting included */
    bool has_cut_record; /* still to be expanded */
    const uint64_t *at; /* of what was recorded, expanded up to here */
    const uint64_t *from, *until; /* the part of it that is taken */
    bool is_expanded;
    PyObject *counter; /* a ReuseCounter that takes the lines, or NULL */
    struct burst_result last;
} Replica;

static PyObject *
raise_errno(const char *what)
{
    PyObject *message = PyUnicode_FromFormat("%s: %s", what, strerror(errno));
    PyObject *arguments = message != NULL ? Py_BuildValue("(iN)", errno, message) : NULL;

    if (arguments != NULL)
        PyErr_SetObject(PyExc_OSError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

/* ---- A burst ---- */

/* In the order of samples (perf.c). */
static void
put_registers(uint64_t *out, const struct user_regs_struct *r)
{
    const uint64_t registers[16] = {r->rax, r->rbx, r->rcx, r->rdx, r->rsi, r->rdi, r->rbp, r->rsp,
                                    r->r8,  r->r9,  r->r10, r->r11, r->r12, r->r13, r->r14, r->r15};
    memcpy(out, registers, sizeof registers);
}

static PyObject *
result_as_dict(const struct runner *r, const struct burst_result *b)
{
    uint64_t stretch[16 * (3 + FURTHER_MOST)];
    uint64_t ips[3 + FURTHER_MOST] = {b->first.rip, b->released.rip, b->last.rip};
    uint64_t further[FURTHER_MOST];
    const size_t moments = 3 + b->furthers;

    put_registers(stretch, &b->first);
    put_registers(stretch + 16, &b->released);
    put_registers(stretch + 32, &b->last);
    for (unsigned i = 0; i < b->furthers; i++) {
        put_registers(stretch + 16 * (3 + i), &b->further[i].regs);
        ips[3 + i] = b->further[i].regs.rip;
        further[i] = b->further[i].accesses;
    }
    return Py_BuildValue(
        "{ss,si,ss,sl,sK,sO,sd,sd,sd,sI,sI,sI,sI,sO,sK,sK,sd,sd,sK,sK,sy#,sy#,sy#}",
        "status", held_status_name(b->status), "error", b->error, "end", run_end_name(b->end),
        "number", r->number, "ip", (unsigned long long)r->ip,
        "is_lost", b->is_lost ? Py_True : Py_False, "started_seconds", b->started_seconds,
        "held_seconds", b->held_seconds, "longest_seconds", b->longest_seconds,
        "holds", b->holds, "calls", b->calls, "compared", b->compared, "equal", b->equal,
        "cut_short", b->cut_short ? Py_True : Py_False,
        "pages_predicted", (unsigned long long)b->pages_predicted,
        "pages_missed", (unsigned long long)b->pages_missed,
        "replica_cpu_seconds", b->replica_cpu_seconds,
        "tracer_cpu_seconds", b->tracer_cpu_seconds,
        "held_accesses", (unsigned long long)b->held_accesses,
        "accesses", (unsigned long long)b->accesses,
        "further", (const char *)further, (Py_ssize_t)(b->furthers * sizeof *further),
        "stretch", (const char *)stretch, (Py_ssize_t)(16 * moments * sizeof *stretch),
        "stretch_ip", (const char *)ips, (Py_ssize_t)(moments * sizeof *ips));
}

struct describer {
    Replica *self;
    PyObject *callable;
};

/* In the burst's thread: have Python describe the form that is wanted. */
static bool
describe_form(void *context)
{
    struct describer *d = context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallNoArgs(d->callable);

    if (result == NULL)
        PyErr_WriteUnraisable(d->callable);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return result != NULL;
}

static PyObject *
replica_burst(Replica *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"tid", "accesses", "hold_seconds", "patience_seconds", "chain_seconds",
                            "dry_seconds", "has_company", "describe", "beyond_seconds",
                            "arrival_leader", "arrival", "arrival_seconds", "arrival_end", NULL};
    struct describer describer = {self, NULL};
    struct burst_order order = {.arrival_leader = -1, .arrival = -1, .arrival_end = -1};
    unsigned long long accesses;
    int tid, has_company = 0, failed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iKd|dddpOdiidi:burst", names, &tid, &accesses,
                                     &order.hold_seconds, &order.patience_seconds,
                                     &order.chain_seconds, &order.dry_seconds, &has_company,
                                     &describer.callable, &order.beyond_seconds,
                                     &order.arrival_leader, &order.arrival,
                                     &order.arrival_seconds, &order.arrival_end))
        return NULL;
    if (describer.callable != NULL && describer.callable != Py_None) {
        order.describe = describe_form;
        order.context = &describer;
    }
    order.tid = tid;
    order.accesses = accesses;
    order.has_company = has_company;
    Py_BEGIN_ALLOW_THREADS
    failed = burst_take(&self->runner, &order, &self->last);
    Py_END_ALLOW_THREADS
    if (failed < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    self->parts.count = 0;
    return result_as_dict(&self->runner, &self->last);
}

/* ---- What it recorded ---- */

/* Made when it is wanted first. False without memory, with an exception set. */
static bool
has_core(Replica *self)
{
    if (self->core == NULL && (self->core = core_model_create()) == NULL)
        PyErr_NoMemory();
    return self->core != NULL;
}

/* How many parts the last burst has, up to so many accesses; whether it began where code was sought. */
static PyObject *
replica_parts(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    unsigned long long most_accesses;
    int is_sought;

    if (!PyArg_ParseTuple(args, "Kp:parts", &most_accesses, &is_sought))
        return NULL;
    if (!has_core(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    self->parts = find_parts(self->core, &r->blocks, r->expansion.segment_base, r->start,
                             r->written, most_accesses, is_sought);
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(self->parts.count);
}

static PyObject *
replica_begin_take(Replica *self, PyObject *args)
{
    unsigned long long limit;
    unsigned line_shift;
    int part = -1;
    PyObject *counter = Py_None;
    struct runner *r = &self->runner;

    if (!PyArg_ParseTuple(args, "KI|Oi:begin_take", &limit, &line_shift, &counter, &part))
        return NULL;
    if ((counter != Py_None) != (line_shift != 0) || (line_shift != 0 && limit > UINT32_MAX / 2)) {
        PyErr_SetString(PyExc_ValueError, "lines are counted, less than 2**31 of them");
        return NULL;
    }
    if (line_shift > 32) {
        PyErr_SetString(PyExc_ValueError, "lines are at most 4 GiB long");
        return NULL;
    }
    if (part >= (int)self->parts.count) {
        PyErr_SetString(PyExc_ValueError, "there is no such part");
        return NULL;
    }
    Py_XDECREF(self->counter);
    self->counter = counter == Py_None ? NULL : Py_NewRef(counter);
    r->expansion.chunk_rows = CHUNK_ROWS;
    expansion_begin(&r->expansion, limit, line_shift);
    self->from = self->at = part > 0 ? self->parts.end[part - 1] : r->start;
    self->until = part >= 0 ? self->parts.end[part] : r->written;
    self->has_cut_record = r->has_cut_record && self->until == r->written;
    self->is_expanded = false;
    Py_RETURN_NONE;
}

static void
note_pages(void *context, const uint64_t *lines, size_t count, unsigned shift)
{
    pages_note_lines(context, lines, count, shift);
}

/* Expand until a chunk is due; -1: no memory. */
static int
expand_some(Replica *self)
{
    struct runner *r = &self->runner;
    struct expansion *x = &r->expansion;
    enum expanded result = expand(x, &self->at, self->until);

    if (result == EXPANDED_ALL && self->has_cut_record && !x->is_full) {
        result = expand_part(x, r->written, &r->part_exit);
        self->has_cut_record = result == EXPANDED_CHUNK;
    }
    self->is_expanded = result != EXPANDED_CHUNK;
    if (result == EXPANDED_NO_MEMORY || (x->line_shift != 0 && !expansion_count(x)))
        return -1;
    if (x->line_shift == 0)
        note_pages(&r->pages, x->rows.address, x->rows.count, 0);
    return 0;
}

/* Learn how many words an access takes, so that the buffer ends where the burst is full. What lies behind
 * the last access that was wanted tells nothing. */
static void
learn_words(struct runner *r, const uint64_t *from, const uint64_t *until)
{
    if (r->expansion.total < 1000)
        return;
    double seen = (double)(until - from) / (double)r->expansion.total;
    r->words_per_access += 0.5 * (seen - r->words_per_access);
}

static PyObject *
counts_taken(struct expansion *x)
{
    PyObject *taken = Py_BuildValue("(KKKK)", (unsigned long long)x->counted_rows,
                                    (unsigned long long)x->counted_writes,
                                    (unsigned long long)x->instructions,
                                    (unsigned long long)x->prefetches);
    x->counted_rows = x->counted_writes = 0;
    return taken;
}

static PyObject *
replica_take(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct expansion *x = &self->runner.expansion;
    int failed;

    if (self->is_expanded)
        Py_RETURN_NONE;
    if (self->counter != NULL && (x->counter = reuse_counter_borrow(self->counter)) == NULL)
        return NULL;
    x->note = note_pages;
    x->note_context = &self->runner.pages;
    Py_BEGIN_ALLOW_THREADS
    double started = thread_cpu_seconds();
    failed = expand_some(self);
    self->expansion_seconds += thread_cpu_seconds() - started;
    Py_END_ALLOW_THREADS
    if (self->counter != NULL)
        reuse_counter_give_back(self->counter);
    if (failed < 0)
        return PyErr_NoMemory();
    if (self->is_expanded && self->until == self->runner.written)
        learn_words(&self->runner, self->from, self->at);
    PyObject *taken = self->counter != NULL
                          ? counts_taken(x)
                          : rows_take(&x->rows, x->instructions, x->prefetches);
    x->instructions = x->prefetches = 0;
    return taken;
}

static PyObject *
words_as_bytes(const uint64_t *words, size_t count)
{
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof *words));
}

/* An instruction is there once for each block that it ran in. */
static PyObject *
replica_visits(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct expansion *x = &self->runner.expansion;
    const struct ran *ran = &x->visits.ran;
    double started = thread_cpu_seconds();

    if (!visits_collect(&x->visits, x->blocks))
        return PyErr_NoMemory();
    self->visits_seconds += thread_cpu_seconds() - started;
    return Py_BuildValue("(NN)", words_as_bytes(ran->ip, ran->count),
                         words_as_bytes(ran->times, ran->count));
}

/* What the core model says of what was taken: (instructions, accesses, distant ones, cycles if all are near, cycles). */
static PyObject *
replica_core_times(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct runner *r = &self->runner;
    struct core_times t;
    double started = thread_cpu_seconds();

    if (!has_core(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    t = core_model_run(self->core, &r->blocks, r->expansion.segment_base, self->from, self->at);
    const uint64_t *stored;
    const size_t stores = core_model_stores(self->core, &stored);
    pages_note_stores(&self->runner.pages, stored, stores);
    Py_END_ALLOW_THREADS
    self->visits_seconds += thread_cpu_seconds() - started;
    return Py_BuildValue("(KKKdd)", (unsigned long long)t.instructions,
                         (unsigned long long)t.accesses, (unsigned long long)t.distant,
                         t.near_cycles, t.distant_cycles);
}

/* ---- Forms ---- */

static PyObject *
replica_wanted_form(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct blocks *b = &self->runner.blocks;

    if (self->runner.end != RUN_COLD)
        return Py_BuildValue("(iyi)", 0, "", 0);
    return Py_BuildValue("(Ky#I)", (unsigned long long)b->sample_key, (const char *)b->sample,
                         (Py_ssize_t)FORM_SAMPLE_BYTES, b->sample_operands);
}

static PyObject *
replica_add_forms(Replica *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t size;
    struct form form;

    if (!PyArg_ParseTuple(args, "y#:add_forms", &bytes, &size))
        return NULL;
    if (size % (Py_ssize_t)sizeof form != 0) {
        PyErr_SetString(PyExc_ValueError, "not forms");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < size; at += (Py_ssize_t)sizeof form) {
        memcpy(&form, bytes + at, sizeof form);
        if (form.references > RECIPE_REFERENCES || form.key == 0) {
            PyErr_SetString(PyExc_ValueError, "malformed form");
            return NULL;
        }
        if (form_table_put(&self->runner.blocks.forms, &form) < 0)
            return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

/* ---- One by one, in the caller's thread: for tests of translated code ---- */

static PyObject *
replica_hold(Replica *self, PyObject *args)
{
    int tid;
    enum held_status status;

    if (!PyArg_ParseTuple(args, "i:hold", &tid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = held_stop(&self->held, self->pid, tid);
    Py_END_ALLOW_THREADS
    return PyUnicode_FromString(held_status_name(status));
}

static PyObject *
replica_release(Replica *self, PyObject *Py_UNUSED(ignored))
{
    held_release(&self->held);
    process_park(&self->runner.process);
    process_drop_all(&self->runner.process);
    return PyFloat_FromDouble(self->held.held_seconds);
}

/* Put the replica, empty, where the held thread is; `stepping`: itself, not a translation. */
static PyObject *
replica_place(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    unsigned long long accesses;
    int stepping;
    bool good;

    if (!PyArg_ParseTuple(args, "Kp:place", &accesses, &stepping))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    process_park(&r->process);
    good = process_seize(&r->process);
    process_drop_all(&r->process);
    pages_begin(&r->pages);
    remote_forget(&r->remote);
    good = good && blocks_check_code(&r->blocks, false) >= 0;
    if (good && blocks_want_guiding(&r->blocks))
        good = blocks_guide(&r->blocks) == 0;
    good = good && (stepping ? stepper_enter(r, &self->held)
                             : runner_enter(r, &self->held, accesses));
    Py_END_ALLOW_THREADS
    self->stepper.rows.count = 0;
    if (!good)
        return raise_errno("the replica");
    Py_RETURN_NONE;
}

static PyObject *
replica_go(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    double seconds;
    enum run_end end;

    if (!PyArg_ParseTuple(args, "d:go", &seconds))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (r->end == RUN_COLD) /* the form that was wanted has come */
        r->end = RUN_GOES_ON;
    runner_run(r, NULL, now_seconds() + seconds);
    end = r->end;
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(sKl)", run_end_name(end), (unsigned long long)r->ip, r->number);
}

static PyObject *
replica_step(Replica *self, PyObject *args)
{
    Py_ssize_t max_rows;
    double seconds;
    uint64_t ip;
    long number;
    const char *end;

    if (!PyArg_ParseTuple(args, "nd:step", &max_rows, &seconds))
        return NULL;
    if (!self->may_execute) {
        PyErr_SetString(PyExc_ValueError, "this replica cannot execute its memory");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    end = stepper_run(&self->stepper, &self->runner, (size_t)max_rows, now_seconds() + seconds, &ip,
                      &number);
    Py_END_ALLOW_THREADS
    if (strcmp(end, "memory") == 0)
        return PyErr_NoMemory();
    return Py_BuildValue("(sKl)", end, (unsigned long long)ip, number);
}

static PyObject *
replica_add_recipes(Replica *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t size;
    struct recipe r;

    if (!PyArg_ParseTuple(args, "y#:add_recipes", &bytes, &size))
        return NULL;
    if (size % (Py_ssize_t)sizeof r != 0) {
        PyErr_SetString(PyExc_ValueError, "not an array of recipes");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < size; at += (Py_ssize_t)sizeof r) {
        memcpy(&r, bytes + at, sizeof r);
        if (r.references > RECIPE_REFERENCES || r.length > RECIPE_CODE_BYTES || r.ip == 0) {
            PyErr_SetString(PyExc_ValueError, "malformed recipe");
            return NULL;
        }
        if (recipe_table_put(&self->stepper.recipes, &r) < 0)
            return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *
replica_take_steps(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct stepper *s = &self->stepper;

    PyObject *taken = rows_take(&s->rows, s->instructions, s->prefetches);
    s->instructions = s->prefetches = 0;
    return taken;
}

/* ---- Its life ---- */

static PyObject *
replica_costs(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct runner *r = &self->runner;

    return Py_BuildValue(
        "{sd,sd,sK,sK,sd,sd,sd,sK,sK,sK}", "expansion_seconds", self->expansion_seconds,
        "visits_seconds", self->visits_seconds, "traps", (unsigned long long)r->traps, "faults",
        (unsigned long long)r->faults, "run_seconds", r->run_seconds, "fault_seconds",
        r->fault_seconds, "translation_seconds", r->translation_seconds, "translated_instructions",
        (unsigned long long)r->blocks.translated_instructions, "blocks",
        (unsigned long long)r->blocks.count, "code_bytes", (unsigned long long)r->blocks.code_used);
}

static PyObject *
replica_registers(Replica *self, PyObject *Py_UNUSED(ignored))
{
    return PyBytes_FromStringAndSize((const char *)&self->runner.regs, sizeof self->runner.regs);
}

static PyObject *
replica_guide(Replica *self, PyObject *args)
{
    unsigned executions;

    if (!PyArg_ParseTuple(args, "I:guide", &executions))
        return NULL;
    self->runner.blocks.hot_executions = executions;
    if (blocks_guide(&self->runner.blocks) < 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *
replica_features(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct runner *r = &self->runner;

    return Py_BuildValue("{sO,sO,sO}", "can_query", r->remote.can_query ? Py_True : Py_False,
                         "can_protect", r->process.can_protect ? Py_True : Py_False, "can_keep",
                         r->process.can_keep ? Py_True : Py_False);
}

static PyObject *
replica_process(Replica *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(self->runner.process.pid);
}

/* A process that has executed another program has another memory. */
static PyObject *
replica_is_stale(Replica *self, PyObject *Py_UNUSED(ignored))
{
    char byte;

    return PyBool_FromLong(process_is_dead(&self->runner.process) ||
                           pread(self->runner.remote.maps, &byte, 1, 0) != 1);
}

static PyObject *
replica_cancel(Replica *self, PyObject *Py_UNUSED(ignored))
{
    self->runner.is_cancelled = 1;
    Py_RETURN_NONE;
}

static PyObject *
replica_close(Replica *self, PyObject *Py_UNUSED(ignored))
{
    process_destroy(&self->runner.process);
    remote_close(&self->runner.remote);
    area_close(&self->runner.area);
    Py_RETURN_NONE;
}

static int
open_all(Replica *self, pid_t pid, uint64_t area_address, bool can_query, bool may_keep)
{
    struct runner *r = &self->runner;

    if (runner_init(r) < 0 || stepper_init(&self->stepper) < 0 || alarm_install() < 0) {
        PyErr_NoMemory();
        return -1;
    }
    silence_stops();
    if (remote_open(&r->remote, pid, can_query) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    r->blocks.area_address = area_address;
    if (process_create(&r->process, &r->area, area_address, self->may_execute, may_keep) < 0) {
        errno = errno == ESRCH ? ECHILD : errno; /* ours is gone, not the target */
        raise_errno(r->process.trouble);
        return -1;
    }
    return 0;
}

static PyObject *
replica_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"pid", "area_address", "can_query", "supplies_pages", "shares_clock",
                            "may_execute", "may_keep", NULL};
    int pid, can_query = 1, supplies_pages = 0, shares_clock = 1, may_execute = 0, may_keep = 1;
    unsigned long long area_address;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iK|ppppp:Replica", names, &pid, &area_address,
                                     &can_query, &supplies_pages, &shares_clock, &may_execute,
                                     &may_keep))
        return NULL;
    if (!__builtin_cpu_supports("sse4.2")) {
        PyErr_SetString(PyExc_OSError, "the translator needs a CPU with SSE 4.2");
        return NULL;
    }
    Replica *self = (Replica *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->pid = pid;
    self->may_execute = may_execute;
    if (open_all(self, pid, area_address, can_query, may_keep) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->runner.remote.supplies_pages = supplies_pages;
    self->runner.remote.shares_clock = shares_clock;
    return (PyObject *)self;
}

static void
replica_dealloc(Replica *self)
{
    Py_XDECREF(self->counter);
    free(self->core);
    runner_free(&self->runner);
    stepper_free(&self->stepper);
    memsampd_free((PyObject *)self);
}

static PyMethodDef replica_methods[] = {
    {"burst", (PyCFunction)(void (*)(void))replica_burst, METH_VARARGS | METH_KEYWORDS,
     "Hold a thread and run its replica; then take what it recorded."},
    {"begin_take", (PyCFunction)replica_begin_take, METH_VARARGS,
     "Begin to take what was recorded, or a part: at most so many rows, or, given a shift and a counter, "
     "have lines of 1 << shift bytes counted."},
    {"take", (PyCFunction)replica_take, METH_NOARGS, "The next chunk; None behind the last."},
    {"core_times", (PyCFunction)replica_core_times, METH_NOARGS,
     "How long what was taken would take on a modelled core."},
    {"parts", (PyCFunction)replica_parts, METH_VARARGS,
     "How many parts it has that go at unlike speeds."},
    {"visits", (PyCFunction)replica_visits, METH_NOARGS,
     "Addresses of the instructions that ran, and how often each did."},
    {"wanted_form", (PyCFunction)replica_wanted_form, METH_NOARGS, "The form to describe."},
    {"add_forms", (PyCFunction)replica_add_forms, METH_VARARGS, "Describe forms, one after the other."},
    {"hold", (PyCFunction)replica_hold, METH_VARARGS, "Hold a thread."},
    {"place", (PyCFunction)replica_place, METH_VARARGS, "Put the replica where it is."},
    {"go", (PyCFunction)replica_go, METH_VARARGS, "Run it in translated code."},
    {"step", (PyCFunction)replica_step, METH_VARARGS, "Run it step by step."},
    {"add_recipes", (PyCFunction)replica_add_recipes, METH_VARARGS, "Describe instructions."},
    {"take_steps", (PyCFunction)replica_take_steps, METH_NOARGS, "The rows of steps."},
    {"release", (PyCFunction)replica_release, METH_NOARGS, "Let the held thread go."},
    {"registers", (PyCFunction)replica_registers, METH_NOARGS, "The program's registers."},
    {"costs", (PyCFunction)replica_costs, METH_NOARGS, "Counts and times of all runs."},
    {"guide", (PyCFunction)replica_guide, METH_VARARGS,
     "Translate anew, along the ways that code took so many times at least."},
    {"features", (PyCFunction)replica_features, METH_NOARGS, "What the kernel offers."},
    {"process", (PyCFunction)replica_process, METH_NOARGS, "Process id of the replica."},
    {"is_stale", (PyCFunction)replica_is_stale, METH_NOARGS,
     "Whether the target is another program now, or the replica gone."},
    {"cancel", (PyCFunction)replica_cancel, METH_NOARGS, "End this burst and all later ones."},
    {"close", (PyCFunction)replica_close, METH_NOARGS, "End the replica."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot replica_slots[] = {
    {Py_tp_doc, (void *)"A process that stands in for a target, to record what that references."},
    {Py_tp_new, (void *)replica_new},
    {Py_tp_dealloc, (void *)replica_dealloc},
    {Py_tp_methods, replica_methods},
    {0, NULL},
};

static PyType_Spec replica_spec = {
    .name = "memsampd._core.Replica",
    .basicsize = sizeof(Replica),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = replica_slots,
};

/* What the translator makes of one instruction's bytes, for tests. */
static PyObject *
take_apart(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *code;
    Py_ssize_t size;
    struct parsed p;
    uint8_t sample[FORM_SAMPLE_BYTES];

    if (!PyArg_ParseTuple(args, "y#:take_apart", &code, &size))
        return NULL;
    if (!parse((const uint8_t *)code, (size_t)size, &p))
        Py_RETURN_NONE;
    unsigned operands = form_sample(&p, sample);
    return Py_BuildValue("(KIy#I)", (unsigned long long)p.key, (unsigned)p.length,
                         (const char *)sample, (Py_ssize_t)sizeof sample, operands);
}

static PyObject *
name_of_syscall(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long number;

    if (!PyArg_ParseTuple(args, "K:syscall_name", &number))
        return NULL;
    const char *name = syscall_name(number);
    if (name == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(name);
}

static PyMethodDef functions[] = {
    {"take_apart", take_apart, METH_VARARGS, "Key, bytes before immediates, sample of a form."},
    {"syscall_name", name_of_syscall, METH_VARARGS, "Name of a system call, or None."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_replica(PyObject *module)
{
    static const struct constant constants[] = {
        {"FORM_BYTES", sizeof(struct form)},
        {"DISTANT_CYCLES", DISTANT_CYCLES},
        {"RECIPE_BYTES", sizeof(struct recipe)},
        {"AREA_BYTES", AREA_BYTES + GUARD_BYTES},
        {"HOT_EXECUTIONS", HOT_EXECUTIONS},
        {NULL, 0},
    };

    return memsampd_add_constants(module, constants) < 0 ||
                   memsampd_add_type(module, &replica_spec) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
