#include "core.h"

int
memsampd_add_shadow(PyObject *module)
{
    (void)module;
    return 0;
}
