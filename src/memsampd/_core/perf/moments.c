/* Moments of a thread: its registers and its CPU time when its task clock interrupts it.
 *
 * Each moment is an event of its own, so that the first can be late: opening events disturbs what
 * the thread has in its caches. A leader that only counts is the clock of all. */
#include "core.h"
#include "ring.h"

#include <asm/perf_regs.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <time.h>

enum { MOMENTS_MAX = 8, RING_BYTES = 8 << 10 };

/* What the kernel gives, in the order of its bits; where each belongs in user_regs_struct. */
static const struct {
    unsigned bit;
    size_t offset;
} sampled[] = {
    {PERF_REG_X86_AX, offsetof(struct user_regs_struct, rax)},
    {PERF_REG_X86_BX, offsetof(struct user_regs_struct, rbx)},
    {PERF_REG_X86_CX, offsetof(struct user_regs_struct, rcx)},
    {PERF_REG_X86_DX, offsetof(struct user_regs_struct, rdx)},
    {PERF_REG_X86_SI, offsetof(struct user_regs_struct, rsi)},
    {PERF_REG_X86_DI, offsetof(struct user_regs_struct, rdi)},
    {PERF_REG_X86_BP, offsetof(struct user_regs_struct, rbp)},
    {PERF_REG_X86_SP, offsetof(struct user_regs_struct, rsp)},
    {PERF_REG_X86_IP, offsetof(struct user_regs_struct, rip)},
    {PERF_REG_X86_FLAGS, offsetof(struct user_regs_struct, eflags)},
    {PERF_REG_X86_CS, offsetof(struct user_regs_struct, cs)},
    {PERF_REG_X86_SS, offsetof(struct user_regs_struct, ss)},
    {PERF_REG_X86_R8, offsetof(struct user_regs_struct, r8)},
    {PERF_REG_X86_R9, offsetof(struct user_regs_struct, r9)},
    {PERF_REG_X86_R10, offsetof(struct user_regs_struct, r10)},
    {PERF_REG_X86_R11, offsetof(struct user_regs_struct, r11)},
    {PERF_REG_X86_R12, offsetof(struct user_regs_struct, r12)},
    {PERF_REG_X86_R13, offsetof(struct user_regs_struct, r13)},
    {PERF_REG_X86_R14, offsetof(struct user_regs_struct, r14)},
    {PERF_REG_X86_R15, offsetof(struct user_regs_struct, r15)},
};
enum { SAMPLED = sizeof sampled / sizeof *sampled };

struct moment_record {
    struct perf_event_header header;
    uint64_t time_ns;
    uint64_t read_values, task_ns, of_moments[MOMENTS_MAX]; /* fewer where there are fewer */
    uint64_t abi; /* no registers follow where it is PERF_SAMPLE_REGS_ABI_NONE */
    uint64_t registers[SAMPLED];
};

typedef struct {
    PyObject_HEAD
    Ring ring; /* all moments write to the first one's */
    int clock; /* the leader; -1 once closed */
    int moments;
    int fd[MOMENTS_MAX];
} Moments;

static int
open_event(pid_t tid, int leader, uint64_t at_ns, int count)
{
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof attr,
        .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = at_ns,
        .sample_type = PERF_SAMPLE_TIME | PERF_SAMPLE_READ | PERF_SAMPLE_REGS_USER,
        .read_format = PERF_FORMAT_GROUP,
        .exclude_kernel = 1,
        .exclude_hv = 1,
        .remove_on_exec = 1,
        .disabled = 1,
        .use_clockid = 1,
        .clockid = CLOCK_MONOTONIC,
        .wakeup_events = (uint32_t)count, /* for each it would cost the thread more */
    };
    for (int i = 0; i < SAMPLED; i++)
        attr.sample_regs_user |= UINT64_C(1) << sampled[i].bit;
    if (at_ns == 0)
        attr.sample_type = 0; /* the leader only counts */
    return (int)syscall(SYS_perf_event_open, &attr, tid, -1, leader, PERF_FLAG_FD_CLOEXEC);
}

static int
open_moment(Moments *self, pid_t tid, uint64_t at_ns, int count)
{
    int fd = open_event(tid, self->clock, at_ns, count);
    if (fd < 0)
        return -1;
    self->fd[self->moments++] = fd;
    int is_first = self->moments == 1;
    if ((is_first ? ring_map(&self->ring, fd, RING_BYTES)
                  : ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, self->fd[0])) < 0)
        return -1;
    return ioctl(fd, PERF_EVENT_IOC_REFRESH, 1);
}

static void
close_moments(Moments *self)
{
    ring_unmap(&self->ring);
    while (self->moments > 0)
        close(self->fd[--self->moments]);
    if (self->clock >= 0)
        close(self->clock);
    self->clock = -1;
}

