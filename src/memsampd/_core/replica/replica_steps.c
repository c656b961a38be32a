/* memsampd._core.Replica, step by step in the caller's thread: for tests of translated code. */
#include "replica.h"

#include <math.h>
#include <string.h>

PyObject *
replica_hold(Replica *self, PyObject *args)
{
    int tid;
    enum held_status status;

    if (!PyArg_ParseTuple(args, "i:hold", &tid))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = held_stop(&self->held, &self->runner.remote, tid, INFINITY,
                       &self->runner.is_cancelled);
    Py_END_ALLOW_THREADS
    return PyUnicode_FromString(held_status_name(status));
}

PyObject *
replica_release(Replica *self, PyObject *Py_UNUSED(ignored))
{
    held_release(&self->held);
    process_park(&self->runner.process);
    process_drop_all(&self->runner.process);
    return PyFloat_FromDouble(self->held.held_seconds);
}

/* Put the replica, empty, where the held thread is; `stepping`: itself, not a translation. */
PyObject *
replica_place(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    unsigned long long accesses;
    int stepping;
    bool good;

    if (!PyArg_ParseTuple(args, "Kp:place", &accesses, &stepping))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    process_park(&r->process);
    good = process_seize(&r->process);
    process_drop_all(&r->process);
    pages_begin(&r->pages);
    remote_forget(&r->remote);
    good = good && blocks_check_code(&r->blocks, false, INFINITY) == CODE_CHECKED;
    if (good && blocks_want_guiding(&r->blocks))
        good = blocks_guide(&r->blocks) == 0;
    good = good && (stepping ? stepper_enter(r, &self->held)
                             : runner_enter(r, &self->held, accesses));
    Py_END_ALLOW_THREADS
    self->stepper.rows.count = 0;
    if (!good)
        return replica_raise_errno("the replica");
    Py_RETURN_NONE;
}

PyObject *
replica_go(Replica *self, PyObject *args)
{
    struct runner *r = &self->runner;
    double seconds;
    enum run_end end;

    if (!PyArg_ParseTuple(args, "d:go", &seconds))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (r->end == RUN_COLD) /* the form that was wanted has come */
        r->end = RUN_GOES_ON;
    runner_run(r, NULL, now_seconds() + seconds);
    end = r->end;
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(sKl)", run_end_name(end), (unsigned long long)r->ip, r->number);
}

PyObject *
replica_step(Replica *self, PyObject *args)
{
    Py_ssize_t max_rows;
    double seconds;
    uint64_t ip;
    long number;
    const char *end;

    if (!PyArg_ParseTuple(args, "nd:step", &max_rows, &seconds))
        return NULL;
    if (!self->may_execute) {
        PyErr_SetString(PyExc_ValueError, "this replica cannot execute its memory");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    end = stepper_run(&self->stepper, &self->runner, (size_t)max_rows, now_seconds() + seconds, &ip,
                      &number);
    Py_END_ALLOW_THREADS
    if (strcmp(end, "memory") == 0)
        return PyErr_NoMemory();
    return Py_BuildValue("(sKl)", end, (unsigned long long)ip, number);
}

PyObject *
replica_add_recipes(Replica *self, PyObject *args)
{
    const char *bytes;
    Py_ssize_t size;
    struct recipe r;

    if (!PyArg_ParseTuple(args, "y#:add_recipes", &bytes, &size))
        return NULL;
    if (size % (Py_ssize_t)sizeof r != 0) {
        PyErr_SetString(PyExc_ValueError, "not an array of recipes");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < size; at += (Py_ssize_t)sizeof r) {
        memcpy(&r, bytes + at, sizeof r);
        if (r.references > RECIPE_REFERENCES || r.length > RECIPE_CODE_BYTES || r.ip == 0) {
            PyErr_SetString(PyExc_ValueError, "malformed recipe");
            return NULL;
        }
        if (recipe_table_put(&self->stepper.recipes, &r) < 0)
            return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

PyObject *
replica_take_steps(Replica *self, PyObject *Py_UNUSED(ignored))
{
    struct stepper *s = &self->stepper;

    PyObject *taken = rows_take(&s->rows, s->instructions, s->prefetches);
    s->instructions = s->prefetches = 0;
    return taken;
}

PyObject *
replica_registers(Replica *self, PyObject *Py_UNUSED(ignored))
{
    return PyBytes_FromStringAndSize((const char *)&self->runner.regs, sizeof self->runner.regs);
}

PyObject *
replica_guide(Replica *self, PyObject *args)
{
    unsigned executions;

    if (!PyArg_ParseTuple(args, "I:guide", &executions))
        return NULL;
    self->runner.blocks.hot_executions = executions;
    if (blocks_guide(&self->runner.blocks) < 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}
