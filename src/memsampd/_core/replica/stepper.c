/* Executing a shadow instruction by instruction and writing down what it references. */
#include "core.h"
#include "emulation.h"
#include "recipe.h"
#include "rows.h"
#include "tracee.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define XSTATE_MAXIMUM_BYTES 16384
#define TRAP_FLAG 0x100u
#define DEADLINE_CHECK_STEPS 256

typedef struct {
    PyObject_HEAD
    struct recipe_table recipes;
    struct rows rows;
    uint64_t instructions, prefetches;
    struct emulation emulation;
    uint8_t *xstate;
    volatile int cancelled; /* set from another thread */
} Stepper;

static bool
read_registers(pid_t pid, struct user_regs_struct *regs)
{
    struct iovec area = {regs, sizeof *regs};
    return ptrace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0;
}

/* Whether the code at `r` is still what was decoded: programs with a JIT compiler rewrite theirs. */
static bool
is_current(pid_t pid, const struct recipe *r)
{
    uint8_t code[RECIPE_CODE_BYTES];
    struct iovec mine = {code, r->length};
    struct iovec theirs = {(void *)(uintptr_t)r->ip, r->length};
    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == r->length &&
           memcmp(code, r->code, r->length) == 0;
}

/* The flags that pushf wrote show the trap flag that stepping sets: the program never had it. */
static void
hide_trap_flag(pid_t pid, uint64_t stack_pointer)
{
    uint64_t flags;
    struct iovec mine = {&flags, sizeof flags};
    struct iovec theirs = {(void *)(uintptr_t)stack_pointer, sizeof flags};
    if (process_vm_readv(pid, &mine, 1, &theirs, 1, 0) != sizeof flags)
        return;
    flags &= ~(uint64_t)TRAP_FLAG;
    process_vm_writev(pid, &mine, 1, &theirs, 1, 0);
}

/* Run to the next stop; false when the shadow is gone. Blocking, unlike tracee_wait: on the one CPU
 * that tracer and shadow share, polling would only delay it. */
static bool
resume_one(pid_t pid, struct user_regs_struct *regs, int *status, siginfo_t *info)
{
    if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0 || waitpid(pid, status, __WALL) != pid ||
        !WIFSTOPPED(*status) || !read_registers(pid, regs))
        return false;
    info->si_code = 0;
    return *status >> 16 != 0 || ptrace(PTRACE_GETSIGINFO, pid, NULL, info) == 0;
}

/* One instruction (one iteration of a repeated one). NULL, or why the burst ends here. */
static const char *
step(pid_t pid, const struct recipe *r, struct user_regs_struct *regs, long *signal)
{
    const uint64_t count = regs->rcx; /* of a repeated instruction, which a step leaves in place */
    siginfo_t info;
    int status;

    do {
        if (!resume_one(pid, regs, &status, &info))
            return "exit";
        /* Stops that are no step: the end of the call that prepared the shadow, job control. */
    } while (regs->rip == r->ip && regs->rcx == count &&
             (status >> 16 == PTRACE_EVENT_STOP ||
              (WSTOPSIG(status) == SIGTRAP && info.si_code == TRAP_BRKPT)));
    *signal = WSTOPSIG(status);
    /* The kernel says TRAP_BRKPT of the end of a call that was stepped; int3 is SI_KERNEL. */
    if (*signal != SIGTRAP || status >> 16 != 0 ||
        (info.si_code != TRAP_TRACE && info.si_code != TRAP_BRKPT))
        return "fault";
    if (r->flags & RECIPE_PUSHES_FLAGS)
        hide_trap_flag(pid, regs->rsp);
    return NULL;
}

struct progress {
    uint64_t ip;
    long number; /* of the signal or the system call that ended it */
};

/* NULL when the system call at `regs->rip` is behind us, or why the burst ends before it. */
static const char *
cross_syscall(Stepper *self, pid_t pid, struct user_regs_struct *regs, long *number)
{
    struct iovec area = {regs, sizeof *regs};

    *number = (long)regs->rax;
    switch (syscall_emulate(pid, &self->emulation, regs)) {
    case NOT_EMULATED:
        return "syscall";
    case EMULATION_LOST:
        return "exit";
    case EMULATED:
        break;
    }
    if (ptrace(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area) < 0)
        return "exit";
    self->instructions++;
    return NULL;
}

static const char NO_MEMORY[] = "memory"; /* told from other ends by its address */

