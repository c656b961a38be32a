/* memsampd._core.Replica: bursts of one target, from a process of ours that stands in for it. */
#include "replica.h"
#include "dependences.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Its life ---- */

PyObject *
replica_raise_errno(const char *what)
{
    PyObject *message = PyUnicode_FromFormat("%s: %s", what, strerror(errno));
    PyObject *arguments = message != NULL ? Py_BuildValue("(iN)", errno, message) : NULL;

    if (arguments != NULL)
        PyErr_SetObject(PyExc_OSError, arguments);
    Py_XDECREF(arguments);
    return NULL;
}

static PyObject *
replica_costs(Replica *self, PyObject *Py_UNUSED(ignored))
{
    const struct runner *r = &self->runner;

    return Py_BuildValue("{sK,sK,sd,sK,sK}", "traps", (unsigned long long)r->traps, "faults",
                         (unsigned long long)r->faults, "run_seconds", r->run_seconds,
                         "translated_instructions",
                         (unsigned long long)r->blocks.translated_instructions, "blocks",
                         (unsigned long long)r->blocks.count);
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
    return PyBool_FromLong(process_is_dead(&self->runner.process) ||
                           !remote_is_there(&self->runner.remote));
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
        replica_raise_errno("room for translated code");
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
        replica_raise_errno(r->process.trouble);
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

/* ---- The type ---- */

static PyMethodDef replica_methods[] = {
    {"burst", (PyCFunction)(void (*)(void))replica_burst, METH_VARARGS | METH_KEYWORDS,
     "Hold a thread and run its replica; then take what it recorded."},
    {"begin_take", (PyCFunction)replica_begin_take, METH_VARARGS,
     "Begin to take what was recorded, or a part: at most so many rows, or, given a shift and a counter, "
     "have lines of 1 << shift bytes counted."},
    {"take", (PyCFunction)replica_take, METH_NOARGS, "The next chunk; None behind the last."},
    {"rows_again", (PyCFunction)replica_rows_again, METH_VARARGS,
     "Which of the first rows are of chosen lines, and these rows as take gives them."},
    {"core_times", (PyCFunction)replica_core_times, METH_NOARGS,
     "How long what was taken would take on a modelled core."},
    {"parts", (PyCFunction)replica_parts, METH_VARARGS,
     "How many parts it has that go at unlike speeds."},
    {"repeats", (PyCFunction)replica_repeats, METH_NOARGS,
     "Elements that rep movs and rep stos moved in what was taken."},
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

/* ---- Functions beside it ---- */

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

/* Which registers one instruction waits for, of its form and of its address, and which it sets, for tests. */
static PyObject *
dependences(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *code, *bytes;
    Py_ssize_t size, form_size;
    struct parsed p;
    struct form form;

    if (!PyArg_ParseTuple(args, "y#y#:dependences", &code, &size, &bytes, &form_size))
        return NULL;
    if ((size_t)form_size != sizeof form || !parse((const uint8_t *)code, (size_t)size, &p)) {
        PyErr_SetString(PyExc_ValueError, "an instruction and its form");
        return NULL;
    }
    memcpy(&form, bytes, sizeof form);
    const struct dependences d = dependences_of(&p, &form);
    return Py_BuildValue("(KKK)", (unsigned long long)d.data, (unsigned long long)d.address,
                         (unsigned long long)d.results);
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
    {"dependences", dependences, METH_VARARGS, "Registers that one instruction reads, addresses by, sets."},
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
        {"HURRIED_MILLISECONDS", HURRIED_MILLISECONDS},
        {NULL, 0},
    };

    return memsampd_add_constants(module, constants) < 0 ||
                   memsampd_add_type(module, &replica_spec) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
