/* perf_event_open(2): the sampled stream of instruction addresses and plain counters. */
#include "core.h"
#include "ring.h"

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

/* From Linux 5.13: inherit to threads of the same process only. Older headers lack the bit's
 * name; it is bit 35 of the flags word that follows read_format. */
#define ATTR_INHERIT_THREAD (UINT64_C(1) << 35)
#define ATTR_FLAGS_OFFSET (offsetof(struct perf_event_attr, read_format) + sizeof(uint64_t))

/* rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp and r8 to r15: the order of their bits is that of the record. */
#define SAMPLED_REGISTERS UINT64_C(0xff00ff)
#define SAMPLED_REGISTERS_COUNT 16

enum inherit { INHERIT_NOTHING, INHERIT_THREADS, INHERIT_ALL, INHERIT_END };

static long
perf_event_open(struct perf_event_attr *attr, pid_t tid, int cpu)
{
    return syscall(SYS_perf_event_open, attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

PyDoc_STRVAR(perf_open_sampler_doc,
             "perf_open_sampler(tid, cpu, period_ns, wakeup_bytes, inherit)\n--\n\n"
             "Sample a thread's user-mode instruction address and general registers every period_ns\n"
             "of its CPU time.\n\n"
             "cpu is -1 for all. inherit: INHERIT_NOTHING, INHERIT_THREADS (Linux 5.13) or\n"
             "INHERIT_ALL. Returns a descriptor; OSError as perf_event_open(2).");

static PyObject *
perf_open_sampler(PyObject *module, PyObject *args)
{
    int tid, cpu, inherit;
    unsigned long long period_ns;
    unsigned wakeup_bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "iiKIi", &tid, &cpu, &period_ns, &wakeup_bytes, &inherit))
        return NULL;
    if (tid <= 0 || inherit < 0 || inherit >= INHERIT_END) {
        PyErr_SetString(PyExc_ValueError, "tid must be positive and inherit an INHERIT_ constant");
        return NULL;
    }
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof attr,
        .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = period_ns,
        .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_REGS_USER,
        .sample_regs_user = SAMPLED_REGISTERS,
        .inherit = inherit != INHERIT_NOTHING,
        .exclude_kernel = 1,
        .exclude_hv = 1,
        .comm = 1,
        .task = 1,
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
    long fd = perf_event_open(&attr, tid, cpu);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

PyDoc_STRVAR(perf_open_counter_doc,
             "perf_open_counter(tid, type, config, config1=0, config2=0, *, bp_type=0,\n"
             "                  precise_ip=0, period=0)\n--\n\n"
             "Count one user-mode event of one thread on any CPU.\n\n"
             "For PERF_TYPE_BREAKPOINT config1 is the address and config2 the length in bytes.\n"
             "precise_ip (1..3) needs a period. Reading the descriptor yields three u64: the\n"
             "count, and the nanoseconds for which it was enabled and really on a counter.");

static PyObject *
perf_open_counter(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tid",     "type",       "config", "config1", "config2",
                            "bp_type", "precise_ip", "period", NULL};
    int tid;
    unsigned type, bp_type = 0, precise_ip = 0;
    unsigned long long config, config1 = 0, config2 = 0, period = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iIK|KK$IIK", names, &tid, &type, &config,
                                     &config1, &config2, &bp_type, &precise_ip, &period))
        return NULL;
    struct perf_event_attr attr = {
        .type = type,
        .size = sizeof attr,
        .config = config,
        .sample_period = period,
        .sample_type = period ? PERF_SAMPLE_IP : 0,
        .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
        .exclude_kernel = 1,
        .exclude_hv = 1,
        .precise_ip = precise_ip & 3,
        .bp_type = bp_type,
        .config1 = config1,
        .config2 = config2,
    };
    long fd = perf_event_open(&attr, tid, -1);
    return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

/* One ring buffer, mapped from the descriptor of an event. */
typedef struct {
    PyObject_HEAD
    Ring ring;
} PerfRing;

