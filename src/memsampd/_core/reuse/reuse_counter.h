/* What counts lines without the way through Python: memsampd._core.ReuseCounter. */
#ifndef MEMSAMPD_REUSE_COUNTER_H
#define MEMSAMPD_REUSE_COUNTER_H

#include "core.h"
#include "line_marks.h"

struct reuse_counter;

/* The one of a ReuseCounter, for use by one run: it is busy until it is given back. NULL with an
 * exception set if it is none, or busy. The caller keeps the object. */
struct reuse_counter *reuse_counter_borrow(PyObject *object);
void reuse_counter_give_back(PyObject *object);

/* Count the next lines of its burst, and take their marks; needs no GIL. Where the first of these were
 * there are then lines, `*rare` of them: all that the burst had not accessed before, and some others.
 * False without memory, and from then on. */
bool reuse_counter_count(struct reuse_counter *counter, struct line_marks *marks, size_t *rare);

#endif
