/* memsampd._core.Breakpoints. */
#include "core.h"
#include "moments.h"
#include "point_group.h"

#include <errno.h>
#include <linux/hw_breakpoint.h>
#include <poll.h>
#include <sys/ioctl.h>

/* Between looks at what has come: each disturbs the machine. */
#define POLL_MILLISECONDS 20

typedef struct {
    PyObject_HEAD
    struct point_group group;
    int is_armed;
} Breakpoints;

/* What Python asks for. */
struct wanted {
    int tid, points, counters;
    struct watching how;
    struct point point[POINTS_MAX];
    struct perf_event_attr counter[COUNTERS_MAX];
};

static int
get_counter(PyObject *event, struct perf_event_attr *attr)
{
    unsigned type, kind;
    unsigned long long config, config1, config2;
    if (!PyArg_ParseTuple(event, "IKKKI", &type, &config, &config1, &config2, &kind))
        return -1;
    *attr = (struct perf_event_attr){.type = type, .config = config};
    attr->bp_type = kind; /* of a breakpoint in the place of a counter */
    attr->config1 = config1;
    attr->config2 = config2;
    return 0;
}

static int
get_point(PyObject *item, struct point *point)
{
    unsigned long long address;
    if (!PyArg_ParseTuple(item, "IK", &point->kind, &address))
        return -1;
    point->address = address;
    return 0;
}

