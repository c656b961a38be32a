/* perf_event_open(2): the sampled stream of instruction addresses and plain counters. */
#include "core.h"
#include "records.h"
#include "ring.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>

/* From Linux 5.13: inherit to threads of the same process only. Older headers lack the bit's
 * name; it is bit 35 of the flags word that follows read_format. */
#define ATTR_INHERIT_THREAD (UINT64_C(1) << 35)
#define ATTR_FLAGS_OFFSET (offsetof(struct perf_event_attr, read_format) + sizeof(uint64_t))

enum inherit { INHERIT_NOTHING, INHERIT_THREADS, INHERIT_ALL, INHERIT_END };

enum { SAMPLED_STACK_BYTES = 8192 }; /* from the stack pointer on; a multiple of 8 */

PyDoc_STRVAR(perf_open_sampler_doc,
             "perf_open_sampler(tid, cpu, period, wakeup_bytes, inherit, *,\n"
             "                  type=PERF_TYPE_SOFTWARE, config=PERF_COUNT_SW_TASK_CLOCK, config1=0,\n"
             "                  config2=0, bp_type=0, precise_ip=0, sample_type=SAMPLE_REGISTERS,\n"
             "                  group=-1, exclude_kernel=True, disabled=False)\n--\n\n"
             "Sample a thread whenever an event has happened so often, here by default every so\n"
             "many ns of its CPU time; with a period of 0 count it, as a member of a group.\n\n"
             "cpu is -1 for all. inherit: INHERIT_NOTHING, INHERIT_THREADS (Linux 5.13) or\n"
             "INHERIT_ALL. sample_type: SAMPLE_ constants, what is in a sample besides the\n"
             "instruction, the thread and the time. disabled: it and what joins it later wait for\n"
             "PERF_EVENT_IOC_ENABLE. Returns a descriptor; OSError as perf_event_open(2).");

static PyObject *
perf_open_sampler(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tid",     "cpu",     "period",  "wakeup_bytes", "inherit",
                            "type",    "config",  "config1", "config2",      "bp_type",
                            "precise_ip", "sample_type", "group", "exclude_kernel", "disabled",
                            NULL};
    int tid, cpu, inherit, group = -1, exclude_kernel = 1, disabled = 0;
    unsigned type = PERF_TYPE_SOFTWARE, bp_type = 0, precise_ip = 0;
    unsigned long long period, config = PERF_COUNT_SW_TASK_CLOCK, config1 = 0, config2 = 0;
    unsigned long long sample_type = PERF_SAMPLE_REGS_USER;
    unsigned wakeup_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiKIi|$IKKKIIKipp", names, &tid, &cpu, &period,
                                     &wakeup_bytes, &inherit, &type, &config, &config1, &config2,
                                     &bp_type, &precise_ip, &sample_type, &group, &exclude_kernel,
                                     &disabled))
        return NULL;
    if (tid <= 0 || inherit < 0 || inherit >= INHERIT_END) {
        PyErr_SetString(PyExc_ValueError, "tid must be positive and inherit an INHERIT_ constant");
        return NULL;
    }
    struct perf_event_attr attr = {
        .type = type,
        .config = config,
        .config1 = config1,
        .config2 = config2,
        .sample_period = period,
        .sample_type = records_sample_type(sample_type),
        .sample_regs_user = records_registers(sample_type),
        .sample_max_stack = sample_type & PERF_SAMPLE_CALLCHAIN ? CHAIN_FRAMES : 0,
        .exclude_callchain_user = (sample_type & PERF_SAMPLE_CALLCHAIN) != 0,
        .sample_stack_user = sample_type & PERF_SAMPLE_STACK_USER ? SAMPLED_STACK_BYTES : 0,
        .read_format = sample_type & PERF_SAMPLE_READ ? RECORDS_READ_FORMAT : 0,
        .disabled = disabled != 0,
        .inherit = inherit != INHERIT_NOTHING,
        .exclude_kernel = exclude_kernel != 0,
        .exclude_hv = exclude_kernel != 0,
        .precise_ip = precise_ip & 3,
        .bp_type = bp_type,
        .comm = group < 0,
        .task = group < 0,
        .watermark = 1,
        .sample_id_all = 1,
        .use_clockid = 1,
        .wakeup_watermark = wakeup_bytes,
        .clockid = CLOCK_MONOTONIC,
    };
    if (inherit == INHERIT_THREADS) {
        uint64_t flags;
        memcpy(&flags, (char *)&attr + ATTR_FLAGS_OFFSET, sizeof flags);
        flags |= ATTR_INHERIT_THREAD;
        memcpy((char *)&attr + ATTR_FLAGS_OFFSET, &flags, sizeof flags);
    }
    int fd = perf_event_open(&attr, tid, cpu, group);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(perf_open_counter_doc,
             "perf_open_counter(tid, type, config, config1=0, config2=0, *, bp_type=0,\n"
             "                  precise_ip=0, period=0, exclude_kernel=True)\n--\n\n"
             "Count one event of one thread on any CPU, in user mode only if so asked.\n\n"
             "For PERF_TYPE_BREAKPOINT config1 is the address and config2 the length in bytes.\n"
             "precise_ip (1..3) needs a period. Reading the descriptor yields three u64: the\n"
             "count, and the nanoseconds for which it was enabled and really on a counter.");

