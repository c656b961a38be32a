/* Records of perf events: bytes that the kernel wrote, and that are checked all the same. */
#include "core.h"
#include "records.h"
#include "rest.h"

enum {
    RECORD_BYTES_MAX = 1024, /* far above any record that we ask for */
    SAMPLE_BYTES_MIN = 32,   /* of any record of a sample, its header included */
};

#define SAMPLED_ALWAYS ((uint64_t)(PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME))
#define SAMPLED_AT_WILL                                                                 \
    ((uint64_t)(PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_ADDR | PERF_SAMPLE_ID |            \
                PERF_SAMPLE_STREAM_ID | PERF_SAMPLE_CPU | PERF_SAMPLE_PERIOD |          \
                PERF_SAMPLE_READ | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_RAW |            \
                PERF_SAMPLE_REGS_USER | PERF_SAMPLE_WEIGHT_TYPE | PERF_SAMPLE_DATA_SRC))

/* Registers of AMD's instruction-based sampling of operations in a raw record, after its first word
 * (of capabilities): IbsOpCtl, IbsOpRip, IbsOpData, IbsOpData2, IbsOpData3. */
enum { IBS_OP_DATA = 2, IBS_OP_DATA3 = 4, IBS_REGISTERS = 5 };

/* The function of a timer that has expired, in the raw record of its tracepoint (its format says so, and
 * sampler/perf/ticks.py looks). */
enum { EXPIRED_FUNCTION_BYTE = 24, IP_AMONG_REGISTERS = 8 };

/* A sample as Python sees it; SAMPLE_DTYPE in sampler/perf/rings.py is its twin. What was not asked
 * for, or is not there, is 0. */
typedef struct {
    uint64_t time_ns;
    uint64_t ip;
    uint32_t pid;
    uint32_t tid;
    uint64_t event; /* whose sample it is; the same for all threads that inherited it */
    uint64_t address; /* of a sample with a chain: where the kernel was entered */
    uint64_t data_source; /* of one with a chain and a raw record: the function of a timer */
    uint64_t enabled_ns;
    uint64_t running_ns;
    uint64_t counts[RECORDS_COUNTS];
    uint64_t ibs_op_data;
    uint64_t ibs_op_data3;
    uint64_t frames; /* in the chain */
    uint64_t registers[REGISTERS];
} Sample;

uint64_t
records_sample_type(uint64_t asked)
{
    return asked | SAMPLED_ALWAYS | PERF_SAMPLE_IDENTIFIER;
}

uint64_t
records_registers(uint64_t sample_type)
{
    uint64_t ip = sample_type & PERF_SAMPLE_CALLCHAIN ? UINT64_C(1) << IP_AMONG_REGISTERS : 0;
    return sample_type & PERF_SAMPLE_REGS_USER ? SAMPLED_REGISTERS | ip : 0;
}

/* Whom the kernel called, innermost first: only how many, and where it was entered, is kept. */
static int
take_chain(Rest *rest, Sample *to)
{
    uint64_t frames;
    if (take(rest, &frames, sizeof frames) < 0 || frames > rest->left / sizeof frames)
        return -1;
    to->frames = frames;
    if (frames == 0)
        return 0;
    return take(rest, NULL, (size_t)(frames - 1) * sizeof frames) < 0
               ? -1
               : take(rest, &to->address, sizeof to->address);
}

static int
take_counts(Rest *rest, Sample *to)
{
    uint64_t members;
    if (take(rest, &members, sizeof members) < 0 ||
        take(rest, &to->enabled_ns, sizeof to->enabled_ns) < 0 ||
        take(rest, &to->running_ns, sizeof to->running_ns) < 0 || members > RECORDS_COUNTS)
        return -1;
    return take(rest, to->counts, (size_t)members * sizeof *to->counts);
}

static int
take_raw(Rest *rest, uint64_t sample_type, Sample *to)
{
    uint32_t bytes, capabilities;
    uint64_t registers[IBS_REGISTERS];
    if (take(rest, &bytes, sizeof bytes) < 0 || bytes > rest->left)
        return -1;
    Rest raw = {rest->at, bytes};
    if (sample_type & PERF_SAMPLE_CALLCHAIN) {
        if (take(&raw, NULL, EXPIRED_FUNCTION_BYTE) == 0)
            take(&raw, &to->data_source, sizeof to->data_source);
    } else if (take(&raw, &capabilities, sizeof capabilities) == 0 &&
               take(&raw, registers, sizeof registers) == 0) {
        to->ibs_op_data = registers[IBS_OP_DATA];
        to->ibs_op_data3 = registers[IBS_OP_DATA3];
    }
    return take(rest, NULL, bytes);
}

