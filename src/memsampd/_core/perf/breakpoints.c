/* Breakpoints on a thread, in one group with its task clock: each hit tells the thread's CPU time,
 * and what counters counted, where some are in the group.
 *
 * The thread's registers and memory stay as they are: the kernel sets the debug registers whenever
 * the thread is switched in. There are four of them, shared with debuggers. */
#include "core.h"
#include "moments.h"
#include "ring.h"

#include <errno.h>
#include <linux/hw_breakpoint.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <time.h>

enum {
    POINTS_MAX = 4,
    COUNTERS_MAX = 2,
    HITS_MAX = 256, /* of all points together: what the ring holds */
    RING_BYTES = 64 << 10,
    FEW_HITS_RING_BYTES = 4 << 10, /* if hits fill less: who may not lock much has little of it */
    POLL_MILLISECONDS = 20, /* between looks at what has come: each disturbs the machine */
};

/* A record of a hit, as sample_type and read_format below make it. */
struct hit_record {
    struct perf_event_header header;
    uint64_t id, ip;
    uint64_t time_ns;
    uint64_t read_values; /* members of the group: the clock, the counters and the points */
    uint64_t task_ns;
    uint64_t counts[COUNTERS_MAX + POINTS_MAX];
};
_Static_assert(HITS_MAX * sizeof(struct hit_record) <= RING_BYTES, "all fit");

/* A hit as Python sees it; its size is _HIT_BYTES in sampler/perf/arrival.py. */
struct hit {
    uint64_t task_ns, time_ns, ip, counted;
    uint32_t point, padding;
};
_Static_assert(sizeof(struct hit) == 40, "as sampler/perf/arrival.py has it");

typedef struct {
    PyObject_HEAD
    Ring ring; /* all points write to the first one's */
    int clock; /* the leader; -1: nothing is open */
    int counters, points;
    int counter[COUNTERS_MAX];
    int fd[POINTS_MAX];
    int hits; /* of each point */
    size_t ring_bytes;
    uint64_t id[POINTS_MAX];
    struct perf_event_attr attr[POINTS_MAX];
    int is_armed;
} Breakpoints;

static int
open_event(struct perf_event_attr *attr, pid_t tid, int leader)
{
    attr->read_format = PERF_FORMAT_GROUP;
    attr->exclude_kernel = 1;
    attr->exclude_hv = 1;
    attr->use_clockid = 1; /* the same in all of a group */
    attr->clockid = CLOCK_MONOTONIC;
    attr->remove_on_exec = 1; /* the new program's addresses mean something else */
    attr->disabled = 1;
    return perf_event_open(attr, tid, -1, leader);
}

static int
open_point(Breakpoints *self, int point, pid_t tid, unsigned kind, uint64_t address)
{
    self->attr[point] = (struct perf_event_attr){
        .type = PERF_TYPE_BREAKPOINT,
        .bp_type = kind,
        .bp_addr = address,
        .bp_len = kind == HW_BREAKPOINT_X ? sizeof(long) : HW_BREAKPOINT_LEN_8,
        .sample_period = 1,
        .sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TIME | PERF_SAMPLE_READ,
        /* Who waits for the thread to come here wants to find it still there. */
        .wakeup_events = 1,
    };
    int fd = open_event(&self->attr[point], tid, self->clock);
    if (fd < 0)
        return -1;
    self->fd[self->points++] = fd;
    if (ioctl(fd, PERF_EVENT_IOC_ID, &self->id[point]) < 0)
        return -1;
    return point == 0 ? ring_map(&self->ring, fd, self->ring_bytes)
                      : ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, self->fd[0]);
}

static void
close_all(Breakpoints *self)
{
    ring_unmap(&self->ring);
    while (self->points > 0)
        close(self->fd[--self->points]);
    while (self->counters > 0)
        close(self->counter[--self->counters]);
    if (self->clock >= 0)
        close(self->clock);
    self->clock = -1;
}

/* Counts from when the clock starts; the other members' disabled bit is theirs. */
static int
open_counter(Breakpoints *self, pid_t tid, PyObject *event)
{
    struct perf_event_attr attr = {0};
    unsigned type, kind;
    unsigned long long config, config1, config2;
    if (!PyArg_ParseTuple(event, "IKKKI", &type, &config, &config1, &config2, &kind))
        return -1;
    attr.type = type;
    attr.config = config;
    attr.bp_type = kind; /* of a breakpoint in the place of a counter */
    attr.config1 = config1;
    attr.config2 = config2;
    int fd = open_event(&attr, tid, self->clock);
    if (fd < 0)
        return -1;
    self->counter[self->counters++] = fd;
    return ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
}

