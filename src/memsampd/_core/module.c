/* memsampd._core: the native part. Each source file beside this one adds one concern. */
#include "core.h"

static int
core_exec(PyObject *module)
{
    if (memsampd_add_lru(module) < 0 || memsampd_add_perf(module) < 0 ||
        memsampd_add_probe(module) < 0 || memsampd_add_breakpoints(module) < 0 ||
        memsampd_add_replica(module) < 0 || memsampd_add_machine(module) < 0 ||
        memsampd_add_phases(module) < 0 || memsampd_add_code_walk(module) < 0 ||
        memsampd_add_noise(module) < 0 || memsampd_add_lru_returns(module) < 0 ||
        memsampd_add_random_ratios(module) < 0 || memsampd_add_odometer(module) < 0 ||
        memsampd_add_shares(module) < 0 || memsampd_add_product_limit(module) < 0 ||
        memsampd_add_spacing(module) < 0)
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
