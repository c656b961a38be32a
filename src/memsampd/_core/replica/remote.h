/* The target's memory, read without a change to it.
 *
 * A read can change a process: it brings in pages that were never touched, swapped out or not yet read
 * from a file. So only what the kernel's page map shows as present is read; private anonymous memory
 * that is not is zero, unless the target supplies pages itself; all else is unreadable.
 */
#ifndef MEMSAMPD_REMOTE_H
#define MEMSAMPD_REMOTE_H

#include "page.h"
#include "tables.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define REMOTE_BATCH 512

enum area_kind {
    AREA_PLAIN,
    AREA_CLOCK,   /* [vvar] and its like: the kernel's clock data, the same in all processes */
    AREA_SPECIAL, /* [vsyscall], [uprobes]: not to be read */
};

struct remote_area {
    uint64_t start, end;
    bool is_readable, is_writable, is_executable, is_shared, is_anonymous;
    uint8_t kind;
    uint64_t clock_offset; /* of AREA_CLOCK: in our own */
};

/* All areas, ascending. */
struct area_list {
    struct remote_area *area;
    size_t count, capacity;
    double seconds; /* that reading it took */
};

#define REMOTE_AREAS 64

struct remote {
    pid_t pid;
    int maps, pagemap, memory;
    int pipe[2];
    bool can_query;        /* the kernel tells of one area (Linux 6.11) */
    bool supplies_pages;   /* it has a userfaultfd: what is not present need not be zero */
    bool shares_clock;     /* it is in our time namespace */
    bool is_running;       /* its areas may go at any moment */
    struct remote_area area[REMOTE_AREAS]; /* known of this moment */
    size_t areas;
    struct area_list list, spare; /* without queries: as they were when they were read last; and its memory */
    bool is_listed;        /* as far as there was time for that */
    double list_seconds;   /* that reading the list may take */
};

int remote_open(struct remote *r, pid_t pid, bool can_query); /* -1 with errno set */
void remote_close(struct remote *r);

/* Whether it still runs the program that was opened. Not once it has ended, whoever has its number now. */
bool remote_is_there(const struct remote *r);

/* What was known of its areas may have changed. */
void remote_forget(struct remote *r);

/* The same; without queries all areas are listed, however long that takes. */
void remote_look_round(struct remote *r);

/* The area that contains an address, good until the next call; NULL: none. */
const struct remote_area *remote_find(struct remote *r, uint64_t address);

/* The same for an address that no area contains, but to which the stack would grow if it were touched. */
const struct remote_area *remote_find_growth(struct remote *r, uint64_t address);

/* So many bytes of a process's memory; false if not all of them can be read. */
bool remote_copy(pid_t pid, uint64_t address, void *bytes, size_t size);

/* The same; false, too, if one of their pages is not present: to read it would change the process, or wait for
 * whoever supplies its pages. */
bool remote_copy_present(pid_t pid, uint64_t address, void *bytes, size_t size);

enum page_read { PAGE_UNREADABLE = 0, PAGE_READ, PAGE_ZERO };

/* Read pages (addresses ascending), REMOTE_BATCH at most, each to a place of its own. `result` is an enum
 * page_read each. */
void remote_read_pages(struct remote *r, const uint64_t *page, size_t count, uint8_t *const *place,
                       uint8_t *result, bool *is_writable);

/* A code_reader of code as far as it is mapped; through /proc/PID/mem where it is executable only.
 * Untouched pages of it are not read. */
void remote_read_code(void *remote, const uint64_t *page, size_t count, uint8_t *bytes,
                      enum code_kind *kind);

#endif
