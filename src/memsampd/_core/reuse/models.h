/* What the types of the native half of memsampd.models share. */
#ifndef MEMSAMPD_MODELS_H
#define MEMSAMPD_MODELS_H

#include "core.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The body of a hot loop is an ALWAYS_INLINE function; lru.c compiles it for several kinds of CPU. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A read-only buffer of line numbers: native uint64, at any alignment (bytes objects included). */
typedef struct {
    Py_buffer view;
    const unsigned char *bytes;
    size_t count;
} line_buffer;

/* 0, or -1 with an exception set; release with PyBuffer_Release(&lines->view). */
int memsampd_get_lines(PyObject *object, line_buffer *lines);

ALWAYS_INLINE uint64_t
line_at(const unsigned char *bytes, size_t i)
{
    uint64_t line;
    memcpy(&line, bytes + 8 * i, sizeof line);
    return line;
}

/* A run is a word: a line touched once or several times in a row. Line numbers of byte addresses
 * below 2^48 fit. */
#define RUN_LINE_BITS 42

ALWAYS_INLINE uint64_t
run_line(uint64_t run)
{
    return run & ((UINT64_C(1) << RUN_LINE_BITS) - 1);
}

ALWAYS_INLINE uint64_t
run_accesses(uint64_t run)
{
    return run >> RUN_LINE_BITS;
}

/* Ascending integers from a Python sequence, each at least 1 and below the limit, no more than
 * fit; what: names them in the error. */
int memsampd_get_ascending(PyObject *sequence, uint64_t *values, unsigned most, uint64_t limit,
                           const char *what, unsigned *count);

/* Cache sizes in lines: at most so many, each at least 1. */
int memsampd_get_sizes(PyObject *sequence, uint64_t *sizes_lines, unsigned most, unsigned *count);

/* (accesses, misses) with misses as bytes of uint64, one a size. */
PyObject *memsampd_misses(uint64_t accesses, const uint64_t *misses, unsigned count);

/* -1 with an exception set while a thread uses an object without the GIL, and from when memory ran out
 * half-way: what it holds is then no longer exact. */
int memsampd_check_usable(const char *name, bool is_busy, bool is_broken);

#endif
