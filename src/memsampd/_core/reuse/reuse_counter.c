/* memsampd._core.ReuseCounter. */
#include "reuse_counter.h"
#include "counting.h"

#define LINES_AT_ONCE 2048

typedef struct {
    PyObject_HEAD
    counter counter;
    struct line_marks marks;
    bool busy;   /* lines are counted without the GIL */
} ReuseCounter;

static PyObject *
reuse_counter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    ReuseCounter *self = (ReuseCounter *)PyType_GenericAlloc(type, 0);
    static char *names[] = {"seed", NULL};
    unsigned long long seed = 0;
    if (!self)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|K:ReuseCounter", names, &seed)) {
        Py_DECREF(self);
        return NULL;
    }
    line_marks_begin(&self->marks);
    if (counter_init(&self->counter, seed) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
reuse_counter_dealloc(PyObject *object)
{
    ReuseCounter *self = (ReuseCounter *)object;
    counter_free(&self->counter);
    line_marks_free(&self->marks);
    memsampd_free(object);
}

static int
reuse_counter_check(const ReuseCounter *self, bool may_be_broken)
{
    return memsampd_check_usable("ReuseCounter", self->busy,
                                 self->counter.is_broken && !may_be_broken);
}

PyDoc_STRVAR(reuse_counter_begin_doc,
             "begin()\n--\n\n"
             "Forget what was counted, and begin another burst.");

static PyObject *
reuse_counter_begin(PyObject *object, PyObject *Py_UNUSED(unused))
{
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, true) < 0)
        return NULL;
    line_marks_begin(&self->marks);
    self->counter.is_broken = counter_begin(&self->counter) < 0;
    if (self->counter.is_broken)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_add_doc,
             "add(lines, /)\n--\n\n"
             "Count the next accesses of the present burst, a buffer of line numbers (uint64).");

static bool
count_lines(ReuseCounter *self, const line_buffer *lines)
{
    struct line_marks *marks = &self->marks;
    size_t rare;

    if (!line_marks_reserve(marks, LINES_AT_ONCE))
        return false;
    for (size_t i = 0; i < lines->count; i++) {
        line_marks_put(marks, line_at(lines->bytes, i));
        if (marks->count == LINES_AT_ONCE && !reuse_counter_count(&self->counter, marks, &rare))
            return false;
    }
    return reuse_counter_count(&self->counter, marks, &rare);
}

static PyObject *
reuse_counter_add(PyObject *object, PyObject *source)
{
    ReuseCounter *self = (ReuseCounter *)object;
    line_buffer lines;
    if (reuse_counter_check(self, false) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    if (self->counter.now - self->counter.start + lines.count > UINT32_MAX) {
        PyBuffer_Release(&lines.view);
        PyErr_SetString(PyExc_OverflowError, "a burst has less than 2**32 accesses");
        return NULL;
    }
    bool counted;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    counted = count_lines(self, &lines);
    Py_END_ALLOW_THREADS
    self->busy = false;
    PyBuffer_Release(&lines.view);
    if (!counted)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reuse_counter_histograms_doc,
             "histograms()\n--\n\n"
             "Return (reuses, censored) of the burst so far as bytes of int64, REUSE_BINS each.\n\n"
             "Exact below 2**REUSE_EXACT_BITS and in sum; beyond, where lines are many, as a sample\n"
             "of them tells.");

static PyObject *
reuse_counter_histograms(PyObject *object, PyObject *Py_UNUSED(unused))
{
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    uint64_t *histograms = calloc(2 * BINS, sizeof *histograms);
    if (!histograms)
        return PyErr_NoMemory();
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    counter_sum_up(&self->counter, histograms, histograms + BINS);
    Py_END_ALLOW_THREADS
    self->busy = false;
    const Py_ssize_t bytes = (Py_ssize_t)(BINS * sizeof *histograms);
    PyObject *result =
        Py_BuildValue("y#y#", (char *)histograms, bytes, (char *)(histograms + BINS), bytes);
    free(histograms);
    return result;
}

PyDoc_STRVAR(reuse_counter_stack_samples_doc,
             "stack_samples()\n--\n\n"
             "Return reuse and stack distances of a sample of the reuses so far, as bytes of uint32,\n"
             "two each, in the order of time. A line's accesses in a row are one of them.");

static PyObject *
reuse_counter_stack_samples(PyObject *object, PyObject *Py_UNUSED(unused))
{
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    const stack_samples *stacks = &self->counter.stacks;
    return PyBytes_FromStringAndSize((const char *)stacks->sample,
                                     (Py_ssize_t)(stacks->count * sizeof *stacks->sample));
}

PyDoc_STRVAR(reuse_counter_scattered_doc,
             "scattered()\n--\n\n"
             "Return how many accesses to lines that were not accessed within 2**REUSE_EXACT_BITS\n"
             "before were not near others of these.");

static PyObject *
reuse_counter_scattered(PyObject *object, PyObject *Py_UNUSED(unused))
{
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(self->counter.scattered.count);
}

static PyMethodDef reuse_counter_methods[] = {
    {"begin", reuse_counter_begin, METH_NOARGS, reuse_counter_begin_doc},
    {"add", reuse_counter_add, METH_O, reuse_counter_add_doc},
    {"histograms", reuse_counter_histograms, METH_NOARGS, reuse_counter_histograms_doc},
    {"scattered", reuse_counter_scattered, METH_NOARGS, reuse_counter_scattered_doc},
    {"stack_samples", reuse_counter_stack_samples, METH_NOARGS, reuse_counter_stack_samples_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reuse_counter_slots[] = {
    {Py_tp_doc, (void *)"Counts the reuse distances of one burst after the other."},
    {Py_tp_new, (void *)reuse_counter_new},
    {Py_tp_dealloc, (void *)reuse_counter_dealloc},
    {Py_tp_methods, reuse_counter_methods},
    {0, NULL},
};

static PyObject *reuse_counter_type; /* kept for good */

struct reuse_counter *
reuse_counter_borrow(PyObject *object)
{
    if (!PyObject_TypeCheck(object, (PyTypeObject *)reuse_counter_type)) {
        PyErr_SetString(PyExc_TypeError, "not a ReuseCounter");
        return NULL;
    }
    ReuseCounter *self = (ReuseCounter *)object;
    if (reuse_counter_check(self, false) < 0)
        return NULL;
    self->busy = true;
    return &self->counter;
}

void
reuse_counter_give_back(PyObject *object)
{
    ((ReuseCounter *)object)->busy = false;
}

static PyType_Spec reuse_counter_spec = {
    .name = "memsampd._core.ReuseCounter",
    .basicsize = sizeof(ReuseCounter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reuse_counter_slots,
};

int
memsampd_add_reuse_counter(PyObject *module)
{
    static const struct constant constants[] = {
        {"REUSE_BINS", BINS},
        {"LINE_BITS", LINE_BITS},
        {"REUSE_EXACT_BITS", EXACT_BITS},
        {"REUSE_OCTAVE_BITS", OCTAVE_BITS},
        {"REUSE_LIMIT_BITS", LIMIT_BITS},
        {NULL, 0},
    };

    reuse_counter_type = PyType_FromSpec(&reuse_counter_spec);
    if (!reuse_counter_type || PyModule_AddType(module, (PyTypeObject *)reuse_counter_type) < 0)
        return -1;
    return memsampd_add_constants(module, constants);
}
