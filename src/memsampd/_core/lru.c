#include "core.h"

int
memsampd_add_lru(PyObject *module)
{
    (void)module;
    return 0;
}