static int
take_registers(Rest *rest, uint64_t sample_type, Sample *to)
{
    uint64_t abi; /* no registers follow where it is PERF_SAMPLE_REGS_ABI_NONE */
    const size_t before = sample_type & PERF_SAMPLE_CALLCHAIN ? IP_AMONG_REGISTERS : REGISTERS;
    if (take(rest, &abi, sizeof abi) < 0)
        return -1;
    if (abi == PERF_SAMPLE_REGS_ABI_NONE)
        return 0;
    if (take(rest, to->registers, before * sizeof *to->registers) < 0)
        return -1;
    if (before < REGISTERS &&
        (take(rest, &to->ip, sizeof to->ip) < 0 ||
         take(rest, to->registers + before, (REGISTERS - before) * sizeof *to->registers) < 0))
        return -1;
    if (abi != PERF_SAMPLE_REGS_ABI_64)
        memset(to->registers, 0, sizeof to->registers);
    return 0;
}

/* In the order of the kernel's ABI: linux/perf_event.h, PERF_RECORD_SAMPLE. */
static int
take_sample(Rest *rest, uint64_t sample_type, Sample *to)
{
    struct {
        uint64_t bit;
        void *to; /* NULL: not kept */
    } words[] = {
        {PERF_SAMPLE_IDENTIFIER, &to->event}, {PERF_SAMPLE_IP, &to->ip},
        {PERF_SAMPLE_TID, &to->pid}, /* and tid */
        {PERF_SAMPLE_TIME, &to->time_ns},     {PERF_SAMPLE_ADDR, &to->address},
        {PERF_SAMPLE_ID, NULL},               {PERF_SAMPLE_STREAM_ID, NULL},
        {PERF_SAMPLE_CPU, NULL},              {PERF_SAMPLE_PERIOD, NULL},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (sample_type & words[i].bit && take(rest, words[i].to, sizeof(uint64_t)) < 0)
            return -1;
    if (sample_type & PERF_SAMPLE_READ && take_counts(rest, to) < 0)
        return -1;
    if (sample_type & PERF_SAMPLE_CALLCHAIN && take_chain(rest, to) < 0)
        return -1;
    if (sample_type & PERF_SAMPLE_RAW && take_raw(rest, sample_type, to) < 0)
        return -1;
    if (sample_type & PERF_SAMPLE_REGS_USER && take_registers(rest, sample_type, to) < 0)
        return -1;
    if (sample_type & PERF_SAMPLE_WEIGHT_TYPE && take(rest, NULL, sizeof(uint64_t)) < 0)
        return -1;
    if (sample_type & PERF_SAMPLE_DATA_SRC)
        return take(rest, &to->data_source, sizeof to->data_source);
    return 0;
}

/* Where the time stands in what ends every record that is no sample: TID, TIME, ID, STREAM_ID, CPU,
 * IDENTIFIER, each if asked for. */
static size_t
time_from_end(uint64_t sample_type)
{
    size_t words = 1;
    words += (sample_type & PERF_SAMPLE_IDENTIFIER) != 0;
    words += (sample_type & PERF_SAMPLE_ID) != 0;
    words += (sample_type & PERF_SAMPLE_STREAM_ID) != 0;
    words += (sample_type & PERF_SAMPLE_CPU) != 0;
    return words * sizeof(uint64_t);
}

/* A task event as a tuple; None for a record that is too short. */
static PyObject *
task_event(const struct perf_event_header *header, Rest rest)
{
    struct { uint32_t pid, ppid, tid, ptid; uint64_t time_ns; } task;
    if (take(&rest, &task, sizeof task) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(sIIIIKs)", header->type == PERF_RECORD_FORK ? "fork" : "exit", task.pid,
                         task.tid, task.ppid, task.ptid, (unsigned long long)task.time_ns, "");
}

static PyObject *
name_event(const struct perf_event_header *header, Rest rest, uint64_t sample_type)
{
    struct { uint32_t pid, tid; } thread;
    uint64_t time_ns;
    size_t end = time_from_end(sample_type);
    if (take(&rest, &thread, sizeof thread) < 0 || rest.left < end)
        Py_RETURN_NONE;
    memcpy(&time_ns, rest.at + rest.left - end, sizeof time_ns);
    size_t most = rest.left - end;
    const char *text = (const char *)rest.at;
    /* A name is any bytes up to 15; what is no UTF-8 is kept by surrogateescape. */
    PyObject *name = PyUnicode_DecodeFSDefaultAndSize(text, (Py_ssize_t)strnlen(text, most));
    if (!name)
        return NULL;
    int is_exec = (header->misc & PERF_RECORD_MISC_COMM_EXEC) != 0;
    return Py_BuildValue("(sIIIIKN)", is_exec ? "exec" : "rename", thread.pid, thread.tid, 0, 0,
                         (unsigned long long)time_ns, name);
}

typedef struct {
    PyObject *samples, *events;
    size_t taken;
    unsigned long long lost, throttled;
} Found;

/* Whether the kernel, or whoever is below it or a guest's, was at work: what was asked for is user code of
 * the process itself. Samples with a chain are of the kernel's code: it tells where that was entered from. */
static int
is_elsewhere(const struct perf_event_header *header, uint64_t sample_type)
{
    if (sample_type & PERF_SAMPLE_CALLCHAIN)
        return 0;
    unsigned mode = header->misc & PERF_RECORD_MISC_CPUMODE_MASK;
    return mode == PERF_RECORD_MISC_KERNEL || mode == PERF_RECORD_MISC_HYPERVISOR ||
           mode == PERF_RECORD_MISC_GUEST_KERNEL || mode == PERF_RECORD_MISC_GUEST_USER;
}

/* One record; -1 with an exception set. */
static int
take_record(const struct perf_event_header *header, Rest rest, uint64_t sample_type, Found *found)
{
    uint64_t words[2] = {0, 0};
    switch (header->type) {
    case PERF_RECORD_SAMPLE: {
        Sample sample = {0};
        if (take_sample(&rest, sample_type, &sample) < 0)
            found->lost++;
        else if (!is_elsewhere(header, sample_type))
            memcpy(PyByteArray_AsString(found->samples) + found->taken++ * sizeof sample, &sample,
                   sizeof sample);
        return 0;
    }
    case PERF_RECORD_LOST: /* its event, and how many */
        found->lost += take(&rest, words, sizeof words) < 0 ? 1 : words[1];
        return 0;
    case PERF_RECORD_LOST_SAMPLES:
        found->lost += take(&rest, words, sizeof *words) < 0 ? 1 : words[0];
        return 0;
    case PERF_RECORD_THROTTLE:
        found->throttled++;
        return 0;
    case PERF_RECORD_COMM:
    case PERF_RECORD_FORK:
    case PERF_RECORD_EXIT: {
        PyObject *event = header->type == PERF_RECORD_COMM ? name_event(header, rest, sample_type)
                                                           : task_event(header, rest);
        if (!event)
            return -1;
        int failed = 0;
        if (event == Py_None)
            found->lost++;
        else
            failed = PyList_Append(found->events, event);
        Py_DECREF(event);
        return failed;
    }
    default:
        return 0; /* PERF_RECORD_UNTHROTTLE and kinds that we did not ask for */
    }
}

static int
take_all(const Ring *ring, uint64_t tail, uint64_t head, uint64_t sample_type, Found *found)
{
    unsigned char record[RECORD_BYTES_MAX] __attribute__((aligned(8)));
    struct perf_event_header header;
    while (head - tail >= sizeof header) {
        size_t size = ring_copy(ring, tail, record, sizeof record);
        memcpy(&header, record, sizeof header);
        if (size < sizeof header || size > head - tail)
            break; /* no record begins here: nobody knows where the next one does */
        size_t kept = size < sizeof record ? size : sizeof record;
        Rest rest = {record + sizeof header, kept - sizeof header};
        if (take_record(&header, rest, sample_type, found) < 0)
            return -1;
        tail += size;
    }
    found->lost += tail != head;
    return 0;
}

PyObject *
records_parse(const Ring *ring, uint64_t tail, uint64_t head, uint64_t sample_type)
{
    if ((sample_type & SAMPLED_ALWAYS) != SAMPLED_ALWAYS ||
        sample_type & ~(SAMPLED_ALWAYS | SAMPLED_AT_WILL))
        return PyErr_Format(PyExc_ValueError, "samples of fields that cannot be read");
    size_t most = (size_t)(head - tail) / SAMPLE_BYTES_MIN;
    Found found = {
        .samples = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(most * sizeof(Sample))),
        .events = PyList_New(0),
    };
    if (found.samples && found.events &&
        take_all(ring, tail, head, sample_type, &found) == 0 &&
        PyByteArray_Resize(found.samples, (Py_ssize_t)(found.taken * sizeof(Sample))) == 0)
        return Py_BuildValue("(NNKK)", found.samples, found.events, found.lost, found.throttled);
    Py_XDECREF(found.samples);
    Py_XDECREF(found.events);
    return NULL;
}