/* A sample as Python sees it; SAMPLE_DTYPE in sampler/perf/rings.py is its twin. */
typedef struct {
    uint64_t time_ns;
    uint64_t ip;
    uint32_t pid;
    uint32_t tid;
    uint64_t registers[SAMPLED_REGISTERS_COUNT]; /* zeros where the kernel gave none */
} Sample;

/* Bodies of the records that we ask for (after struct perf_event_header). */
struct sample_body {
    uint64_t ip;
    uint32_t pid, tid;
    uint64_t time_ns;
    uint64_t abi; /* no registers follow where it is PERF_SAMPLE_REGS_ABI_NONE */
    uint64_t registers[SAMPLED_REGISTERS_COUNT];
};
struct task_body { uint32_t pid, ppid, tid, ptid; uint64_t time_ns; };
struct comm_body { uint32_t pid, tid; char comm[]; };
struct sample_id { uint32_t pid, tid; uint64_t time_ns; };

enum { RECORD_BYTES_MAX = 256 }; /* far above any record that we ask for */

static int
ring_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "data_bytes", NULL};
    PerfRing *perf_ring = (PerfRing *)self;
    int fd;
    Py_ssize_t data_bytes;
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in", names, &fd, &data_bytes))
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
    return 0;
}

static PyObject *
ring_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    ring_unmap(&((PerfRing *)self)->ring);
    Py_RETURN_NONE;
}

static void
ring_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ring_unmap(&((PerfRing *)self)->ring);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
append_event(PyObject *events, const unsigned char *record)
{
    struct perf_event_header header;
    memcpy(&header, record, sizeof header);
    const unsigned char *body = record + sizeof header;
    PyObject *event;
    if (header.type == PERF_RECORD_COMM) {
        const struct comm_body *comm = (const void *)body;
        struct sample_id id;
        memcpy(&id, record + header.size - sizeof id, sizeof id);
        /* A name is any bytes up to 15; what is no UTF-8 is kept by surrogateescape. */
        PyObject *name = PyUnicode_DecodeFSDefault(comm->comm);
        if (!name)
            return -1;
        int is_exec = (header.misc & PERF_RECORD_MISC_COMM_EXEC) != 0;
        event = Py_BuildValue("(sIIIIKN)", is_exec ? "exec" : "rename", comm->pid, comm->tid, 0, 0,
                              (unsigned long long)id.time_ns, name);
    } else {
        const struct task_body *task = (const void *)body;
        event = Py_BuildValue("(sIIIIKs)", header.type == PERF_RECORD_FORK ? "fork" : "exit",
                              task->pid, task->tid, task->ppid, task->ptid,
                              (unsigned long long)task->time_ns, "");
    }
    if (!event)
        return -1;
    int failed = PyList_Append(events, event);
    Py_DECREF(event);
    return failed;
}

PyDoc_STRVAR(ring_drain_doc,
             "drain()\n--\n\n"
             "Take all that is in the ring.\n\n"
             "Returns (samples, events, lost, throttled): samples as a bytearray of (time_ns u64,\n"
             "ip u64, pid u32, tid u32, registers 16 u64); events as tuples (kind, pid, tid, parent pid, parent\n"
             "tid, time_ns, command), kind one of fork, exit, exec, rename. Empty once closed.");

