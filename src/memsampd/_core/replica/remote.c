#include "core.h"
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define PRESENT ((uint64_t)1 << 63)
#define SWAPPED ((uint64_t)1 << 62)
#define NAME_BYTES 32
#define LOOK_ACROSS 12u /* pages */

/* As the kernel's struct procmap_query, which older headers lack. */
struct query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define QUERY _IOWR('f', 17, struct query)
#define QUERY_THIS_OR_NEXT 0x10
#define STACK_GUARD_BYTES (1u << 20) /* the kernel's default */
enum { QUERY_READABLE = 1, QUERY_WRITABLE = 2, QUERY_EXECUTABLE = 4, QUERY_SHARED = 8 };

/* ---- Our own clock data ---- */

struct clock_area {
    char name[NAME_BYTES];
    uint64_t start, end;
};
static struct clock_area clock_area[4];
static size_t clock_areas;

static bool
is_clock_name(const char *name)
{
    return strncmp(name, "[vvar", 5) == 0;
}

static void
find_clock_areas(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL && clock_areas < 4) {
        struct clock_area *a = &clock_area[clock_areas];
        a->name[0] = '\0';
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %31s", &a->start, &a->end,
                   a->name) == 3 && is_clock_name(a->name))
            clock_areas++;
    }
    if (maps != NULL)
        fclose(maps);
}

static void
name_area(struct remote_area *area, const char *name)
{
    if (name[0] != '[')
        return;
    for (size_t i = 0; i < clock_areas; i++)
        if (memcmp(name, clock_area[i].name, strlen(clock_area[i].name) + 1) == 0 &&
            area->end - area->start == clock_area[i].end - clock_area[i].start) {
            area->kind = AREA_CLOCK;
            area->clock_offset = clock_area[i].start - area->start;
            return;
        }
    if (is_clock_name(name) || strcmp(name, "[vsyscall]") == 0 || strcmp(name, "[uprobes]") == 0)
        area->kind = AREA_SPECIAL;
}

/* ---- Areas ---- */

int
remote_open(struct remote *r, pid_t pid, bool can_query)
{
    char path[64];

    memset(r, 0, sizeof *r);
    r->pid = pid;
    r->maps = r->pagemap = r->memory = r->pipe[0] = r->pipe[1] = -1;
    r->can_query = can_query;
    r->shares_clock = true;
    if (clock_areas == 0)
        find_clock_areas();
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    r->maps = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/pagemap", (int)pid);
    r->pagemap = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    r->memory = open(path, O_RDONLY | O_CLOEXEC);
    if (r->maps < 0 || r->pagemap < 0 || r->memory < 0) {
        int error = errno;
        remote_close(r);
        errno = error;
        return -1;
    }
    return 0;
}

void
remote_close(struct remote *r)
{
    int *const all[] = {&r->maps, &r->pagemap, &r->memory, &r->pipe[0], &r->pipe[1]};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (*all[i] >= 0)
            close(*all[i]);
        *all[i] = -1;
    }
    free(r->text);
    r->text = NULL;
    r->text_capacity = 0;
}

void
remote_forget(struct remote *r)
{
    r->areas = 0;
    r->has_text = false;
}

static bool
query_area(struct remote *r, uint64_t address, struct remote_area *area)
{
    char name[NAME_BYTES] = "";
    struct query q = {.size = sizeof q, .query_addr = address, .vma_name_size = sizeof name,
                      .vma_name_addr = (uint64_t)(uintptr_t)name};

    int result = ioctl(r->maps, QUERY, &q);
    if (result < 0 && errno == ENAMETOOLONG) { /* of a file */
        q.vma_name_size = 0;
        q.vma_name_addr = 0;
        result = ioctl(r->maps, QUERY, &q);
    }
    if (result < 0 && errno == ENOTTY)
        r->can_query = false;
    if (result < 0)
        return false;
    *area = (struct remote_area){
        .start = q.vma_start,
        .end = q.vma_end,
        .is_readable = q.vma_flags & QUERY_READABLE,
        .is_writable = q.vma_flags & QUERY_WRITABLE,
        .is_executable = q.vma_flags & QUERY_EXECUTABLE,
        .is_shared = q.vma_flags & QUERY_SHARED,
        .is_anonymous = q.inode == 0 && q.dev_major == 0 && q.dev_minor == 0,
    };
    if (q.vma_name_size != 0)
        name_area(area, name);
    return true;
}