static PyObject *
perf_open_counter(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tid",     "type",       "config", "config1",        "config2",
                            "bp_type", "precise_ip", "period", "exclude_kernel", NULL};
    int tid, exclude_kernel = 1;
    unsigned type, bp_type = 0, precise_ip = 0;
    unsigned long long config, config1 = 0, config2 = 0, period = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iIK|KK$IIKp", names, &tid, &type, &config,
                                     &config1, &config2, &bp_type, &precise_ip, &period,
                                     &exclude_kernel))
        return NULL;
    struct perf_event_attr attr = {
        .type = type,
        .config = config,
        .sample_period = period,
        .sample_type = period ? PERF_SAMPLE_IP : 0,
        .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
        .exclude_kernel = exclude_kernel != 0,
        .exclude_hv = exclude_kernel != 0,
        .precise_ip = precise_ip & 3,
        .bp_type = bp_type,
        .config1 = config1,
        .config2 = config2,
    };
    int fd = perf_event_open(&attr, tid, -1, -1);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

#define ROOM_BYTES 512 /* more than a record of ours takes */

/* One ring buffer, mapped from the descriptor of an event. */
typedef struct {
    PyObject_HEAD
    Ring ring;
    uint64_t sample_type; /* of the events that write to it */
    int was_full;         /* when it was drained last */
} PerfRing;

static int
ring_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "data_bytes", "sample_type", NULL};
    unsigned long long sample_type = PERF_SAMPLE_REGS_USER;
    PerfRing *perf_ring = (PerfRing *)self;
    int fd;
    Py_ssize_t data_bytes;
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in|K", names, &fd, &data_bytes,
                                     &sample_type))
        return -1;
    if (data_bytes < (Py_ssize_t)page_bytes || (data_bytes & (data_bytes - 1)) ||
        perf_ring->ring.control) {
        PyErr_SetString(PyExc_ValueError, "a ring is a power of two of pages, mapped once");
        return -1;
    }
    if (ring_map(&perf_ring->ring, fd, (size_t)data_bytes) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    perf_ring->sample_type = records_sample_type(sample_type);
    return 0;
}

static PyObject *
ring_close(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ring_unmap(&((PerfRing *)self)->ring);
    Py_RETURN_NONE;
}

static void
ring_dealloc(PyObject *self)
{
    ring_unmap(&((PerfRing *)self)->ring);
    memsampd_free(self);
}

PyDoc_STRVAR(ring_drain_doc,
             "drain()\n--\n\n"
             "Take all that is in the ring, as parse_records() tells it. Empty once closed.");

/* What is in the ring, up to `*head`. */
static PyObject *
ring_records(PerfRing *self, uint64_t *head)
{
    const Ring *ring = &self->ring;
    *head = ring->control ? ring_head(ring) : 0;
    uint64_t tail = ring->control ? ring->control->data_tail : 0;
    return records_parse(ring, tail, *head, self->sample_type);
}

