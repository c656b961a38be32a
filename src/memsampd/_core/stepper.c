#include "core.h"

int
memsampd_add_stepper(PyObject *module)
{
    (void)module;
    return 0;
}
