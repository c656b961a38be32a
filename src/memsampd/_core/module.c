/* memsampd._core: the native part. Each source file beside this one adds one concern. */
#include "core.h"

int
memsampd_add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (!type)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

int
memsampd_add_constants(PyObject *module, const struct constant *constants)
{
    for (; constants->name; constants++)
        if (PyModule_AddIntConstant(module, constants->name, constants->value) < 0)
            return -1;
    return 0;
}

void
memsampd_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static int
core_exec(PyObject *module)
{
    static PyMethodDef *const functions[] = {
        memsampd_code_walk,
        memsampd_last_instruction,
        memsampd_lru_returns,
        memsampd_machine,
        memsampd_noise,
        memsampd_odometer,
        memsampd_own_heap,
        memsampd_phases,
        memsampd_probe,
        memsampd_product_limit,
        memsampd_random_ratios,
        memsampd_shares,
        memsampd_data_address,
        memsampd_spacing,
    };
    static int (*const add[])(PyObject *module) = {
        memsampd_add_breakpoints,
        memsampd_add_line_stream,
        memsampd_add_lru,
        memsampd_add_perf,
        memsampd_add_random_caches,
        memsampd_add_replica,
        memsampd_add_reuse_counter,
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (PyModule_AddFunctions(module, functions[i]) < 0)
            return -1;
    for (size_t i = 0; i < sizeof add / sizeof *add; i++)
        if (add[i](module) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "memsampd._core",
    .m_doc = "Native core of memsampd: perf rings, the tracer, exact cache references.",
    .m_size = 0,
    .m_slots = core_slots,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