static const char *
run(Stepper *self, pid_t pid, size_t max_rows, double deadline_seconds, struct progress *at)
{
    struct user_regs_struct regs;
    const char *end = NULL;

    if (!read_registers(pid, &regs))
        return "exit";
    for (unsigned steps = 0; end == NULL; steps++) {
        at->ip = regs.rip;
        const struct recipe *r = recipe_table_get(&self->recipes, regs.rip);
        if (r == NULL || !is_current(pid, r))
            return "decode";
        if (self->rows.count >= max_rows)
            return "full";
        if (self->cancelled ||
            (steps % DEADLINE_CHECK_STEPS == 0 && tracee_now_seconds() > deadline_seconds))
            return "deadline";
        if (r->flags & RECIPE_UNSUPPORTED)
            return "unsupported";
        if (r->flags & RECIPE_SYSCALL) {
            end = cross_syscall(self, pid, &regs, &at->number);
            continue;
        }
        if (r->flags & RECIPE_NEEDS_VECTORS) {
            struct iovec area = {self->xstate, XSTATE_MAXIMUM_BYTES};
            if (ptrace(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &area) < 0)
                return "exit";
        }
        size_t before = self->rows.count;
        if (recipe_references(r, &regs, self->xstate, rows_add, &self->rows) != 0)
            return NO_MEMORY;
        end = step(pid, r, &regs, &at->number);
        if (end != NULL) {
            self->rows.count = before; /* it did not happen */
            break;
        }
        self->instructions += !(r->flags & RECIPE_REPEATED) || regs.rip != r->ip;
        self->prefetches += (r->flags & RECIPE_PREFETCHES) != 0;
    }
    return end;
}

static PyObject *
stepper_run(Stepper *self, PyObject *args)
{
    int pid;
    Py_ssize_t max_rows;
    double deadline_seconds;
    struct progress at = {0, 0};
    const char *end;

    if (!PyArg_ParseTuple(args, "ind:run", &pid, &max_rows, &deadline_seconds))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    end = run(self, pid, (size_t)max_rows, deadline_seconds, &at);
    Py_END_ALLOW_THREADS
    if (end == NO_MEMORY)
        return PyErr_NoMemory();
    return Py_BuildValue("(sKl)", end, (unsigned long long)at.ip, at.number);
}

static PyObject *
stepper_add(Stepper *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t size;
    struct recipe r;

    if (!PyArg_ParseTuple(args, "y#:add", &bytes, &size))
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
        if (recipe_table_put(&self->recipes, &r) < 0)
            return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *
stepper_take(Stepper *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *taken = rows_take(&self->rows, self->instructions, self->prefetches);
    self->rows.count = 0;
    self->instructions = self->prefetches = 0;
    return taken;
}

static PyObject *
stepper_take_lines(Stepper *self, PyObject *args)
{
    unsigned shift;

    struct lines lines = {0};
    if (!PyArg_ParseTuple(args, "I:take_lines", &shift))
        return NULL;
    if (shift > 32) {
        PyErr_SetString(PyExc_ValueError, "lines are at most 4 GiB long");
        return NULL;
    }
    if (!lines_add(&lines, &self->rows, shift))
        return PyErr_NoMemory();
    PyObject *taken = lines_take(&lines, self->instructions, self->prefetches);
    lines_clear(&lines);
    self->instructions = self->prefetches = 0;
    return taken;
}

static PyObject *
stepper_emulate(Stepper *self, PyObject *identity)
{
    if (emulation_begin(&self->emulation, identity) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
stepper_emulated_calls(Stepper *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(self->emulation.calls);
}

static PyObject *
stepper_cancel(Stepper *self, PyObject *ignored)
{
    (void)ignored;
    self->cancelled = 1;
    Py_RETURN_NONE;
}

static PyObject *
stepper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Stepper *self = (Stepper *)allocate(type, 0);
    if (self != NULL && (self->xstate = calloc(1, XSTATE_MAXIMUM_BYTES)) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
stepper_dealloc(Stepper *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    recipe_table_clear(&self->recipes);
    rows_clear(&self->rows);
    emulation_end(&self->emulation);
    free(self->xstate);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef stepper_methods[] = {
    {"add", (PyCFunction)stepper_add, METH_VARARGS, "Add an array of recipes."},
    {"run", (PyCFunction)stepper_run, METH_VARARGS, "Step a shadow until something ends it."},
    {"emulate", (PyCFunction)stepper_emulate, METH_O,
     "Begin a burst: whose system calls to emulate, or None."},
    {"emulated_calls", (PyCFunction)stepper_emulated_calls, METH_NOARGS,
     "How many were emulated in this burst."},
    {"cancel", (PyCFunction)stepper_cancel, METH_NOARGS, "End this run and all later ones."},
    {"take", (PyCFunction)stepper_take, METH_NOARGS, "Hand over the rows recorded so far."},
    {"take_lines", (PyCFunction)stepper_take_lines, METH_VARARGS,
     "Hand over the lines (address >> shift) that the rows recorded so far touch."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stepper_slots[] = {
    {Py_tp_doc, (void *)"Steps shadows and records their data references."},
    {Py_tp_new, (void *)stepper_new},
    {Py_tp_dealloc, (void *)stepper_dealloc},
    {Py_tp_methods, stepper_methods},
    {0, NULL},
};

static PyType_Spec stepper_spec = {
    .name = "memsampd._core.Stepper",
    .basicsize = sizeof(Stepper),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = stepper_slots,
};

int
memsampd_add_stepper(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&stepper_spec);
    if (type == NULL || PyModule_AddIntConstant(module, "RECIPE_BYTES", sizeof(struct recipe)) < 0)
        return -1;
    int result = PyModule_AddObjectRef(module, "Stepper", type);
    Py_DECREF(type);
    return result;
}