static PyObject *
ring_drain(PyObject *self, PyObject *Py_UNUSED(unused))
{
    PerfRing *perf_ring = (PerfRing *)self;
    uint64_t head;
    PyObject *found = ring_records(perf_ring, &head);
    if (found && perf_ring->ring.control) {
        const uint64_t used = head - perf_ring->ring.control->data_tail;
        perf_ring->was_full = perf_ring->ring.data_bytes - used < ROOM_BYTES;
        ring_give_back(&perf_ring->ring, head);
    }
    return found;
}

PyDoc_STRVAR(ring_was_full_doc,
             "was_full()\n--\n\n"
             "Whether there was no room for more when it was drained last: what came then is lost, and\n"
             "the kernel says so with the next record that it writes.");

static PyObject *
ring_was_full(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(((PerfRing *)self)->was_full);
}

PyDoc_STRVAR(ring_peek_doc,
             "peek()\n--\n\n"
             "Tell what drain() would, and leave it in the ring.");

static PyObject *
ring_peek(PyObject *self, PyObject *Py_UNUSED(unused))
{
    uint64_t head;
    return ring_records((PerfRing *)self, &head);
}

static PyMethodDef ring_methods[] = {
    {"drain", ring_drain, METH_NOARGS, ring_drain_doc},
    {"peek", ring_peek, METH_NOARGS, ring_peek_doc},
    {"was_full", ring_was_full, METH_NOARGS, ring_was_full_doc},
    {"close", ring_close, METH_NOARGS, PyDoc_STR("close()\n--\n\nUnmap it; may be called twice.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, (void *)"PerfRing(fd, data_bytes, sample_type=SAMPLE_REGISTERS)\n--\n\n"
                        "The ring buffer of sampling events, all with the same sample_type."},
    {Py_tp_init, (void *)(uintptr_t)ring_init},
    {Py_tp_dealloc, (void *)(uintptr_t)ring_dealloc},
    {Py_tp_methods, ring_methods},
    {0, NULL},
};

static PyType_Spec ring_spec = {
    .name = "memsampd._core.PerfRing",
    .basicsize = sizeof(PerfRing),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = ring_slots,
};

PyDoc_STRVAR(parse_records_doc,
             "parse_records(data, sample_type, tail=0, head=len(data))\n--\n\n"
             "Read the records of a ring buffer's bytes, from one position to another; sample_type as\n"
             "the kernel has it, with IP, TID and TIME.\n\n"
             "Returns (samples, events, lost, throttled): samples as a bytearray (SAMPLE_DTYPE in\n"
             "sampler/perf/rings.py); events as tuples (kind, pid, tid, parent pid, parent tid,\n"
             "time_ns, command), kind one of fork, exit, exec, rename; records lost, those that\n"
             "cannot be read among them; and throttle records.");

static PyObject *
parse_records(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "sample_type", "tail", "head", NULL};
    const char *data;
    Py_ssize_t bytes;
    unsigned long long sample_type, tail = 0, head = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#K|KK", names, &data, &bytes, &sample_type,
                                     &tail, &head))
        return NULL;
    if (head == UINT64_MAX)
        head = (uint64_t)bytes;
    if (head < tail || head - tail > (uint64_t)bytes)
        return PyErr_Format(PyExc_ValueError, "positions that %zd bytes do not have", bytes);
    Ring ring = {NULL, 0, (const unsigned char *)data, (size_t)bytes};
    return records_parse(&ring, tail, head, sample_type);
}

PyDoc_STRVAR(pass_bytes_doc,
             "pass_bytes(from_fd, to_fd, rounds, begins)\n--\n\n"
             "Pass a byte to another thread over pipes and have one back, so many times: each time\n"
             "this thread sleeps and is woken up. Who begins writes first.\n\n"
             "Returns the CPU time that it took this thread, in ns.");

/* Whether a byte was written, or read; a signal does not end it. */
static int
passed(int fd, int writes)
{
    char byte = 0;
    ssize_t moved;
    do
        moved = writes ? write(fd, &byte, 1) : read(fd, &byte, 1);
    while (moved < 0 && errno == EINTR);
    return moved == 1;
}

