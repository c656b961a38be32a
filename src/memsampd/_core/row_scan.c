/* Scans over the rows of a burst: which keys come late and seldom, and which pages are touched. */
#include "core.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HASH_BITS 18
#define SLOTS ((size_t)1 << HASH_BITS)
#define WANTED_MAXIMUM 64
#define PAGE_BITS 12

static inline size_t
slot_of(uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - HASH_BITS));
}

/* The last rows whose slot is met for the first time, and the last whose slot is met at most `limit`
 * times in all. Keys that collide share a slot: they hide each other, no more. */
static size_t
scan_keys(const uint64_t *keys, size_t n, unsigned shift, unsigned limit, size_t wanted,
          uint8_t *counts, size_t *rows)
{
    size_t fresh[WANTED_MAXIMUM], met = 0, found = 0;

    for (size_t i = 0; i < n; i++) {
        uint8_t *count = &counts[slot_of(keys[i] >> shift)];
        if (*count == 0)
            fresh[met++ % wanted] = i;
        *count += *count < UINT8_MAX;
    }
    for (size_t i = 0; i < met && i < wanted; i++)
        rows[found++] = fresh[i];
    for (size_t i = n, few = 0; i-- > 0 && few < wanted;)
        if (counts[slot_of(keys[i] >> shift)] <= limit)
            rows[found++] = i, few++;
    return found;
}

static PyObject *
late_rows(PyObject *module, PyObject *args)
{
    Py_buffer keys;
    unsigned shift, limit, wanted;
    size_t rows[2 * WANTED_MAXIMUM], found = 0;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*III:late_rows", &keys, &shift, &limit, &wanted))
        return NULL;
    uint8_t *counts = calloc(SLOTS, 1);
    if (counts == NULL || shift > 63 || limit >= UINT8_MAX || wanted < 1 ||
        wanted > WANTED_MAXIMUM || keys.len % 8 != 0) {
        free(counts);
        PyBuffer_Release(&keys);
        PyErr_SetString(PyExc_ValueError, "keys are 64-bit; limit < 255, 0 < wanted <= 64");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    found = scan_keys(keys.buf, (size_t)keys.len / 8, shift, limit, wanted, counts, rows);
    Py_END_ALLOW_THREADS
    free(counts);
    PyBuffer_Release(&keys);
    PyObject *list = PyList_New((Py_ssize_t)found);
    for (size_t i = 0; list != NULL && i < found; i++) {
        PyObject *row = PyLong_FromSize_t(rows[i]);
        if (row == NULL || PyList_SetItem(list, (Py_ssize_t)i, row) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* Pages in the order in which they were met; some twice, for the table forgets what collides. */
struct page_list {
    uint64_t *met; /* SLOTS, page + 1 */
    uint64_t *pages;
    size_t count, capacity;
};

static bool
add_page(struct page_list *list, uint64_t page)
{
    uint64_t *slot = &list->met[slot_of(page)];

    if (*slot == page + 1)
        return true;
    *slot = page + 1;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 1024 : 2 * list->capacity;
        uint64_t *pages = realloc(list->pages, capacity * sizeof *pages);
        if (pages == NULL)
            return false;
        list->pages = pages;
        list->capacity = capacity;
    }
    list->pages[list->count++] = page << PAGE_BITS;
    return true;
}

static bool
scan_pages(const uint64_t *ip, const uint64_t *address, const uint16_t *size_bytes,
           const uint8_t *is_write, size_t n, struct page_list lists[2])
{
    for (size_t i = 0; i < n; i++) {
        uint64_t last = address[i] + (size_bytes[i] > 0 ? size_bytes[i] : 1u) - 1;
        struct page_list *list = &lists[is_write[i] != 0];
        if (!add_page(&lists[0], ip[i] >> PAGE_BITS))
            return false;
        for (uint64_t page = address[i] >> PAGE_BITS; page <= last >> PAGE_BITS; page++)
            if (!add_page(list, page))
                return false;
    }
    return true;
}

static PyObject *
touched_pages(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    struct page_list lists[2] = {{0}};
    bool done = false;
    PyObject *result = NULL;
    (void)module;

    if (!PyArg_ParseTuple(args, "y*y*y*y*:touched_pages", &b[0], &b[1], &b[2], &b[3]))
        return NULL;
    const Py_ssize_t n = b[3].len;
    if (b[0].len == 8 * n && b[1].len == 8 * n && b[2].len == 2 * n) {
        lists[0].met = calloc(SLOTS, sizeof(uint64_t));
        lists[1].met = calloc(SLOTS, sizeof(uint64_t));
        if (lists[0].met != NULL && lists[1].met != NULL) {
            Py_BEGIN_ALLOW_THREADS
            done = scan_pages(b[0].buf, b[1].buf, b[2].buf, b[3].buf, (size_t)n, lists);
            Py_END_ALLOW_THREADS
        }
        if (done)
            result = Py_BuildValue("(y#y#)", lists[0].count ? (const char *)lists[0].pages : "",
                                   (Py_ssize_t)(8 * lists[0].count),
                                   lists[1].count ? (const char *)lists[1].pages : "",
                                   (Py_ssize_t)(8 * lists[1].count));
        else
            PyErr_NoMemory();
        for (int i = 0; i < 2; i++) {
            free(lists[i].met);
            free(lists[i].pages);
        }
    } else {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    }
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&b[i]);
    return result;
}

static PyMethodDef scan_functions[] = {
    {"late_rows", late_rows, METH_VARARGS, "The last rows whose key is new, or rare."},
    {"touched_pages", touched_pages, METH_VARARGS, "Pages read or executed, and pages written."},
    {NULL, NULL, 0, NULL},
};

int
memsampd_add_row_scan(PyObject *module)
{
    return PyModule_AddFunctions(module, scan_functions);
}
