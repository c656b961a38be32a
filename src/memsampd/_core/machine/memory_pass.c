/* Ways through an area of memory that are timed: what `memsampd machine --measure` shows, what an access
 * to the last-level cache takes, and interrupts that find nothing of theirs in the caches. */
#include "core.h"
#include "moments.h"

#include <stdint.h>

enum { LINE_WORDS = 8 };

/* The barriers keep the compiler from making these memset or memcpy, which may store past the
 * caches: a program's own stores fetch each line before they change it. */
static uint64_t
read_area(const uint64_t *from, size_t words)
{
    uint64_t sums[LINE_WORDS] = {0};
    for (size_t at = 0; at + LINE_WORDS <= words; at += LINE_WORDS)
        for (size_t word = 0; word < LINE_WORDS; word++)
            sums[word] += from[at + word];
    uint64_t sum = 0;
    for (size_t word = 0; word < LINE_WORDS; word++)
        sum += sums[word];
    return sum;
}

static void
write_area(uint64_t *to, size_t words)
{
    for (size_t at = 0; at + LINE_WORDS <= words; at += LINE_WORDS) {
        for (size_t word = 0; word < LINE_WORDS; word++)
            to[at + word] = at;
        __asm__ volatile("" ::: "memory");
    }
}

static void
copy_area(uint64_t *to, const uint64_t *from, size_t words)
{
    for (size_t at = 0; at + LINE_WORDS <= words; at += LINE_WORDS) {
        for (size_t word = 0; word < LINE_WORDS; word++)
            to[at + word] = from[at + word];
        __asm__ volatile("" ::: "memory");
    }
}

PyDoc_STRVAR(memory_pass_doc,
             "memory_pass(operation, area)\n--\n\n"
             "Go through a writable area once, without the GIL: 'r' reads all of it, 'w' writes all "
             "of it, 'c' copies its first half into its second.");

static PyObject *
memory_pass(PyObject *Py_UNUSED(module), PyObject *args)
{
    int operation;
    Py_buffer area;
    if (!PyArg_ParseTuple(args, "Cw*", &operation, &area))
        return NULL;
    uint64_t *words = area.buf;
    size_t count = (size_t)area.len / sizeof(uint64_t), half = count / 2;
    uint64_t sum = 0;
    if ((uintptr_t)words % sizeof(uint64_t) || (operation != 'r' && operation != 'w' && operation != 'c')) {
        PyBuffer_Release(&area);
        PyErr_SetString(PyExc_ValueError, "operation 'r', 'w' or 'c' on an area of aligned words");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (operation == 'r')
        sum = read_area(words, count);
    else if (operation == 'w')
        write_area(words, count);
    else
        copy_area(words + half, words, half);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&area);
    return PyLong_FromUnsignedLongLong(sum); /* so that the reads are needed */
}

/* Loads at random, each from where the one before says. */
static uint64_t
chase(const uint64_t *words, size_t lines, size_t loads, uint64_t at)
{
    for (size_t i = 0; i < loads; i++) {
        at += words[(size_t)((unsigned __int128)at * lines >> 64) * LINE_WORDS];
        at = at * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    return at;
}

PyDoc_STRVAR(memory_chase_doc,
             "memory_chase(area, loads, seed)\n--\n\n"
             "CPU time of a load, in seconds, where each waits for the one before: at random lines of a "
             "writable area, others for another seed, without the GIL.");

static PyObject *
memory_chase(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer area;
    Py_ssize_t loads;
    unsigned long long at;
    if (!PyArg_ParseTuple(args, "w*nK", &area, &loads, &at))
        return NULL;
    const uint64_t *words = area.buf;
    const size_t lines = (size_t)area.len / sizeof(uint64_t) / LINE_WORDS;
    if ((uintptr_t)words % sizeof(uint64_t) || lines == 0 || loads < 1) {
        PyBuffer_Release(&area);
        PyErr_SetString(PyExc_ValueError, "a load or more, of an area of aligned lines");
        return NULL;
    }
    double seconds;
    Py_BEGIN_ALLOW_THREADS
    seconds = thread_cpu_seconds();
    at = chase(words, lines, (size_t)loads, at);
    __asm__ volatile("" : : "r"(at)); /* so that the loads are needed */
    seconds = thread_cpu_seconds() - seconds;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&area);
    return PyFloat_FromDouble(seconds / (double)loads);
}

enum { LINES_A_LOOK = 16, PAUSES_MOST = 1024 };

/* Reads an area again and again, and looks at the clock now and then. */
static size_t
read_until_paused(const uint64_t *words, size_t lines, double least, double most, size_t wanted,
                  double *pauses)
{
    const double end = now_seconds() + most;
    double last = now_seconds();
    uint64_t sum = 0;
    size_t found = 0;
    for (size_t line = 0; found < wanted && last < end;) {
        for (size_t i = 0; i < LINES_A_LOOK; i++, line = line + 1 < lines ? line + 1 : 0)
            sum += words[line * LINE_WORDS];
        __asm__ volatile("" : : "r"(sum)); /* so that the reads are needed, and made here */
        const double now = now_seconds();
        if (now - last >= least)
            pauses[found++] = now - last;
        last = now;
    }
    return found;
}

PyDoc_STRVAR(memory_pauses_doc,
             "memory_pauses(area, least_seconds, count, most_seconds)\n--\n\n"
             "Read a writable area again and again, without the GIL, until this was kept from going on so "
             "often for so long at least, or the time is over; for how long each time, in seconds.");

static PyObject *
memory_pauses(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer area;
    double least, most, pauses[PAUSES_MOST];
    Py_ssize_t wanted;
    if (!PyArg_ParseTuple(args, "w*dnd", &area, &least, &wanted, &most))
        return NULL;
    const uint64_t *words = area.buf;
    const size_t lines = (size_t)area.len / sizeof(uint64_t) / LINE_WORDS;
    if ((uintptr_t)words % sizeof(uint64_t) || lines == 0 || wanted < 1 || wanted > PAUSES_MOST) {
        PyBuffer_Release(&area);
        PyErr_SetString(PyExc_ValueError, "1 to 1024 pauses, in reading an area of aligned lines");
        return NULL;
    }
    size_t found;
    Py_BEGIN_ALLOW_THREADS
    found = read_until_paused(words, lines, least, most, (size_t)wanted, pauses);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&area);
    PyObject *told = PyList_New((Py_ssize_t)found);
    for (size_t i = 0; told && i < found; i++) {
        PyObject *pause = PyFloat_FromDouble(pauses[i]);
        if (!pause || PyList_SetItem(told, (Py_ssize_t)i, pause) < 0)
            Py_CLEAR(told);
    }
    return told;
}

PyMethodDef memsampd_machine[] = {
    {"memory_chase", memory_chase, METH_VARARGS, memory_chase_doc},
    {"memory_pauses", memory_pauses, METH_VARARGS, memory_pauses_doc},
    {"memory_pass", memory_pass, METH_VARARGS, memory_pass_doc},
    {NULL, NULL, 0, NULL},
};
