/* memsampd._core.Replica takes bursts, and is told the forms of instructions that these want. */
#include "replica.h"

#include <string.h>

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
        "{ss,si,ss,sl,sK,sO,sd,sd,sd,sI,sI,sI,sI,sO,sO,sK,sK,sd,sd,sK,sK,sy#,sy#,sy#}",
        "status", held_status_name(b->status), "error", b->error, "end", run_end_name(b->end),
        "number", r->number, "ip", (unsigned long long)r->ip,
        "is_lost", b->is_lost ? Py_True : Py_False, "started_seconds", b->started_seconds,
        "held_seconds", b->held_seconds, "longest_seconds", b->longest_seconds,
        "holds", b->holds, "calls", b->calls, "compared", b->compared, "equal", b->equal,
        "cut_short", b->cut_short ? Py_True : Py_False,
        "has_company", b->has_company ? Py_True : Py_False,
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

/* In the burst's thread: have Python describe the form that is wanted. */
static bool
describe_form(void *context)
{
    PyObject *describe = context;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallNoArgs(describe);

    if (result == NULL)
        PyErr_WriteUnraisable(describe);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return result != NULL;
}

PyObject *
replica_burst(Replica *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"tid", "accesses", "hold_seconds", "patience_seconds", "chain_seconds",
                            "dry_seconds", "describe", "beyond_seconds",
                            "arrival_leader", "arrival", "arrival_seconds", "arrival_end", NULL};
    struct burst_order order = {.arrival_leader = -1, .arrival = -1, .arrival_end = -1};
    PyObject *describe = NULL;
    unsigned long long accesses;
    int tid, failed;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iKd|dddOdiidi:burst", names, &tid, &accesses,
                                     &order.hold_seconds, &order.patience_seconds,
                                     &order.chain_seconds, &order.dry_seconds, &describe,
                                     &order.beyond_seconds, &order.arrival_leader,
                                     &order.arrival, &order.arrival_seconds,
                                     &order.arrival_end))
        return NULL;
    if (describe != NULL && describe != Py_None) {
        order.describe = describe_form;
        order.context = describe;
    }
    order.tid = tid;
    order.accesses = accesses;
    Py_BEGIN_ALLOW_THREADS
    failed = burst_take(&self->runner, &order, &self->last);
    Py_END_ALLOW_THREADS
    if (failed < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    self->parts.count = 0;
    return result_as_dict(&self->runner, &self->last);
}

PyObject *
replica_wanted_form(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct blocks *b = &self->runner.blocks;

    if (self->runner.end != RUN_COLD)
        return Py_BuildValue("(iyi)", 0, "", 0);
    return Py_BuildValue("(Ky#I)", (unsigned long long)b->sample_key, (const char *)b->sample,
                         (Py_ssize_t)FORM_SAMPLE_BYTES, b->sample_operands);
}

PyObject *
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
