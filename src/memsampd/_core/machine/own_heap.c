/* memsampd's own heap in huge pages. A turn of a session touches some thousand pages of 4 KiB, a second
 * after the last one: their translations have gone from the TLB by then, and in a virtual machine each
 * costs a walk through the page tables of both kernels, or a fault of the host's. */
#include "core.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    HUGE_PAGE = 2 << 20,
    ARENAS_BYTES = 4 * HUGE_PAGE, /* mapped at once for Python's small objects; used page by page */
    HEAP_BYTES = 24 << 20,        /* what malloc() gets at once; a session has some 20 MB of that in use */
    MAPPED_FROM_BYTES = 128 << 10, /* what is as large is mapped on its own, and given back */
};

/* Part of Python's interface since 3.4, though not of its limited one: weak, for it may go. */
struct arena_allocator {
    void *context;
    void *(*allocate)(void *context, size_t size);
    void (*release)(void *context, void *arena, size_t size);
};
extern void PyObject_SetArenaAllocator(struct arena_allocator *allocator) __attribute__((weak));

static char *next_arena, *arenas_end; /* under the GIL, as all of Python's small objects */

static char *
aligned(char *address)
{
    return (char *)(((uintptr_t)address + HUGE_PAGE - 1) & ~((uintptr_t)HUGE_PAGE - 1));
}

static char *
map_bytes(size_t size)
{
    char *area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return area == MAP_FAILED ? NULL : area;
}

static int
map_arenas(void)
{
    char *area = map_bytes(ARENAS_BYTES + HUGE_PAGE);
    if (!area)
        return -1;
    char *start = aligned(area), *end = start + ARENAS_BYTES;
    if (start > area)
        munmap(area, (size_t)(start - area));
    if (end < area + ARENAS_BYTES + HUGE_PAGE)
        munmap(end, (size_t)(area + ARENAS_BYTES + HUGE_PAGE - end));
    madvise(start, ARENAS_BYTES, MADV_HUGEPAGE);
    next_arena = start;
    arenas_end = end;
    return 0;
}

static void *
allocate_arena(void *Py_UNUSED(context), size_t size)
{
    if (size > ARENAS_BYTES || ((size_t)(arenas_end - next_arena) < size && map_arenas() < 0))
        return map_bytes(size);
    char *arena = next_arena;
    next_arena += size;
    return arena;
}

/* Arenas from before were mapped, too. */
static void
release_arena(void *Py_UNUSED(context), void *arena, size_t size)
{
    munmap(arena, size);
}

/* One heap for all threads, got at once, so that one piece of advice is for all of it; and threads that
 * come and go leave no pool each. Most of what they allocate is under Python's lock anyway. */
static int
advise_heap(void)
{
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, HUGE_PAGE);
    mallopt(M_TRIM_THRESHOLD, 2 * HEAP_BYTES); /* so that what is got here stays */
    mallopt(M_TOP_PAD, HEAP_BYTES);
    char *before = sbrk(0);
    void *volatile grown = malloc(HUGE_PAGE / 2);
    free(grown);
    mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
    mallopt(M_TOP_PAD, MAPPED_FROM_BYTES);
    char *after = sbrk(0), *start = aligned(before), *end = aligned(after) - HUGE_PAGE;
    return start < end ? madvise(start, (size_t)(end - start), MADV_HUGEPAGE) : -1;
#else
    return -1;
#endif
}

PyDoc_STRVAR(use_huge_pages_doc,
             "use_huge_pages()\n--\n\n"
             "Have what this process allocates from now on lie in one heap of huge pages.\n\n"
             "To be called before there are other threads; called again it does nothing.\n\n"
             "Returns:\n    Whether the kernel gives any.");

static PyObject *
use_huge_pages(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    static int given; /* 1: yes, -1: no */
    if (!given) {
        given = advise_heap() < 0 ? -1 : 1;
        if (given > 0 && PyObject_SetArenaAllocator)
            PyObject_SetArenaAllocator(&(struct arena_allocator){NULL, allocate_arena, release_arena});
    }
    return PyBool_FromLong(given > 0);
}

PyMethodDef memsampd_own_heap[] = {
    {"use_huge_pages", use_huge_pages, METH_NOARGS, use_huge_pages_doc},
    {NULL, NULL, 0, NULL},
};