static PyObject *
ring_drain(PyObject *self, PyObject *unused)
{
    Ring *ring = &((PerfRing *)self)->ring;
    unsigned char record[RECORD_BYTES_MAX] __attribute__((aligned(8)));
    unsigned long long lost = 0, throttled = 0;
    (void)unused;
    uint64_t head = 0, tail = 0;
    if (ring->control) {
        head = ring_head(ring);
        tail = ring->control->data_tail;
    }
    size_t record_bytes =
        sizeof(struct perf_event_header) + offsetof(struct sample_body, registers);
    size_t most = (size_t)(head - tail) / record_bytes;
    PyObject *samples = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(most * sizeof(Sample)));
    PyObject *events = PyList_New(0);
    if (!samples || !events)
        goto fail;
    char *out = PyByteArray_AsString(samples);
    size_t taken = 0;
    while (tail != head) {
        size_t size = ring_copy(ring, tail, record, sizeof record);
        const struct perf_event_header *header = (const void *)record;
        const unsigned char *body = record + sizeof *header;
        if (size < sizeof *header)
            break; /* never seen; going on would not end */
        tail += size;
        switch (header->type) {
        case PERF_RECORD_SAMPLE: {
            const struct sample_body *from = (const void *)body;
            Sample to = {.time_ns = from->time_ns, .ip = from->ip, .pid = from->pid, .tid = from->tid};
            if (from->abi == PERF_SAMPLE_REGS_ABI_64)
                memcpy(to.registers, from->registers, sizeof to.registers);
            memcpy(out + taken++ * sizeof to, &to, sizeof to);
            break;
        }
        case PERF_RECORD_LOST:
            lost += ((const uint64_t *)body)[1];
            break;
        case PERF_RECORD_LOST_SAMPLES:
            lost += ((const uint64_t *)body)[0];
            break;
        case PERF_RECORD_THROTTLE:
            throttled++;
            break;
        case PERF_RECORD_COMM:
        case PERF_RECORD_FORK:
        case PERF_RECORD_EXIT:
            if (append_event(events, record) < 0)
                goto fail;
            break;
        default:
            break; /* PERF_RECORD_UNTHROTTLE and kinds that we did not ask for */
        }
    }
    if (ring->control)
        ring_give_back(ring, head);
    if (PyByteArray_Resize(samples, (Py_ssize_t)(taken * sizeof(Sample))) < 0)
        goto fail;
    return Py_BuildValue("(NNKK)", samples, events, lost, throttled);
fail:
    Py_XDECREF(samples);
    Py_XDECREF(events);
    return NULL;
}

static PyMethodDef ring_methods[] = {
    {"drain", ring_drain, METH_NOARGS, ring_drain_doc},
    {"close", ring_close, METH_NOARGS, PyDoc_STR("close()\n--\n\nUnmap it; may be called twice.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, (void *)"PerfRing(fd, data_bytes)\n--\n\nThe ring buffer of a sampling event."},
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

static PyMethodDef perf_functions[] = {
    {"perf_open_sampler", perf_open_sampler, METH_VARARGS, perf_open_sampler_doc},
    {"perf_open_counter", (PyCFunction)(void (*)(void))perf_open_counter,
     METH_VARARGS | METH_KEYWORDS, perf_open_counter_doc},
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    long value;
} perf_constants[] = {
    {"INHERIT_NOTHING", INHERIT_NOTHING},
    {"INHERIT_THREADS", INHERIT_THREADS},
    {"INHERIT_ALL", INHERIT_ALL},
    {"PERF_EVENT_IOC_REFRESH", PERF_EVENT_IOC_REFRESH},
    {"PERF_EVENT_IOC_SET_OUTPUT", PERF_EVENT_IOC_SET_OUTPUT},
    {"PERF_TYPE_HARDWARE", PERF_TYPE_HARDWARE},
    {"PERF_TYPE_SOFTWARE", PERF_TYPE_SOFTWARE},
    {"PERF_TYPE_BREAKPOINT", PERF_TYPE_BREAKPOINT},
    {"PERF_COUNT_HW_CPU_CYCLES", PERF_COUNT_HW_CPU_CYCLES},
    {"PERF_COUNT_SW_TASK_CLOCK", PERF_COUNT_SW_TASK_CLOCK},
};

int
memsampd_add_perf(PyObject *module)
{
    if (PyModule_AddFunctions(module, perf_functions) < 0)
        return -1;
    for (size_t i = 0; i < sizeof perf_constants / sizeof *perf_constants; i++)
        if (PyModule_AddIntConstant(module, perf_constants[i].name, perf_constants[i].value) < 0)
            return -1;
    PyObject *type = PyType_FromSpec(&ring_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "PerfRing", type);
    Py_DECREF(type);
    return failed;
}
