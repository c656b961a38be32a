/* Running a shadow natively, without any instrumentation, up to a known point, and timing it.
 *
 * The point is a system call (PTRACE_SYSEMU: it is not executed), the n-th execution of an
 * instruction, or the n-th touch of eight bytes of data. The latter two are a debug register of the
 * CPU: nothing runs slower and no code is changed. A shadow has the registers to itself.
 */
#include "core.h"
#include "tracee.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>

#ifndef TRAP_HWBKPT
#define TRAP_HWBKPT 4
#endif

#define RESUME_FLAG 0x10000ul /* the instruction that comes next does not hit its breakpoint */
#define PAUSE_NANOSECONDS 20000L
#define PAGES_AT_ONCE 512
#define OVERHEAD_RUNS_MAXIMUM 64

/* What ends a run, besides a system call that nobody can answer. Mirrored by EndKind in twin.py. */
enum watch {
    WATCH_CALL = 0,    /* the n-th system call */
    WATCH_EXECUTE = 1, /* the n-th time that an instruction is about to be executed */
    WATCH_TOUCH = 2,   /* after the n-th instruction that touches 8 aligned bytes */
};

/* How a run ended: nothing of the instruction or call at `ip` has happened, except for a touch. */
struct native_end {
    const char *how;  /* "call", "reached", "signal", "deadline", "exit" */
    uint64_t ip;
    unsigned arrivals;
    int number; /* of the system call or signal */
    long long cpu_nanoseconds;
    long long faults;
};

typedef struct {
    PyObject_HEAD
    volatile int cancelled; /* set from another thread */
} NativeRunner;

static bool
set_debug_register(pid_t pid, int number, uint64_t value)
{
    size_t offset = offsetof(struct user, u_debugreg) + (size_t)number * sizeof(value);
    return ptrace(PTRACE_POKEUSER, pid, (void *)offset, (void *)value) == 0;
}

/* Register 0 on; off for WATCH_CALL. Intel SDM vol. 3, 18.2: local enable, R/W0, LEN0. */
static bool
arm(pid_t pid, enum watch watch, uint64_t address)
{
    const uint64_t control[] = {0, 0x1, 0x1 | 0x3 << 16 | 0x2 << 18};

    return set_debug_register(pid, 7, 0) &&
           (watch == WATCH_CALL || (set_debug_register(pid, 0, address) &&
                                    set_debug_register(pid, 7, control[watch])));
}

static bool
read_registers(pid_t pid, struct user_regs_struct *regs)
{
    struct iovec area = {regs, sizeof *regs};
    return ptrace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0;
}

static bool
write_registers(pid_t pid, struct user_regs_struct *regs)
{
    struct iovec area = {regs, sizeof *regs};
    return ptrace(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &area) == 0;
}

/* CPU time of a stopped process: the scheduler's own count, exact to the nanosecond. */
static long long
cpu_nanoseconds(pid_t pid)
{
    clockid_t clock;
    struct timespec used = {0, 0};

    if (clock_getcpuclockid(pid, &clock) == 0)
        clock_gettime(clock, &used);
    return used.tv_sec * 1000000000ll + used.tv_nsec;
}

static long long
minor_faults(pid_t pid)
{
    char path[64], text[2048];
    long long faults = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0';
    const char *end = strrchr(text, ')');
    if (end != NULL)
        sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %lld", &faults);
    return faults;
}

/* As tracee_wait, but until a deadline: 1 stopped, 0 out of time, -1 gone. Sleeping between looks:
 * a tracer that spun would take a CPU from the target or from the shadow itself. */
static int
wait_until(NativeRunner *self, pid_t pid, int *status, double deadline_seconds)
{
    const struct timespec pause = {0, PAUSE_NANOSECONDS};

    for (;;) {
        pid_t got = waitpid(pid, status, __WALL | WNOHANG);
        if (got == pid)
            return WIFSTOPPED(*status) ? 1 : -1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (self->cancelled || tracee_now_seconds() > deadline_seconds)
            return 0;
        nanosleep(&pause, NULL);
    }
}

static bool
is_system_call(int status)
{
    return status >> 16 == 0 && WSTOPSIG(status) == (SIGTRAP | 0x80);
}

static bool
is_event(int status)
{
    return status >> 16 == PTRACE_EVENT_STOP;
}