static int
open_counters(Breakpoints *self, pid_t tid, PyObject *counters)
{
    Py_ssize_t count = counters ? PySequence_Size(counters) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *event = PySequence_GetItem(counters, i);
        int opened = event ? open_counter(self, tid, event) : -1;
        Py_XDECREF(event);
        if (opened < 0)
            return -1;
    }
    return 0;
}

static int
open_all(Breakpoints *self, pid_t tid, PyObject *points, PyObject *counters)
{
    struct perf_event_attr clock = {
        .type = PERF_TYPE_SOFTWARE,
        .config = PERF_COUNT_SW_TASK_CLOCK,
        .pinned = 1,
    };
    self->clock = open_event(&clock, tid, -1);
    if (self->clock < 0 || open_counters(self, tid, counters) < 0)
        return -1;
    Py_ssize_t count = PySequence_Size(points);
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned kind;
        unsigned long long address;
        PyObject *item = PySequence_GetItem(points, i);
        int parsed = item && PyArg_ParseTuple(item, "IK", &kind, &address);
        Py_XDECREF(item);
        if (!parsed || open_point(self, (int)i, tid, kind, address) < 0)
            return -1;
    }
    return 0;
}

static PyObject *
breakpoints_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int tid, hits;
    PyObject *points, *counters = NULL;
    if (kwargs && PyDict_Size(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "Breakpoints takes no keyword arguments");
    if (!PyArg_ParseTuple(args, "iOi|O", &tid, &points, &hits, &counters))
        return NULL;
    if (counters && PySequence_Size(counters) > COUNTERS_MAX)
        return PyErr_Format(PyExc_ValueError, "at most %d counters", COUNTERS_MAX);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t count = PySequence_Size(points);
    if (count < 0)
        return NULL;
    if (tid <= 0 || count < 1 || count > POINTS_MAX)
        return PyErr_Format(PyExc_ValueError, "one to %d points on a thread", POINTS_MAX);
    if (hits < 1 || hits > HITS_MAX / count)
        return PyErr_Format(PyExc_ValueError, "one to %d hits", HITS_MAX);
    Breakpoints *self = (Breakpoints *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->clock = -1;
    self->hits = hits;
    const int members = (int)count + (counters ? (int)PySequence_Size(counters) : 0);
    const size_t bytes = hits * count * (offsetof(struct hit_record, counts) + 8 * members);
    self->ring_bytes = bytes < FEW_HITS_RING_BYTES ? FEW_HITS_RING_BYTES : RING_BYTES;
    if (open_all(self, tid, points, counters) < 0) {
        int error = errno; /* closing may change it */
        close_all(self);
        Py_DECREF(self);
        errno = error;
        return PyErr_Occurred() ? NULL : PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void
breakpoints_dealloc(PyObject *self)
{
    close_all((Breakpoints *)self);
    memsampd_free(self);
}

static int
is_open(const Breakpoints *self)
{
    if (self->clock < 0)
        PyErr_SetString(PyExc_ValueError, "the breakpoints are closed");
    return self->clock >= 0;
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
    for (int i = 0; i < self->points; i++)
        if (ioctl(self->fd[i], PERF_EVENT_IOC_REFRESH, self->hits) < 0)
            return PyErr_SetFromErrno(PyExc_OSError);
    if (starts && ioctl(self->clock, PERF_EVENT_IOC_ENABLE, 0) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* The next hit from a position in the ring on, which is left behind it; false: no more. Hits are not taken
 * from the ring: it holds all that can come. */
static int
next_hit(const Breakpoints *self, uint64_t *at, uint64_t head, struct hit_record *record)
{
    while (*at < head) {
        if (ring_copy(&self->ring, *at, record, sizeof *record) < sizeof record->header)
            return 0; /* never seen; going on would not end */
        *at += record->header.size;
        if (record->header.type == PERF_RECORD_SAMPLE)
            return 1;
    }
    return 0;
}

static int
hits_so_far(const Breakpoints *self)
{
    const uint64_t head = ring_head(&self->ring);
    struct hit_record record;
    uint64_t at = 0;
    int hits = 0;
    while (next_hit(self, &at, head, &record))
        hits++;
    return hits;
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
    struct pollfd waiting = {.fd = self->fd[0], .events = POLLIN};
    while (hits_so_far(self) < hits && !(waiting.revents & POLLHUP)) {
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

static uint32_t
point_of(const Breakpoints *self, uint64_t id)
{
    int point = 0;
    while (point < self->points && self->id[point] != id)
        point++;
    return (uint32_t)point;
}

static uint64_t
sum_of(const Breakpoints *self, const uint64_t *counts)
{
    uint64_t sum = 0;
    for (int i = 0; i < self->counters; i++)
        sum += counts[i];
    return sum;
}

PyDoc_STRVAR(hits_doc, "hits()\n--\n\n"
                       "The hits so far, in order: bytes of (task_ns u64, time_ns u64, ip u64,\n"
                       "counted u64, point u32, padding u32).");

static PyObject *
breakpoints_hits(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    struct hit hits[HITS_MAX];
    size_t count = 0;
    if (!is_open(self))
        return NULL;
    const uint64_t head = ring_head(&self->ring);
    const size_t least = offsetof(struct hit_record, counts) + 8 * (size_t)self->counters;
    struct hit_record record;
    uint64_t at = 0;
    while (count < HITS_MAX && next_hit(self, &at, head, &record))
        if (record.header.size >= least)
            hits[count++] = (struct hit){record.task_ns, record.time_ns, record.ip,
                                         sum_of(self, record.counts), point_of(self, record.id), 0};
    return PyBytes_FromStringAndSize((const char *)hits, (Py_ssize_t)(count * sizeof *hits));
}

PyDoc_STRVAR(descriptors_doc, "descriptors()\n--\n\n"
                              "What starts and ends the clock and all points, by ioctl(2), and what is\n"
                              "readable once one was hit.");

static PyObject *
breakpoints_descriptors(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    return is_open(self) ? Py_BuildValue("(ii)", self->clock, self->fd[0]) : NULL;
}

PyDoc_STRVAR(clock_doc, "clock()\n--\n\n"
                        "CPU time of the thread since the points were armed, nanoseconds; whether it\n"
                        "can still hit: False once it has exited or executed a program, or the kernel\n"
                        "gave up; what the counters counted; and whether the kernel gave up.");

static PyObject *
breakpoints_clock(PyObject *object, PyObject *Py_UNUSED(unused))
{
    Breakpoints *self = (Breakpoints *)object;
    struct { uint64_t members, task_ns, counts[COUNTERS_MAX + POINTS_MAX]; } values = {0};
    struct pollfd looked = {.events = POLLIN};
    if (!is_open(self))
        return NULL;
    looked.fd = self->fd[0];
    const ssize_t got = read(self->clock, &values, sizeof values);
    if (got < 0 || poll(&looked, 1, 0) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    /* Nothing is read where the kernel gave up: others took the debug registers of a whole CPU, or
     * the counters. */
    return Py_BuildValue("(KNKN)", (unsigned long long)values.task_ns,
                         PyBool_FromLong(got > 0 && !(looked.revents & POLLHUP)),
                         (unsigned long long)sum_of(self, values.counts),
                         PyBool_FromLong(got == 0));
}

static PyObject *
breakpoints_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
    close_all((Breakpoints *)self);
    Py_RETURN_NONE;
}

static PyMethodDef breakpoints_methods[] = {
    {"arm", breakpoints_arm, METH_VARARGS, arm_doc},
    {"wait", breakpoints_wait, METH_VARARGS, wait_doc},
    {"hits", breakpoints_hits, METH_NOARGS, hits_doc},
    {"clock", breakpoints_clock, METH_NOARGS, clock_doc},
    {"descriptors", breakpoints_descriptors, METH_NOARGS, descriptors_doc},
    {"close", breakpoints_close, METH_NOARGS,
     PyDoc_STR("close()\n--\n\nGive the debug registers back; may be called twice.")},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(breakpoints_doc,
             "Breakpoints(tid, points, hits, counters=())\n--\n\n"
             "One to four breakpoints on a thread, each a pair (kind, address), for so many hits\n"
             "each; not armed yet.\n\n"
             "counters: at most two events (type, config, config1, config2, bp_type) that are read\n"
             "at each hit, in user mode only.\n\n"
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