static PyObject *
pass_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    int from, to, begins, is_open = 1;
    unsigned long rounds;
    struct timespec start, end;
    if (!PyArg_ParseTuple(args, "iikp", &from, &to, &rounds, &begins))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    errno = EPIPE; /* of a read that finds the other end closed */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (unsigned long i = 0; i < rounds && is_open; i++)
        is_open = begins ? passed(to, 1) && passed(from, 0) : passed(from, 0) && passed(to, 1);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    Py_END_ALLOW_THREADS
    if (!is_open)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromLongLong((end.tv_sec - start.tv_sec) * 1000000000LL + end.tv_nsec -
                               start.tv_nsec);
}

static PyMethodDef perf_functions[] = {
    {"perf_open_sampler", (PyCFunction)(void (*)(void))perf_open_sampler,
     METH_VARARGS | METH_KEYWORDS, perf_open_sampler_doc},
    {"parse_records", (PyCFunction)(void (*)(void))parse_records, METH_VARARGS | METH_KEYWORDS,
     parse_records_doc},
    {"perf_open_counter", (PyCFunction)(void (*)(void))perf_open_counter,
     METH_VARARGS | METH_KEYWORDS, perf_open_counter_doc},
    {"pass_bytes", pass_bytes, METH_VARARGS, pass_bytes_doc},
    {NULL, NULL, 0, NULL},
};

static const struct constant perf_constants[] = {
    {"INHERIT_NOTHING", INHERIT_NOTHING},
    {"INHERIT_THREADS", INHERIT_THREADS},
    {"INHERIT_ALL", INHERIT_ALL},
    {"PERF_EVENT_IOC_ENABLE", PERF_EVENT_IOC_ENABLE},
    {"PERF_EVENT_IOC_DISABLE", PERF_EVENT_IOC_DISABLE},
    {"PERF_EVENT_IOC_REFRESH", PERF_EVENT_IOC_REFRESH},
    {"PERF_EVENT_IOC_SET_OUTPUT", PERF_EVENT_IOC_SET_OUTPUT},
    {"PERF_TYPE_HARDWARE", PERF_TYPE_HARDWARE},
    {"PERF_TYPE_SOFTWARE", PERF_TYPE_SOFTWARE},
    {"PERF_EVENT_IOC_SET_FILTER", PERF_EVENT_IOC_SET_FILTER},
    {"PERF_TYPE_BREAKPOINT", PERF_TYPE_BREAKPOINT},
    {"PERF_TYPE_TRACEPOINT", PERF_TYPE_TRACEPOINT},
    {"PERF_COUNT_HW_CPU_CYCLES", PERF_COUNT_HW_CPU_CYCLES},
    {"PERF_COUNT_HW_INSTRUCTIONS", PERF_COUNT_HW_INSTRUCTIONS},
    {"PERF_COUNT_SW_TASK_CLOCK", PERF_COUNT_SW_TASK_CLOCK},
    {"PERF_EVENT_IOC_PERIOD", PERF_EVENT_IOC_PERIOD},
    {"SAMPLE_ADDRESS", PERF_SAMPLE_ADDR},
    {"SAMPLE_CHAIN", PERF_SAMPLE_CALLCHAIN},
    {"SAMPLE_COUNTS", PERF_SAMPLE_READ},
    {"SAMPLE_RAW", PERF_SAMPLE_RAW},
    {"SAMPLE_REGISTERS", PERF_SAMPLE_REGS_USER},
    {"SAMPLE_DATA_SOURCE", PERF_SAMPLE_DATA_SRC},
    {"SAMPLE_COUNTS_MOST", RECORDS_COUNTS},
    {"SAMPLE_STACK", PERF_SAMPLE_STACK_USER},
    {NULL, 0},
};

int
memsampd_add_perf(PyObject *module)
{
    return PyModule_AddFunctions(module, perf_functions) < 0 ||
                   memsampd_add_constants(module, perf_constants) < 0 ||
                   memsampd_add_type(module, &ring_spec) < 0
               ? -1
               : 0;
}