static bool
is_hardware_trap(pid_t pid, int status)
{
    siginfo_t info;
    return status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP &&
           ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) == 0 && info.si_code == TRAP_HWBKPT;
}

/* Give a shadow that stands at a system call its result without executing it, and say so: it then
 * runs on. No call can be answered yet, so each ends the run. */
static bool
answer_call(pid_t pid, struct user_regs_struct *regs)
{
    (void)pid;
    (void)regs;
    return false;
}

/* Resume until the next stop that means something. */
static const char *
run_until(NativeRunner *self, pid_t pid, enum watch watch, unsigned wanted, double deadline_seconds,
          struct native_end *end)
{
    struct user_regs_struct regs;
    int status;

    for (;;) {
        if (ptrace(PTRACE_SYSEMU, pid, NULL, NULL) < 0)
            return "exit";
        int waited = wait_until(self, pid, &status, deadline_seconds);
        if (waited == 0) {
            ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
            if (tracee_wait(pid, &status) < 0)
                return "exit";
            return "deadline";
        }
        if (waited < 0)
            return "exit";
        if (is_system_call(status)) {
            if (!read_registers(pid, &regs))
                return "exit";
            end->number = (int)regs.orig_rax;
            if ((watch == WATCH_CALL && ++end->arrivals == wanted) || !answer_call(pid, &regs))
                return "call";
        } else if (is_hardware_trap(pid, status)) {
            if (++end->arrivals == wanted)
                return "reached";
        } else if (!is_event(status)) {
            end->number = WSTOPSIG(status);
            return "signal";
        }
    }
}

static void
run(NativeRunner *self, pid_t pid, enum watch watch, uint64_t address, unsigned wanted,
    double deadline_seconds, struct native_end *end)
{
    struct user_regs_struct regs;
    long long faults = minor_faults(pid), used = cpu_nanoseconds(pid);

    if (!arm(pid, watch, address)) {
        end->how = errno == ESRCH ? "exit" : "refused";
        return;
    }
    end->how = run_until(self, pid, watch, wanted, deadline_seconds, end);
    if (strcmp(end->how, "exit") == 0 || !read_registers(pid, &regs)) {
        end->how = "exit";
        return;
    }
    end->cpu_nanoseconds = cpu_nanoseconds(pid) - used;
    end->faults = minor_faults(pid) - faults;
    end->ip = regs.rip - (strcmp(end->how, "call") == 0 ? 2 : 0);
    arm(pid, WATCH_CALL, 0);
}

static PyObject *
runner_run(NativeRunner *self, PyObject *args)
{
    int pid, watch;
    unsigned wanted;
    unsigned long long address;
    double deadline_seconds;
    struct native_end end = {.how = "exit"};

    if (!PyArg_ParseTuple(args, "iiKId:run", &pid, &watch, &address, &wanted, &deadline_seconds))
        return NULL;
    if (watch < WATCH_CALL || watch > WATCH_TOUCH || wanted == 0) {
        PyErr_SetString(PyExc_ValueError, "watch is 0 to 2, and at least one arrival is wanted");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    run(self, pid, (enum watch)watch, address, wanted, deadline_seconds, &end);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(sKIiLL)", end.how, (unsigned long long)end.ip, end.arrivals, end.number,
                         end.cpu_nanoseconds, end.faults);
}

/* What a run costs in which nothing is executed: the way out of the kernel and back. The breakpoint
 * is on the very instruction that comes next. */
static bool
run_nothing(NativeRunner *self, pid_t pid, long long *nanoseconds)
{
    struct user_regs_struct regs;
    struct native_end end = {0};

    if (!read_registers(pid, &regs))
        return false;
    regs.eflags &= ~RESUME_FLAG;
    if (!write_registers(pid, &regs) || !arm(pid, WATCH_EXECUTE, regs.rip))
        return false;
    long long before = cpu_nanoseconds(pid);
    const char *how = run_until(self, pid, WATCH_EXECUTE, 1, tracee_now_seconds() + 1.0, &end);
    *nanoseconds = cpu_nanoseconds(pid) - before;
    return strcmp(how, "reached") == 0;
}

