/* Running a shadow natively, without any instrumentation, up to its next stop, and timing it.
 *
 * That is a system call that nobody can answer (PTRACE_SYSEMU: it is not executed), or an int3 that was
 * put where it is to stop (sampler/shadow/arrivals.py).
 */
#include "core.h"
#include "emulation.h"
#include "tracee.h"
#include "watchdog.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES_AT_ONCE 512

/* How a run ended, and what it took without what was done for the shadow meanwhile. */
struct native_end {
    const char *how; /* "call", "trap", "signal", "deadline", "exit" */
    uint64_t ip;     /* of the call, which has not happened; behind the int3 */
    int number;      /* of the system call or signal */
    unsigned stops;
    long long cpu_nanoseconds;
    long long faults;
};

typedef struct {
    PyObject_HEAD
    struct watchdog watchdog;
    struct emulation emulation;
} NativeRunner;

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
is_breakpoint(pid_t pid, int status)
{
    siginfo_t info;
    return status >> 16 == 0 && WSTOPSIG(status) == SIGTRAP &&
           ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) == 0 && info.si_code == SI_KERNEL;
}

/* From the entry into a call that is not executed to the stop behind it: only from there can calls be
 * injected. Nothing of the program happens in between. */
static bool
leave_call(pid_t pid, const struct user_regs_struct *stopped)
{
    struct user_regs_struct regs;
    int status;

    if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) < 0)
        return false;
    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR)
            return false;
    return WIFSTOPPED(status) && is_system_call(status) && read_registers(pid, &regs) &&
           regs.rip == stopped->rip && regs.rsp == stopped->rsp;
}

/* Give a shadow that stands at a system call its result without executing it, as the executors do,
 * and say so: it then runs on. Else it has its registers again. */
static bool
answer_call(NativeRunner *self, pid_t pid, struct user_regs_struct *stopped)
{
    struct user_regs_struct regs = *stopped;

    if (!leave_call(pid, stopped))
        return false;
    regs.rip -= 2; /* back onto the instruction, as if it had not been entered */
    regs.rax = regs.orig_rax;
    regs.orig_rax = (unsigned long long)-1;
    if (syscall_emulate(pid, &self->emulation, &regs) == EMULATED)
        return write_registers(pid, &regs);
    write_registers(pid, stopped);
    return false;
}

/* Resume until the next stop; false if the shadow is gone. */
static bool
resume(pid_t pid, int *status, struct native_end *end)
{
    long long faults = minor_faults(pid), used = tracee_cpu_nanoseconds(pid);

    if (ptrace(PTRACE_SYSEMU, pid, NULL, NULL) < 0)
        return false;
    while (waitpid(pid, status, __WALL) < 0)
        if (errno != EINTR)
            return false;
    end->cpu_nanoseconds += tracee_cpu_nanoseconds(pid) - used;
    end->faults += minor_faults(pid) - faults;
    end->stops++;
    return WIFSTOPPED(*status);
}

/* Resume until a stop that means something. */
static const char *
run_until(NativeRunner *self, pid_t pid, struct native_end *end)
{
    struct user_regs_struct regs;
    int status;

    for (;;) {
        if (!resume(pid, &status, end) || !read_registers(pid, &regs))
            return "exit";
        end->ip = regs.rip;
        if (is_system_call(status)) {
            end->number = (int)regs.orig_rax;
            end->ip -= 2;
            bool is_answered = answer_call(self, pid, &regs);
            bool is_late = watchdog_has_fired(&self->watchdog);
            if (!is_answered)
                return is_late ? "deadline" : "call";
            if (is_late) /* an injected call may have taken the watchdog's signal */
                kill(pid, SIGSTOP);
        } else if (is_breakpoint(pid, status)) {
            return "trap";
        } else if (!is_event(status)) {
            end->number = WSTOPSIG(status);
            return end->number == SIGSTOP && watchdog_has_fired(&self->watchdog) ? "deadline"
                                                                               : "signal";
        }
    }
}

static bool
go_to(pid_t pid, uint64_t ip)
{
    struct user_regs_struct regs;

    if (!read_registers(pid, &regs))
        return false;
    regs.rip = ip;
    regs.orig_rax = (unsigned long long)-1; /* no restart of a call */
    return write_registers(pid, &regs);
}

static PyObject *
runner_run(NativeRunner *self, PyObject *args)
{
    int pid;
    unsigned long long ip;
    double deadline_seconds;
    struct native_end end = {.how = "exit"};

    if (!PyArg_ParseTuple(args, "iKd:run", &pid, &ip, &deadline_seconds))
        return NULL;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_BEGIN_ALLOW_THREADS
    watchdog_arm(&self->watchdog, pidfd, deadline_seconds);
    if (ip == 0 || go_to(pid, ip))
        end.how = run_until(self, pid, &end);
    watchdog_disarm(&self->watchdog);
    close(pidfd);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(sKiILL)", end.how, (unsigned long long)end.ip, end.number, end.stops,
                         end.cpu_nanoseconds, end.faults);
}

/* A stopped shadow's registers: struct user_regs_struct as bytes. */
static PyObject *
native_registers(PyObject *module, PyObject *args)
{
    int pid;
    struct user_regs_struct regs;
    (void)module;

    if (!PyArg_ParseTuple(args, "i:native_registers", &pid))
        return NULL;
    if (!read_registers(pid, &regs))
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBytes_FromStringAndSize((const char *)&regs, sizeof regs);
}

static PyObject *
native_set_registers(PyObject *module, PyObject *args)
{
    int pid;
    const char *bytes;
    Py_ssize_t size;
    struct user_regs_struct regs;
    (void)module;

    if (!PyArg_ParseTuple(args, "iy#:native_set_registers", &pid, &bytes, &size))
        return NULL;
    if (size != (Py_ssize_t)sizeof regs) {
        PyErr_SetString(PyExc_ValueError, "registers are a struct user_regs_struct");
        return NULL;
    }
    memcpy(&regs, bytes, sizeof regs);
    if (!write_registers(pid, &regs))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *
runner_emulate(NativeRunner *self, PyObject *identity)
{
    if (emulation_begin(&self->emulation, identity) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
runner_identity(NativeRunner *self, PyObject *ignored)
{
    (void)ignored;
    return emulation_identity(&self->emulation);
}

static PyObject *
runner_cancel(NativeRunner *self, PyObject *ignored)
{
    (void)ignored;
    watchdog_cancel(&self->watchdog);
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
    NativeRunner *self = (NativeRunner *)allocate(type, 0);

    if (self != NULL && watchdog_init(&self->watchdog) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void
runner_dealloc(NativeRunner *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    watchdog_free(&self->watchdog);
    emulation_end(&self->emulation);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)runner_run, METH_VARARGS, "Run a stopped shadow to its next stop, timed."},
    {"emulate", (PyCFunction)runner_emulate, METH_O,
     "Begin: whose system calls to emulate, or None."},
    {"identity", (PyCFunction)runner_identity, METH_NOARGS,
     "What emulate was given, as the shadow has changed it since."},
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
    {"native_registers", native_registers, METH_VARARGS, "Registers of a stopped shadow."},
    {"native_set_registers", native_set_registers, METH_VARARGS,
     "Give a stopped shadow the registers that it had before."},
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