static int
open_all(Moments *self, pid_t tid, PyObject *times)
{
    Py_ssize_t count = PySequence_Size(times);
    self->clock = open_event(tid, -1, 0, 0);
    if (self->clock < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(times, i);
        uint64_t at_ns = item ? PyLong_AsUnsignedLongLong(item) : 0;
        Py_XDECREF(item);
        if (at_ns == 0 && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a moment is later than now");
        if (PyErr_Occurred() || open_moment(self, tid, at_ns, (int)count) < 0)
            return -1;
    }
    return 0;
}

static PyObject *
moments_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int tid, is_armed = 1;
    PyObject *times;
    if (kwargs && PyDict_Size(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "Moments takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "iO|p", &tid, &times, &is_armed))
        return NULL;
    Py_ssize_t count = PySequence_Size(times);
    if (count < 0)
        return NULL;
    if (tid <= 0 || count < 1 || count > MOMENTS_MAX)
        return PyErr_Format(PyExc_ValueError, "1 to %d moments of a thread", MOMENTS_MAX);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Moments *self = (Moments *)allocate(type, 0);
    if (!self)
        return NULL;
    self->clock = -1;
    if (open_all(self, tid, times) < 0 ||
        (is_armed && ioctl(self->clock, PERF_EVENT_IOC_ENABLE, 0) < 0)) {
        int error = errno; /* closing may change it */
        close_moments(self);
        Py_DECREF(self);
        errno = error;
        return PyErr_Occurred() ? NULL : PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void
moments_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    close_moments((Moments *)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(moments_wait_doc,
             "wait(seconds)\n--\n\n"
             "Wait until all moments have come, or so long. Returns whether more can come: False\n"
             "once the thread has exited or executed a program.");

static PyObject *
moments_wait(PyObject *object, PyObject *args)
{
    Moments *self = (Moments *)object;
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds))
        return NULL;
    if (self->clock < 0)
        return PyErr_Format(PyExc_ValueError, "the moments are closed");
    struct pollfd waiting = {.fd = self->fd[0], .events = POLLIN};
    int polled, error;
    Py_BEGIN_ALLOW_THREADS
    polled = poll(&waiting, 1, (int)(1e3 * seconds));
    error = errno;
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0)
        return NULL;
    if (polled < 0 && error != EINTR) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(!(waiting.revents & POLLHUP));
}

/* What follows the values of the group is further to the front where there are fewer. */
static PyObject *
moment_of(const struct moment_record *record, int moments)
{
    struct user_regs_struct registers = {.orig_rax = (unsigned long long)-1};
    const uint64_t *abi = record->of_moments + moments;
    if (*abi != PERF_SAMPLE_REGS_ABI_64)
        return Py_NewRef(Py_None);
    for (int i = 0; i < SAMPLED; i++)
        memcpy((char *)&registers + sampled[i].offset, &abi[1 + i], sizeof *abi);
    return Py_BuildValue("(KKy#)", (unsigned long long)record->task_ns,
                         (unsigned long long)record->time_ns, (const char *)&registers,
                         (Py_ssize_t)sizeof registers);
}

PyDoc_STRVAR(moments_take_doc,
             "take()\n--\n\n"
             "All moments so far, in order, as (task_ns, time_ns, registers): user_regs_struct\n"
             "with fs_base and gs_base 0, which the kernel does not give; None for one in 32-bit\n"
             "code.");

static PyObject *
moments_take(PyObject *object, PyObject *unused)
{
    Moments *self = (Moments *)object;
    (void)unused;
    if (self->clock < 0)
        return PyErr_Format(PyExc_ValueError, "the moments are closed");
    PyObject *taken = PyList_New(0);
    uint64_t head = ring_head(&self->ring);
    struct moment_record record;
    for (uint64_t at = 0; taken && at < head; at += record.header.size) {
        if (ring_copy(&self->ring, at, &record, sizeof record) < sizeof record.header)
            break; /* never seen; going on would not end */
        size_t wanted = sizeof record - sizeof(uint64_t) * (size_t)(MOMENTS_MAX - self->moments);
        if (record.header.type != PERF_RECORD_SAMPLE || record.header.size != wanted)
            continue;
        PyObject *moment = moment_of(&record, self->moments);
        if (!moment || PyList_Append(taken, moment) < 0)
            Py_CLEAR(taken);
        Py_XDECREF(moment);
    }
    return taken;
}

static PyObject *
moments_fileno(PyObject *object, PyObject *unused)
{
    Moments *self = (Moments *)object;
    (void)unused;
    if (self->clock < 0)
        return PyErr_Format(PyExc_ValueError, "the moments are closed");
    return PyLong_FromLong(self->clock);
}

static PyObject *
moments_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    close_moments((Moments *)self);
    Py_RETURN_NONE;
}

static PyMethodDef moments_methods[] = {
    {"wait", moments_wait, METH_VARARGS, moments_wait_doc},
    {"take", moments_take, METH_NOARGS, moments_take_doc},
    {"fileno", moments_fileno, METH_NOARGS,
     PyDoc_STR("fileno()\n--\n\nThe event that starts the clock of all when it is enabled.")},
    {"close", moments_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nEnd the event; may be called twice.")},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(moments_doc,
             "Moments(tid, times_ns, armed=True)\n--\n\n"
             "Interrupt a thread when it has used so much CPU time from now on, and keep its\n"
             "registers; where it is in the kernel by then, as much later. It is not stopped.\n"
             "If not armed, the time begins when the event `fileno()` is enabled.\n"
             "OSError as perf_event_open(2).");

static PyType_Slot moments_slots[] = {
    {Py_tp_doc, (void *)moments_doc},
    {Py_tp_new, (void *)(uintptr_t)moments_new},
    {Py_tp_dealloc, (void *)(uintptr_t)moments_dealloc},
    {Py_tp_methods, moments_methods},
    {0, NULL},
};

static PyType_Spec moments_spec = {
    .name = "memsampd._core.Moments",
    .basicsize = sizeof(Moments),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = moments_slots,
};

int
memsampd_add_moments(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&moments_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Moments", type);
    Py_DECREF(type);
    return failed;
}