/* -1 with an exception set. */
static int
get_wanted(PyObject *args, struct wanted *w)
{
    PyObject *points, *counters = NULL;
    unsigned long long cpu_ns = 0;
    int sees_kernel = 0;
    if (!PyArg_ParseTuple(args, "iOi|OpK", &w->tid, &points, &w->how.hits, &counters, &sees_kernel,
                          &cpu_ns))
        return -1;
    w->how.sees_kernel = sees_kernel;
    w->how.cpu_ns = cpu_ns;
    const Py_ssize_t count = PySequence_Size(points);
    const Py_ssize_t counting = counters ? PySequence_Size(counters) : 0;
    if (PyErr_Occurred())
        return -1;
    if (counting > COUNTERS_MAX)
        PyErr_Format(PyExc_ValueError, "at most %d counters", COUNTERS_MAX);
    else if (w->tid <= 0 || count < 1 || count > POINTS_MAX)
        PyErr_Format(PyExc_ValueError, "one to %d points on a thread", POINTS_MAX);
    else if (w->how.hits < 1 || w->how.hits > HITS_MAX / count)
        PyErr_Format(PyExc_ValueError, "one to %d hits", HITS_MAX);
    w->points = (int)count;
    w->counters = (int)counting;
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < count + counting; i++) {
        PyObject *item = i < count ? PySequence_GetItem(points, i)
                                   : PySequence_GetItem(counters, i - count);
        if (item)
            (void)(i < count ? get_point(item, &w->point[i])
                             : get_counter(item, &w->counter[i - count]));
        Py_XDECREF(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
breakpoints_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct wanted w;
    if (kwargs && PyDict_Size(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "Breakpoints takes no keyword arguments");
    if (get_wanted(args, &w) < 0)
        return NULL;
    Breakpoints *self = (Breakpoints *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    if (points_open(&self->group, w.tid, w.point, w.points, &w.how, w.counter, w.counters) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
breakpoints_dealloc(PyObject *self)
{
    points_close(&((Breakpoints *)self)->group);
    memsampd_free(self);
}

static int
is_open(const Breakpoints *self)
{
    if (self->group.clock < 0)
        PyErr_SetString(PyExc_ValueError, "the breakpoints are closed");
    return self->group.clock >= 0;
}

PyDoc_STRVAR(arm_doc, "arm(starts=True)\n--\n\n"
                      "Start the clock and all points; only once: armed a second time, an event\n"
                      "counts nothing (Linux 6.18). Or have them ready: they start when the first of\n"
                      "descriptors() is enabled.");

static PyObject *
breakpoints_arm(PyObject *object, PyObject *args)
{
    Breakpoints *self = (Breakpoints *)object;
    int starts = 1;
    if (!PyArg_ParseTuple(args, "|p", &starts) || !is_open(self))
        return NULL;
    if (self->is_armed)
        return PyErr_Format(PyExc_ValueError, "breakpoints are armed once");
    self->is_armed = 1;
    if (points_arm(&self->group, starts) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_doc, "wait(hits, seconds)\n--\n\n"
                       "Wait until so many hits have come in all, or so long. Returns whether the\n"
                       "thread can still hit: False once it has exited or executed a program.");

static PyObject *
breakpoints_wait(PyObject *object, PyObject *args)
{
    Breakpoints *self = (Breakpoints *)object;
    int hits;
    double seconds;
    if (!PyArg_ParseTuple(args, "id", &hits, &seconds) || !is_open(self))
        return NULL;
    double deadline = now_seconds() + seconds;
    struct pollfd waiting = {.fd = self->group.fd[0], .events = POLLIN};
    while (points_hits_so_far(&self->group) < hits && !(waiting.revents & POLLHUP)) {
        double left_ms = 1e3 * (deadline - now_seconds());
        if (left_ms <= 0)
            break;
        int polled;
        int wait_ms = left_ms < POLL_MILLISECONDS ? (int)left_ms + 1 : POLL_MILLISECONDS;
        Py_BEGIN_ALLOW_THREADS
        polled = poll(&waiting, 1, wait_ms);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return NULL;
        if (polled < 0 && errno != EINTR)
            return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBool_FromLong(!(waiting.revents & POLLHUP));
}

PyDoc_STRVAR(hits_doc, "hits()\n--\n\n"
                       "The hits so far, in order: bytes of (task_ns u64, time_ns u64, ip u64,\n"
                       "counted u64, point u32, in_kernel u32).");

static PyObject *
breakpoints_hits(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    struct hit hits[HITS_MAX];
    if (!is_open(self))
        return NULL;
    const size_t count = points_hits(&self->group, hits);
    return PyBytes_FromStringAndSize((const char *)hits, (Py_ssize_t)(count * sizeof *hits));
}

PyDoc_STRVAR(descriptors_doc, "descriptors()\n--\n\n"
                              "What starts and ends the clock and all points, by ioctl(2), and what is\n"
                              "readable once one was hit.");

static PyObject *
breakpoints_descriptors(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    return is_open(self) ? Py_BuildValue("(ii)", self->group.clock, self->group.fd[0]) : NULL;
}

PyDoc_STRVAR(clock_doc, "clock()\n--\n\n"
                        "CPU time of the thread since the points were armed, nanoseconds; whether it\n"
                        "can still hit: False once it has exited or executed a program, or the kernel\n"
                        "gave up; what the counters counted; and whether the kernel gave up.");

static PyObject *
breakpoints_clock(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    struct pollfd looked = {.events = POLLIN};
    uint64_t task_ns, counted;
    if (!is_open(self))
        return NULL;
    looked.fd = self->group.fd[0];
    const ssize_t got = points_read(&self->group, &task_ns, &counted);
    if (got < 0 || poll(&looked, 1, 0) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    /* Nothing is read where the kernel gave up: others took the debug registers of a whole CPU, or
     * the counters. */
    return Py_BuildValue("(KNKN)", (unsigned long long)task_ns,
                         PyBool_FromLong(got > 0 && !(looked.revents & POLLHUP)),
                         (unsigned long long)counted, PyBool_FromLong(got == 0));
}

PyDoc_STRVAR(ended_ns_doc, "ended_ns()\n--\n\n"
                           "When the kernel removed them after cpu_ns, CLOCK_MONOTONIC; 0: it has not.\n"
                           "clock() may stay a little below cpu_ns: the kernel's timer goes otherwise.");

static PyObject *
breakpoints_ended_ns(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    return is_open(self) ? PyLong_FromUnsignedLongLong(points_ended_ns(&self->group)) : NULL;
}

static PyObject *
breakpoints_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
    points_close(&((Breakpoints *)self)->group);
    Py_RETURN_NONE;
}

static PyMethodDef breakpoints_methods[] = {
    {"arm", breakpoints_arm, METH_VARARGS, arm_doc},
    {"wait", breakpoints_wait, METH_VARARGS, wait_doc},
    {"hits", breakpoints_hits, METH_NOARGS, hits_doc},
    {"clock", breakpoints_clock, METH_NOARGS, clock_doc},
    {"ended_ns", breakpoints_ended_ns, METH_NOARGS, ended_ns_doc},
    {"descriptors", breakpoints_descriptors, METH_NOARGS, descriptors_doc},
    {"close", breakpoints_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nGive the debug registers back; may be called twice.")},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(breakpoints_doc,
             "Breakpoints(tid, points, hits, counters=(), sees_kernel=False, cpu_ns=0)\n--\n\n"
             "One to four breakpoints on a thread, each a pair (kind, address), for so many hits\n"
             "each; not armed yet.\n\n"
             "counters: at most two events (type, config, config1, config2, bp_type) that are read\n"
             "at each hit, in user mode only.\n\n"
             "sees_kernel: hits by the kernel count, too. They trap in any case.\n\n"
             "cpu_ns: CPU time of the thread after which the kernel removes them; 0: none.\n\n"
             "kind: BREAKPOINT_EXECUTE, or BREAKPOINT_ACCESS for loads and stores that touch the\n"
             "8 bytes at an aligned address. OSError as perf_event_open(2): ENOSPC where the\n"
             "debug registers are taken.");

static PyType_Slot breakpoints_slots[] = {
    {Py_tp_doc, (void *)breakpoints_doc},
    {Py_tp_new, (void *)(uintptr_t)breakpoints_new},
    {Py_tp_dealloc, (void *)(uintptr_t)breakpoints_dealloc},
    {Py_tp_methods, breakpoints_methods},
    {0, NULL},
};

static PyType_Spec breakpoints_spec = {
    .name = "memsampd._core.Breakpoints",
    .basicsize = sizeof(Breakpoints),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = breakpoints_slots,
};

int
memsampd_add_breakpoints(PyObject *module)
{
    static const struct constant constants[] = {
        {"BREAKPOINT_EXECUTE", HW_BREAKPOINT_X},
        {"BREAKPOINT_ACCESS", HW_BREAKPOINT_RW},
        {NULL, 0},
    };

    return memsampd_add_constants(module, constants) < 0
               ? -1
               : memsampd_add_type(module, &breakpoints_spec);
}
