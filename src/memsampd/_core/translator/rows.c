#include "rows.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_FIRST 4096

int
rows_reserve(struct rows *rows, size_t more)
{
    size_t capacity = rows->capacity == 0 ? ROWS_FIRST : rows->capacity;
    if (rows->count + more <= rows->capacity)
        return 0;
    while (capacity < rows->count + more)
        capacity *= 2;
    void *ip = realloc(rows->ip, capacity * sizeof *rows->ip);
    rows->ip = ip != NULL ? ip : rows->ip;
    void *address = realloc(rows->address, capacity * sizeof *rows->address);
    rows->address = address != NULL ? address : rows->address;
    void *size_bytes = realloc(rows->size_bytes, capacity * sizeof *rows->size_bytes);
    rows->size_bytes = size_bytes != NULL ? size_bytes : rows->size_bytes;
    void *is_write = realloc(rows->is_write, capacity);
    rows->is_write = is_write != NULL ? is_write : rows->is_write;
    if (ip == NULL || address == NULL || size_bytes == NULL || is_write == NULL)
        return -1;
    rows->capacity = capacity;
    return 0;
}

int
rows_add(void *context, uint64_t ip, uint64_t address, unsigned size_bytes, int is_write)
{
    struct rows *rows = context;

    if (rows->count == rows->capacity && rows_reserve(rows, 1) < 0)
        return -1;
    rows->ip[rows->count] = ip;
    rows->address[rows->count] = address;
    rows->size_bytes[rows->count] = (uint16_t)size_bytes;
    rows->is_write[rows->count++] = (uint8_t)is_write;
    return 0;
}

void
rows_clear(struct rows *rows)
{
    free(rows->ip);
    free(rows->address);
    free(rows->size_bytes);
    free(rows->is_write);
    memset(rows, 0, sizeof *rows);
}

PyObject *
rows_take(struct rows *rows, uint64_t instructions, uint64_t prefetches)
{
    Py_ssize_t n = (Py_ssize_t)rows->count;
    PyObject *taken = Py_BuildValue(
        "(y#y#y#y#KK)", n ? (const char *)rows->ip : "", 8 * n,
        n ? (const char *)rows->address : "", 8 * n, n ? (const char *)rows->size_bytes : "", 2 * n,
        n ? (const char *)rows->is_write : "", n, (unsigned long long)instructions,
        (unsigned long long)prefetches);
    rows->count = 0;
    return taken;
}
