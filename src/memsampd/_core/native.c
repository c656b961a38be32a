/* Running a shadow natively, without any instrumentation, up to a known point, and timing it.
 *
 * The point is a system call (PTRACE_SYSEMU: it is not executed), the n-th execution of an
 * instruction (int3, in the shadow's own copy of the page), or the n-th touch of eight bytes of
 * data (a debug register, which in a virtual machine makes a stop several times as dear).
 */
#include "core.h"
#include "emulation.h"
#include "tracee.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
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
#include <unistd.h>

#ifndef TRAP_HWBKPT
#define TRAP_HWBKPT 4
#endif

#define BREAKPOINT 0xcc
#define RESUME_FLAG 0x10000ul /* the instruction that comes next does not hit its breakpoint */
#define PAUSE_NANOSECONDS 1000000L
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
    struct emulation emulation;
} NativeRunner;

static bool
set_debug_register(pid_t pid, int number, uint64_t value)
{
    size_t offset = offsetof(struct user, u_debugreg) + (size_t)number * sizeof(value);
    return ptrace(PTRACE_POKEUSER, pid, (void *)offset, (void *)value) == 0;
}

/* Debug register 0 on what is touched, or on what is executed. Intel SDM vol. 3, 18.2: local enable,
 * R/W0, LEN0. */
static bool
watch_data(pid_t pid, uint64_t address)
{
    return set_debug_register(pid, 0, address) &&
           set_debug_register(pid, 7, 0x1 | 0x3 << 16 | 0x2 << 18);
}

static bool
watch_code(pid_t pid, uint64_t address)
{
    return set_debug_register(pid, 0, address) && set_debug_register(pid, 7, 0x1);
}

static void
watch_nothing(pid_t pid)
{
    set_debug_register(pid, 7, 0);
}

/* An int3 and what it stands in the place of. */
struct patch {
    int memory; /* /proc/PID/mem */
    uint64_t address;
    uint8_t before;
};

static bool
patch_open(struct patch *p, pid_t pid, uint64_t address)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    p->address = address;
    p->memory = open(path, O_RDWR | O_CLOEXEC);
    if (p->memory < 0)
        return false;
    if (pread(p->memory, &p->before, 1, (off_t)address) == 1)
        return true;
    close(p->memory);
    return false;
}

static bool
patch_set(const struct patch *p, bool on)
{
    const uint8_t byte = on ? BREAKPOINT : p->before;
    return pwrite(p->memory, &byte, 1, (off_t)p->address) == 1;
}

static void
patch_close(const struct patch *p)
{
    patch_set(p, false);
    close(p->memory);
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
 * each look takes the CPU from the shadow, and its caches and branch predictions. */
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
is_trap(pid_t pid, int status, int code)
{
    siginfo_t info;
    return status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP &&
           ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) == 0 && info.si_code == code;
}

/* Give a shadow that stands at a system call its result without executing it, as the executors do,
 * and say so: it then runs on. Else it is left as it was. */
static bool
answer_call(NativeRunner *self, pid_t pid, struct user_regs_struct *stopped)
{
    struct user_regs_struct regs = *stopped;

    regs.rip -= 2; /* back onto the instruction, as if it had not been entered */
    regs.rax = regs.orig_rax;
    regs.orig_rax = (unsigned long long)-1;
    if (syscall_emulate(pid, &self->emulation, &regs) == EMULATED)
        return write_registers(pid, &regs);
    write_registers(pid, stopped);
    return false;
}

/* Whether the shadow stands at our int3; it is then put back onto the instruction. */
static bool
is_at_patch(pid_t pid, int status, const struct patch *patch)
{
    struct user_regs_struct regs;

    if (patch == NULL || !is_trap(pid, status, SI_KERNEL) || !read_registers(pid, &regs) ||
        regs.rip != patch->address + 1)
        return false;
    regs.rip = patch->address;
    return write_registers(pid, &regs);
}

static bool
step_over(NativeRunner *self, pid_t pid, const struct patch *patch, double deadline_seconds)
{
    int status;

    if (!patch_set(patch, false))
        return false;
    do {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0 ||
            wait_until(self, pid, &status, deadline_seconds) != 1)
            return false;
    } while (is_event(status));
    return is_trap(pid, status, TRAP_TRACE) && patch_set(patch, true);
}