static PyObject *
runner_overheads(NativeRunner *self, PyObject *args)
{
    int pid, runs, done = 0;
    long long nanoseconds[OVERHEAD_RUNS_MAXIMUM];

    if (!PyArg_ParseTuple(args, "ii:overheads", &pid, &runs))
        return NULL;
    if (runs < 1 || runs > OVERHEAD_RUNS_MAXIMUM) {
        PyErr_SetString(PyExc_ValueError, "runs is 1 to 64");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    while (done < runs && run_nothing(self, pid, &nanoseconds[done]))
        done++;
    arm(pid, WATCH_CALL, 0);
    Py_END_ALLOW_THREADS
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < done; i++) {
        PyObject *value = PyLong_FromLongLong(nanoseconds[i]);
        if (value == NULL || PyList_Append(list, value) < 0)
            Py_CLEAR(list);
        Py_XDECREF(value);
    }
    return list;
}

static PyObject *
runner_cancel(NativeRunner *self, PyObject *ignored)
{
    (void)ignored;
    self->cancelled = 1;
    Py_RETURN_NONE;
}

/* One byte of each page is read, and for `is_written` written back: the kernel makes the page
 * present and private, on our account. Pages that cannot be had are passed over; their number is
 * the result. */
static long
touch_pages(pid_t pid, const uint64_t *pages, size_t count, bool is_written)
{
    uint8_t bytes[PAGES_AT_ONCE];
    struct iovec mine[PAGES_AT_ONCE], theirs[PAGES_AT_ONCE];
    long refused = 0;

    for (size_t at = 0; at < count;) {
        size_t n = count - at < PAGES_AT_ONCE ? count - at : PAGES_AT_ONCE;
        for (size_t i = 0; i < n; i++) {
            mine[i] = (struct iovec){&bytes[i], 1};
            theirs[i] = (struct iovec){(void *)(uintptr_t)pages[at + i], 1};
        }
        ssize_t got = process_vm_readv(pid, mine, n, theirs, n, 0);
        if (got > 0 && is_written)
            got = process_vm_writev(pid, mine, (size_t)got, theirs, (size_t)got, 0);
        if (got < 0 && errno == ESRCH)
            return -1;
        refused += got < (ssize_t)n;
        at += got < (ssize_t)n ? (size_t)(got > 0 ? got : 0) + 1 : n;
    }
    return refused;
}

static PyObject *
native_touch_pages(PyObject *module, PyObject *args)
{
    int pid, is_written;
    Py_buffer pages;
    long refused;
    (void)module;

    if (!PyArg_ParseTuple(args, "iy*p:native_touch_pages", &pid, &pages, &is_written))
        return NULL;
    if (pages.len % (Py_ssize_t)sizeof(uint64_t) != 0) {
        PyBuffer_Release(&pages);
        PyErr_SetString(PyExc_ValueError, "pages are 64-bit addresses");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    refused = touch_pages(pid, pages.buf, (size_t)pages.len / sizeof(uint64_t), is_written);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pages);
    if (refused < 0) {
        PyErr_Format(PyExc_ProcessLookupError, "shadow %d is gone", pid);
        return NULL;
    }
    return PyLong_FromLong(refused);
}

static PyObject *
runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocate(type, 0);
}

static void
runner_dealloc(NativeRunner *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    release(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)runner_run, METH_VARARGS, "Run a stopped shadow to a point, timed."},
    {"overheads", (PyCFunction)runner_overheads, METH_VARARGS, "Time runs of nothing."},
    {"cancel", (PyCFunction)runner_cancel, METH_NOARGS, "End this run and all later ones."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_doc, (void *)"Runs shadows without instrumentation."},
    {Py_tp_new, (void *)runner_new},
    {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_methods, runner_methods},
    {0, NULL},
};

static PyType_Spec runner_spec = {
    .name = "memsampd._core.NativeRunner",
    .basicsize = sizeof(NativeRunner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = runner_slots,
};

static PyMethodDef native_functions[] = {
    {"native_touch_pages", native_touch_pages, METH_VARARGS,
     "Make pages of a stopped shadow present, or present and private."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_native(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&runner_spec);
    if (type == NULL)
        return -1;
    int result = PyModule_AddObjectRef(module, "NativeRunner", type);
    Py_DECREF(type);
    return result < 0 ? -1 : PyModule_AddFunctions(module, native_functions);
}
