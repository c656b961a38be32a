/* memsampd._core.LruStack. */
#include "lru.h"

typedef struct {
    PyObject_HEAD
    lru lru;
    bool busy;   /* a feed runs without the GIL */
    bool broken; /* memory ran out half-way: what it holds is no longer exact */
} LruStack;

static PyObject *
lru_stack_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sizes_lines", "reuse_bounds", NULL};
    PyObject *sizes, *reuses = Py_None;
    uint64_t size[MAX_BOUNDS], bound[MAX_BOUNDS];
    unsigned n_sizes, n_bounds = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &sizes, &reuses) ||
        memsampd_get_sizes(sizes, size, MAX_BOUNDS, &n_sizes) < 0 ||
        (reuses != Py_None && memsampd_get_ascending(reuses, bound, MAX_BOUNDS, UINT64_MAX,
                                                     "reuse_bounds", &n_bounds) < 0))
        return NULL;
    LruStack *self = (LruStack *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    histogram_init(&self->lru.stack_distances, size, n_sizes);
    histogram_init(&self->lru.reuse_distances, bound, n_bounds);
    self->lru.reuses = n_bounds > 0;
    self->lru.ranks = size[0] < FRONT;
    if (lru_init(&self->lru)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
lru_stack_dealloc(PyObject *object)
{
    lru_free(&((LruStack *)object)->lru);
    memsampd_free(object);
}

static int
lru_stack_check(LruStack *self)
{
    return memsampd_check_usable("LruStack", self->busy, self->broken);
}

/* A writable int64 buffer for exactly so many distances, or none. */
static int
get_distances(PyObject *object, Py_buffer *view, size_t count)
{
    if (object == Py_None)
        return 0;
    if (PyObject_GetBuffer(object, view, PyBUF_WRITABLE) < 0)
        return -1;
    if ((size_t)view->len == 8 * count && (uintptr_t)view->buf % 8 == 0)
        return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "distances must be an aligned int64 buffer, one a line");
    return -1;
}

/* Feed without the GIL; releases the buffers. */
static PyObject *
lru_stack_feed_buffer(LruStack *self, line_buffer *lines, bool runs, Py_buffer *distances)
{
    int failed;
    self->busy = true;
    Py_BEGIN_ALLOW_THREADS
    failed = lru_feed(&self->lru, lines->bytes, lines->count, runs, distances->buf);
    Py_END_ALLOW_THREADS
    self->busy = false;
    self->broken = failed;
    PyBuffer_Release(&lines->view);
    if (distances->obj)
        PyBuffer_Release(distances);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(lru_stack_feed_doc,
             "feed(lines, distances=None)\n--\n\n"
             "Touch these lines (a buffer of uint64) in order. If distances, a writable int64\n"
             "buffer of the same length, is given, it receives each stack distance, -1 if cold.");

static PyObject *
lru_stack_feed(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lines", "distances", NULL};
    LruStack *self = (LruStack *)object;
    PyObject *source, *target = Py_None;
    Py_buffer distances = {0};
    line_buffer lines;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &source, &target) ||
        lru_stack_check(self) < 0 || memsampd_get_lines(source, &lines) < 0)
        return NULL;
    if (get_distances(target, &distances, lines.count) < 0) {
        PyBuffer_Release(&lines.view);
        return NULL;
    }
    return lru_stack_feed_buffer(self, &lines, false, &distances);
}

PyDoc_STRVAR(lru_stack_feed_runs_doc,
             "feed_runs(runs, /)\n--\n\n"
             "Touch lines several times each: a buffer of uint64, the line in the low\n"
             "RUN_LINE_BITS, the number of accesses, at least 1, above.");

static PyObject *
lru_stack_feed_runs(PyObject *object, PyObject *source)
{
    LruStack *self = (LruStack *)object;
    Py_buffer none = {0};
    line_buffer runs;
    if (lru_stack_check(self) < 0 || memsampd_get_lines(source, &runs) < 0)
        return NULL;
    return lru_stack_feed_buffer(self, &runs, true, &none);
}

PyDoc_STRVAR(lru_stack_take_misses_doc,
             "take_misses()\n--\n\n"
             "Return (accesses, misses) since the last take; misses are bytes of uint64, one a\n"
             "size. The stack itself goes on.");

static PyObject *
lru_stack_take_misses(PyObject *object, PyObject *Py_UNUSED(unused))
{
    LruStack *self = (LruStack *)object;
    uint64_t misses[MAX_BOUNDS];
    if (lru_stack_check(self) < 0)
        return NULL;
    uint64_t accesses = lru_take_misses(&self->lru, misses);
    return memsampd_misses(accesses, misses, self->lru.stack_distances.bounds);
}

PyDoc_STRVAR(lru_stack_take_reuses_doc,
             "take_reuses()\n--\n\n"
             "Return the accesses since the last take by reuse distance, first touches left out:\n"
             "bytes of uint64, one more than reuse_bounds, of distances below the first, from\n"
             "each to the next, and from the last on.");

static PyObject *
lru_stack_take_reuses(PyObject *object, PyObject *Py_UNUSED(unused))
{
    LruStack *self = (LruStack *)object;
    histogram *reuses = &self->lru.reuse_distances;
    if (lru_stack_check(self) < 0)
        return NULL;
    if (!self->lru.reuses) {
        PyErr_SetString(PyExc_RuntimeError, "LruStack was made without reuse_bounds");
        return NULL;
    }
    PyObject *counts =
        PyBytes_FromStringAndSize((const char *)reuses->counts,
                                  (Py_ssize_t)((reuses->bounds + 1) * sizeof *reuses->counts));
    histogram_clear(reuses);
    return counts;
}

static PyObject *
lru_stack_get_distinct(PyObject *object, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(((LruStack *)object)->lru.lines.used);
}

static PyMethodDef lru_stack_methods[] = {
    {"feed", (PyCFunction)(void (*)(void))lru_stack_feed, METH_VARARGS | METH_KEYWORDS,
     lru_stack_feed_doc},
    {"feed_runs", lru_stack_feed_runs, METH_O, lru_stack_feed_runs_doc},
    {"take_misses", lru_stack_take_misses, METH_NOARGS, lru_stack_take_misses_doc},
    {"take_reuses", lru_stack_take_reuses, METH_NOARGS, lru_stack_take_reuses_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lru_stack_getset[] = {
    {"distinct_lines", lru_stack_get_distinct, NULL, "Distinct lines fed so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(lru_stack_doc,
             "LruStack(sizes_lines, reuse_bounds=None)\n--\n\n"
             "Fully associative LRU caches of all these sizes (ascending, in lines) at once.\n"
             "reuse_bounds: ascending, to have reuse distances counted between them.");

static PyType_Slot lru_stack_slots[] = {
    {Py_tp_doc, (void *)lru_stack_doc},
    {Py_tp_new, (void *)lru_stack_new},
    {Py_tp_dealloc, (void *)lru_stack_dealloc},
    {Py_tp_methods, lru_stack_methods},
    {Py_tp_getset, lru_stack_getset},
    {0, NULL},
};

static PyType_Spec lru_stack_spec = {
    .name = "memsampd._core.LruStack",
    .basicsize = sizeof(LruStack),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lru_stack_slots,
};

int
memsampd_add_lru(PyObject *module)
{
    static const struct constant constants[] = {{"RUN_LINE_BITS", RUN_LINE_BITS}, {NULL, 0}};

    return memsampd_add_constants(module, constants) < 0 ? -1
                                                         : memsampd_add_type(module, &lru_stack_spec);
}