static bool
read_text(struct remote *r)
{
    r->text_bytes = 0;
    for (;;) {
        if (r->text_bytes + 65536 > r->text_capacity) {
            size_t capacity = r->text_capacity == 0 ? 1u << 18 : 2 * r->text_capacity;
            char *text = realloc(r->text, capacity);
            if (text == NULL)
                return false;
            r->text = text;
            r->text_capacity = capacity;
        }
        ssize_t got = pread(r->maps, r->text + r->text_bytes, 65535, (off_t)r->text_bytes);
        if (got < 0)
            return false;
        r->text_bytes += (size_t)got;
        if (got == 0)
            break;
    }
    r->text[r->text_bytes] = '\0';
    return r->has_text = true;
}

static bool
search_text(struct remote *r, uint64_t address, struct remote_area *area)
{
    if (!r->has_text && !read_text(r))
        return false;
    for (const char *line = r->text; *line != '\0';) {
        uint64_t start, end, inode;
        unsigned major, minor;
        char permissions[5], name[NAME_BYTES] = "";
        const char *next = strchr(line, '\n');
        int found = sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%x %" SCNu64 " %31[^\n]",
                           &start, &end, permissions, &major, &minor, &inode, name);
        if (found >= 6 && address - start < end - start) {
            *area = (struct remote_area){
                .start = start,
                .end = end,
                .is_readable = permissions[0] == 'r',
                .is_writable = permissions[1] == 'w',
                .is_executable = permissions[2] == 'x',
                .is_shared = permissions[3] == 's',
                .is_anonymous = inode == 0 && major == 0 && minor == 0,
            };
            name_area(area, name);
            return true;
        }
        line = next != NULL ? next + 1 : line + strlen(line);
    }
    return false;
}

const struct remote_area *
remote_find(struct remote *r, uint64_t address)
{
    struct remote_area area;

    for (size_t i = 0; i < r->areas; i++)
        if (address - r->area[i].start < r->area[i].end - r->area[i].start) {
            if (i != 0) { /* those that are asked for most come first */
                area = r->area[i];
                r->area[i] = r->area[i - 1];
                r->area[i - 1] = area;
                i--;
            }
            return &r->area[i];
        }
    bool found = r->can_query && query_area(r, address, &area);
    if (!found && !r->can_query)
        found = search_text(r, address, &area);
    if (!found)
        return NULL;
    size_t at = r->areas < REMOTE_AREAS ? r->areas++ : REMOTE_AREAS - 1;
    r->area[at] = area;
    return &r->area[at];
}

/* Whether [stack] is the first area that ends behind an address. */
static bool
query_stack(struct remote *r, uint64_t address, uint64_t *start, uint64_t *end)
{
    char name[NAME_BYTES] = "";
    struct query q = {.size = sizeof q, .query_flags = QUERY_THIS_OR_NEXT, .query_addr = address,
                      .vma_name_size = sizeof name, .vma_name_addr = (uint64_t)(uintptr_t)name};

    *start = *end = 0;
    if (ioctl(r->maps, QUERY, &q) < 0)
        return false;
    *start = q.vma_start;
    *end = q.vma_end;
    return strcmp(name, "[stack]") == 0;
}

const struct remote_area *
remote_find_growth(struct remote *r, uint64_t address)
{
    const uint64_t page = page_of(address);
    uint64_t start, end, guarded_start;
    struct rlimit limit;

    if (!r->can_query || page < STACK_GUARD_BYTES || !query_stack(r, page, &start, &end) ||
        prlimit(r->pid, RLIMIT_STACK, NULL, &limit) < 0 || end - page > limit.rlim_cur ||
        !query_stack(r, page - STACK_GUARD_BYTES, &guarded_start, &end) || guarded_start != start ||
        remote_find(r, start) == NULL)
        return NULL;
    for (size_t i = 0; i < r->areas; i++)
        if (r->area[i].start == start) {
            r->area[i].start = page;
            return &r->area[i];
        }
    return NULL;
}

