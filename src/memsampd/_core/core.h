/* Shared by the parts of memsampd._core: the limited API (3.11) and one hook a part. */
#ifndef MEMSAMPD_CORE_H
#define MEMSAMPD_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Functions of the parts that have nothing else. */
extern PyMethodDef memsampd_code_walk[];
extern PyMethodDef memsampd_last_instruction[];
extern PyMethodDef memsampd_lru_returns[];
extern PyMethodDef memsampd_machine[];
extern PyMethodDef memsampd_noise[];
extern PyMethodDef memsampd_odometer[];
extern PyMethodDef memsampd_own_heap[];
extern PyMethodDef memsampd_phases[];
extern PyMethodDef memsampd_probe[];
extern PyMethodDef memsampd_product_limit[];
extern PyMethodDef memsampd_random_ratios[];
extern PyMethodDef memsampd_shares[];
extern PyMethodDef memsampd_data_address[];
extern PyMethodDef memsampd_spacing[];

/* The others add their functions, types and constants to the module; -1 with an exception set on failure. */
int memsampd_add_breakpoints(PyObject *module);
int memsampd_add_line_stream(PyObject *module);
int memsampd_add_lru(PyObject *module);
int memsampd_add_perf(PyObject *module);
int memsampd_add_random_caches(PyObject *module);
int memsampd_add_replica(PyObject *module);
int memsampd_add_reuse_counter(PyObject *module);

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
