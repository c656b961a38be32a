/* The Python type memsampd._core.Replica: its object, and the methods that replica.c does not hold. */
#ifndef MEMSAMPD_REPLICA_H
#define MEMSAMPD_REPLICA_H

#include "core.h"
#include "burst.h"
#include "code_change.h"
#include "stepper.h"

typedef struct {
    PyObject_HEAD
    struct runner runner;
    struct stepper stepper;
    struct core_model *core;
    struct burst_parts parts; /* of the last burst, as far as somebody asked */
    struct held held; /* by the calls that are made one by one */
    bool may_execute;
    bool has_cut_record, took_cut_record; /* still to be expanded; of what was taken */
    const uint64_t *at; /* of what was recorded, expanded up to here */
    const uint64_t *from, *until; /* the part of it that is taken */
    bool is_expanded;
    PyObject *counter; /* a ReuseCounter that takes the lines, or NULL */
    struct burst_result last;
} Replica;

/* Raise OSError by errno, with what could not be done. Returns NULL. */
PyObject *replica_raise_errno(const char *what);

/* replica_burst.c */
PyObject *replica_burst(Replica *self, PyObject *args, PyObject *keywords);
PyObject *replica_wanted_form(Replica *self, PyObject *ignored);
PyObject *replica_add_forms(Replica *self, PyObject *args);

/* replica_take.c */
PyObject *replica_begin_take(Replica *self, PyObject *args);
PyObject *replica_take(Replica *self, PyObject *ignored);
PyObject *replica_rows_again(Replica *self, PyObject *args);
PyObject *replica_repeats(Replica *self, PyObject *ignored);
PyObject *replica_visits(Replica *self, PyObject *ignored);
PyObject *replica_parts(Replica *self, PyObject *args);
PyObject *replica_core_times(Replica *self, PyObject *ignored);

/* replica_steps.c */
PyObject *replica_hold(Replica *self, PyObject *args);
PyObject *replica_release(Replica *self, PyObject *ignored);
PyObject *replica_place(Replica *self, PyObject *args);
PyObject *replica_go(Replica *self, PyObject *args);
PyObject *replica_step(Replica *self, PyObject *args);
PyObject *replica_add_recipes(Replica *self, PyObject *args);
PyObject *replica_take_steps(Replica *self, PyObject *ignored);
PyObject *replica_registers(Replica *self, PyObject *ignored);
PyObject *replica_guide(Replica *self, PyObject *args);

#endif