/* Resume until the stop that is wanted, or another that means something. */
static const char *
run_until(NativeRunner *self, pid_t pid, enum watch watch, const struct patch *patch,
          unsigned wanted, double deadline_seconds, struct native_end *end)
{
    struct user_regs_struct regs;
    int status;

    for (;;) {
        if (ptrace(PTRACE_SYSEMU, pid, NULL, NULL) < 0)
            return "exit";
        int waited = wait_until(self, pid, &status, deadline_seconds);
        if (waited == 0) {
            ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
            return tracee_wait(pid, &status) < 0 ? "exit" : "deadline";
        }
        if (waited < 0)
            return "exit";
        if (is_system_call(status)) {
            if (!read_registers(pid, &regs))
                return "exit";
            end->number = (int)regs.orig_rax;
            if (answer_call(self, pid, &regs))
                continue;
            end->arrivals += watch == WATCH_CALL;
            return "call";
        } else if (is_trap(pid, status, TRAP_HWBKPT)) {
            if (++end->arrivals == wanted)
                return "reached";
        } else if (is_at_patch(pid, status, patch)) {
            if (++end->arrivals == wanted)
                return "reached";
            if (!step_over(self, pid, patch, deadline_seconds))
                return "signal";
        } else if (!is_event(status)) {
            end->number = WSTOPSIG(status);
            return "signal";
        }
    }
}

static const char *
run_watched(NativeRunner *self, pid_t pid, enum watch watch, uint64_t address, unsigned wanted,
            double deadline_seconds, struct native_end *end)
{
    struct patch patch;
    long long used;

    if (watch == WATCH_EXECUTE && (!patch_open(&patch, pid, address) || !patch_set(&patch, true)))
        return "refused";
    if (watch == WATCH_TOUCH && !watch_data(pid, address))
        return "refused";
    used = cpu_nanoseconds(pid);
    const char *how = run_until(self, pid, watch, watch == WATCH_EXECUTE ? &patch : NULL, wanted,
                                deadline_seconds, end);
    end->cpu_nanoseconds = cpu_nanoseconds(pid) - used;
    if (watch == WATCH_EXECUTE)
        patch_close(&patch);
    watch_nothing(pid);
    return how;
}

static void
run(NativeRunner *self, pid_t pid, enum watch watch, uint64_t address, unsigned wanted,
    double deadline_seconds, struct native_end *end)
{
    struct user_regs_struct regs;
    long long faults = minor_faults(pid);

    end->how = run_watched(self, pid, watch, address, wanted, deadline_seconds, end);
    if (!read_registers(pid, &regs)) {
        end->how = "exit";
        return;
    }
    end->faults = minor_faults(pid) - faults;
    end->ip = regs.rip - (strcmp(end->how, "call") == 0 ? 2 : 0);
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

/* What a run costs in which nothing is executed: the way out of the kernel and back by the same
 * kind of stop. For a call the shadow must stand at one: it makes it again. */
static bool
run_nothing(NativeRunner *self, pid_t pid, enum watch watch, long long *nanoseconds)
{
    struct user_regs_struct regs;
    struct patch patch;
    struct native_end end = {0};

    if (!read_registers(pid, &regs))
        return false;
    struct user_regs_struct again = regs;
    again.eflags &= ~RESUME_FLAG;
    if (watch == WATCH_CALL) {
        again.rip -= 2;
        again.rax = regs.orig_rax;
        again.orig_rax = (unsigned long)-1; /* no restart */
    }
    if (!write_registers(pid, &again) || (watch == WATCH_TOUCH && !watch_code(pid, regs.rip)) ||
        (watch == WATCH_EXECUTE && (!patch_open(&patch, pid, regs.rip) || !patch_set(&patch, true))))
        return false;
    long long before = cpu_nanoseconds(pid);
    const char *how = run_until(self, pid, watch, watch == WATCH_EXECUTE ? &patch : NULL, 1,
                                tracee_now_seconds() + 1.0, &end);
    *nanoseconds = cpu_nanoseconds(pid) - before;
    if (watch == WATCH_EXECUTE)
        patch_close(&patch);
    watch_nothing(pid);
    return strcmp(how, watch == WATCH_CALL ? "call" : "reached") == 0;
}

static PyObject *
runner_overheads(NativeRunner *self, PyObject *args)
{
    int pid, watch, runs, done = 0;
    long long nanoseconds[OVERHEAD_RUNS_MAXIMUM];

    if (!PyArg_ParseTuple(args, "iii:overheads", &pid, &watch, &runs))
        return NULL;
    if (watch < WATCH_CALL || watch > WATCH_TOUCH || runs < 1 || runs > OVERHEAD_RUNS_MAXIMUM) {
        PyErr_SetString(PyExc_ValueError, "watch is 0 to 2, runs is 1 to 64");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    while (!self->cancelled && done < runs &&
           run_nothing(self, pid, (enum watch)watch, &nanoseconds[done]))
        done++;
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
runner_emulate(NativeRunner *self, PyObject *identity)
{
    if (emulation_begin(&self->emulation, identity) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
runner_emulated_calls(NativeRunner *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(self->emulation.calls);
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

    emulation_end(&self->emulation);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)runner_run, METH_VARARGS, "Run a stopped shadow to a point, timed."},
    {"emulate", (PyCFunction)runner_emulate, METH_O,
     "Begin: whose system calls to emulate, or None."},
    {"emulated_calls", (PyCFunction)runner_emulated_calls, METH_NOARGS,
     "How many were emulated since."},
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