/* ---- Pages ---- */

bool
remote_copy(pid_t pid, uint64_t address, void *bytes, size_t size)
{
    struct iovec mine = {bytes, size}, theirs = {(void *)(uintptr_t)address, size};
    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)size;
}

/* What the page map says of some consecutive pages; false if it cannot be read. */
static bool
read_entries(struct remote *r, uint64_t page, size_t count, uint64_t *entry)
{
    const ssize_t bytes = (ssize_t)(8 * count);
    return pread(r->pagemap, entry, (size_t)bytes, (off_t)(page / PAGE_BYTES * 8)) == bytes;
}

static enum page_read
judge_page(struct remote *r, const struct remote_area *area, uint64_t entry)
{
    if (entry & PRESENT)
        return PAGE_READ;
    if (!(entry & SWAPPED) && area->is_anonymous && !area->is_shared && !r->supplies_pages)
        return PAGE_ZERO;
    return PAGE_UNREADABLE;
}

/* Our own page, through a pipe: a write from memory that cannot be read fails, where a load would kill;
 * the page of a clock that is not in use cannot. */
static bool
copy_clock_page(struct remote *r, const struct remote_area *area, uint64_t page, uint8_t *bytes)
{
    const void *ours = (const void *)(uintptr_t)(page + area->clock_offset);

    if (!r->shares_clock || (r->pipe[0] < 0 && pipe2(r->pipe, O_CLOEXEC | O_NONBLOCK) < 0))
        return false;
    ssize_t written = write(r->pipe[1], ours, PAGE_BYTES);
    return written > 0 && read(r->pipe[0], bytes, PAGE_BYTES) == written &&
           written == (ssize_t)PAGE_BYTES;
}

/* By the kernel, which fails where there is no memory for a page of a file; a store would kill. */
static bool
clear_page(uint8_t *place)
{
    static const uint8_t zeros[PAGE_BYTES];
    return remote_copy(getpid(), (uint64_t)(uintptr_t)zeros, place, PAGE_BYTES);
}

/* What the page map says of pages, those between that are not asked for included where there are few: one
 * more takes 0.1 us, another call 1.3. */
static void
look_up_pages(struct remote *r, const uint64_t *page, size_t count, uint64_t *entry)
{
    uint64_t span[REMOTE_BATCH];

    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && page[end] - page[end - 1] <= LOOK_ACROSS * PAGE_BYTES &&
                          page[end] - page[i] < sizeof span / sizeof span[0] * PAGE_BYTES;)
            end++;
        const size_t all = (page[end - 1] - page[i]) / PAGE_BYTES + 1;
        const bool is_read = read_entries(r, page[i], all, span); /* not where it has ended */
        for (size_t k = i; k < end; k++)
            entry[k] = is_read ? span[(page[k] - page[i]) / PAGE_BYTES] : SWAPPED;
    }
}

/* The next pages to be read, those that follow each other in one piece on both sides. Returns how many. */
static size_t
gather(const uint64_t *page, uint8_t *const *place, const size_t *which, size_t count,
       struct iovec *theirs, struct iovec *mine)
{
    size_t pieces = 0;

    for (size_t i = 0; i < count; i++) {
        const uint64_t from = page[which[i]];
        uint8_t *to = place[which[i]];
        struct iovec *last = pieces == 0 ? NULL : &theirs[pieces - 1];
        if (last != NULL && from == (uint64_t)(uintptr_t)last->iov_base + last->iov_len &&
            to == (uint8_t *)mine[pieces - 1].iov_base + last->iov_len) {
            last->iov_len += PAGE_BYTES;
            mine[pieces - 1].iov_len += PAGE_BYTES;
            continue;
        }
        theirs[pieces] = (struct iovec){(void *)(uintptr_t)from, PAGE_BYTES};
        mine[pieces++] = (struct iovec){to, PAGE_BYTES};
    }
    return pieces;
}

