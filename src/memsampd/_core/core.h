/* Shared by the parts of memsampd._core: the limited API (3.11) and one hook a part. */
#ifndef MEMSAMPD_CORE_H
#define MEMSAMPD_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Each part adds its functions and types to the module; -1 with an exception set on failure. */
int memsampd_add_breakpoints(PyObject *module);
int memsampd_add_code_walk(PyObject *module);
int memsampd_add_last_instruction(PyObject *module);
int memsampd_add_line_stream(PyObject *module);
int memsampd_add_lru(PyObject *module);
int memsampd_add_lru_returns(PyObject *module);
int memsampd_add_machine(PyObject *module);
int memsampd_add_noise(PyObject *module);
int memsampd_add_odometer(PyObject *module);
int memsampd_add_perf(PyObject *module);
int memsampd_add_phases(PyObject *module);
int memsampd_add_probe(PyObject *module);
int memsampd_add_product_limit(PyObject *module);
int memsampd_add_random_caches(PyObject *module);
int memsampd_add_random_ratios(PyObject *module);
int memsampd_add_replica(PyObject *module);
int memsampd_add_reuse_counter(PyObject *module);
int memsampd_add_shares(PyObject *module);
int memsampd_add_spacing(PyObject *module);

/* Add a type under the last part of its name, or constants, up to one without a name; -1 with an
 * exception set on failure. */
int memsampd_add_type(PyObject *module, PyType_Spec *spec);

struct constant {
    const char *name;
    long value;
};
int memsampd_add_constants(PyObject *module, const struct constant *constants);

/* The end of an object of one of these types, when all that it holds has been given back. */
void memsampd_free(PyObject *object);

#endif