/* Read those that are present; what cannot be read all the same is told. */
static void
read_present(struct remote *r, const uint64_t *page, uint8_t *const *place, const size_t *which,
             size_t count, uint8_t *result)
{
    struct iovec theirs[REMOTE_BATCH], mine[REMOTE_BATCH];

    if (count == 1) { /* half of what process_vm_readv takes */
        if (pread(r->memory, place[which[0]], PAGE_BYTES, (off_t)page[which[0]]) != (ssize_t)PAGE_BYTES)
            result[which[0]] = PAGE_UNREADABLE;
        return;
    }
    for (size_t done = 0; done < count;) {
        const size_t pieces = gather(page, place, which + done, count - done, theirs, mine);
        const ssize_t got = process_vm_readv(r->pid, mine, pieces, theirs, pieces, 0);
        done += got > 0 ? (size_t)got / PAGE_BYTES : 0;
        if (done < count) /* this one cannot be read */
            result[which[done++]] = PAGE_UNREADABLE;
    }
}

/* What a running target has given back looks like memory that it has not touched yet. */
static void
check_zeros(struct remote *r, const uint64_t *page, size_t count, uint8_t *result)
{
    if (memchr(result, PAGE_ZERO, count) == NULL)
        return;
    remote_forget(r);
    for (size_t i = 0; i < count; i++) {
        if (result[i] != PAGE_ZERO)
            continue;
        const struct remote_area *area = remote_find(r, page[i]);
        if (area == NULL || !area->is_readable || !area->is_anonymous)
            result[i] = PAGE_UNREADABLE;
    }
}

void
remote_read_pages(struct remote *r, const uint64_t *page, size_t count, uint8_t *const *place,
                  uint8_t *result, bool *is_writable)
{
    size_t which[REMOTE_BATCH], wanted = 0;
    uint64_t entry[REMOTE_BATCH];

    look_up_pages(r, page, count, entry);
    for (size_t i = 0; i < count; i++) {
        const struct remote_area *area = remote_find(r, page[i]);
        result[i] = PAGE_UNREADABLE;
        is_writable[i] = area != NULL && area->is_writable;
        if (area == NULL || !area->is_readable || area->kind == AREA_SPECIAL)
            continue;
        if (area->kind == AREA_CLOCK) {
            if (copy_clock_page(r, area, page[i], place[i]))
                result[i] = PAGE_READ;
            continue;
        }
        result[i] = (uint8_t)judge_page(r, area, entry[i]);
        if (result[i] == PAGE_ZERO && !clear_page(place[i]))
            result[i] = PAGE_UNREADABLE;
        else if (result[i] == PAGE_READ)
            which[wanted++] = i;
    }
    read_present(r, page, place, which, wanted, result);
    if (r->is_running)
        check_zeros(r, page, count, result);
}

void
remote_read_code(void *remote, const uint64_t *page, size_t count, uint8_t *bytes,
                 enum code_kind *kind)
{
    struct remote *r = remote;
    uint8_t result[CODE_BATCH], *place[CODE_BATCH] = {NULL};
    bool is_writable[CODE_BATCH];
    uint64_t entry;

    for (size_t i = 0; i < count; i++)
        place[i] = bytes + i * PAGE_BYTES;
    remote_read_pages(r, page, count, place, result, is_writable);
    for (size_t i = 0; i < count; i++) {
        kind[i] = CODE_UNREADABLE;
        if (result[i] != PAGE_READ &&
            (page[i] >> 63 != 0 || !read_entries(r, page[i], 1, &entry) || !(entry & PRESENT) ||
             pread(r->memory, bytes + i * PAGE_BYTES, PAGE_BYTES, (off_t)page[i]) !=
                 (ssize_t)PAGE_BYTES))
            continue;
        const struct remote_area *area = remote_find(r, page[i]);
        kind[i] = area != NULL && !area->is_writable && !area->is_anonymous ? CODE_STABLE
                                                                            : CODE_VOLATILE;
    }
}
