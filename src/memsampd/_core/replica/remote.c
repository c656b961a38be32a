/* What is known of the target: its descriptors under /proc and the areas of its memory. */
#include "core.h"
#include "moments.h"
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define NAME_BYTES 32
#define LIST_BYTES 65536 /* read at once; longer than any line */

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
        if (strcmp(name, clock_area[i].name) == 0 &&
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
    r->list_seconds = INFINITY;
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
    free(r->list.area);
    free(r->spare.area);
    r->list = r->spare = (struct area_list){0};
}

bool
remote_is_there(const struct remote *r)
{
    char byte;
    return pread(r->maps, &byte, 1, 0) == 1; /* of a memory that nobody uses any more there is none */
}

void
remote_forget(struct remote *r)
{
    r->areas = 0;
    r->is_listed = false;
}

void
remote_look_round(struct remote *r)
{
    r->list_seconds = INFINITY;
    remote_forget(r);
    remote_find(r, 0);
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

/* One line of /proc/PID/maps. False if it is none. */
static bool
take_line(const char *line, struct remote_area *area)
{
    char *at, *device;

    area->start = strtoull(line, &at, 16);
    if (*at != '-')
        return false;
    area->end = strtoull(at + 1, &at, 16);
    if (*at != ' ' || (device = strchr(at + 6, ' ')) == NULL) /* behind " rwxp offset" */
        return false;
    area->is_readable = at[1] == 'r';
    area->is_writable = at[2] == 'w';
    area->is_executable = at[3] == 'x';
    area->is_shared = at[4] == 's';
    area->is_anonymous = strncmp(device, " 00:00 0 ", 9) == 0;
    if (area->is_anonymous)
        name_area(area, device + 9 + strspn(device + 9, " "));
    return true;
}

/* Take over the whole lines of a text that ends with a zero. Returns how long they are; -1: no memory. */
static ssize_t
take_lines(struct area_list *list, char *text)
{
    char *line = text, *end;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        struct remote_area area = {0};
        *end = '\0';
        if (!take_line(line, &area))
            continue;
        if (!blocks_grow((void **)&list->area, &list->capacity, list->count + 1, sizeof area))
            return -1;
        list->area[list->count++] = area;
    }
    return line - text;
}

/* Read the list of all areas; where that takes too long what was read before stays. */
static void
read_list(struct remote *r)
{
    const double started = now_seconds();
    struct area_list list = r->spare;
    char text[LIST_BYTES];
    off_t offset = 0;
    ssize_t got, taken, held = 0;

    r->is_listed = true;
    if (r->list.seconds > r->list_seconds)
        return;
    list.count = 0;
    while ((got = pread(r->maps, text + held, sizeof text - 1 - (size_t)held, offset)) > 0) {
        offset += got;
        held += got;
        text[held] = '\0';
        if ((taken = take_lines(&list, text)) < 0)
            break;
        held -= taken;
        memmove(text, text + taken, (size_t)held);
        list.seconds = now_seconds() - started;
        if (list.seconds > r->list_seconds)
            break;
    }
    r->spare = got > 0 ? list : r->list;
    if (got <= 0) /* it is whole, or the target is gone */
        r->list = list;
}

/* The last of the list that begins at an address or before, if it contains that. */
static bool
search_list(struct remote *r, uint64_t address, struct remote_area *area)
{
    size_t low = 0, high;

    if (!r->is_listed)
        read_list(r);
    for (high = r->list.count; low < high;) {
        const size_t middle = (low + high) / 2;
        if (r->list.area[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == r->list.count || address < r->list.area[low].start)
        return false;
    *area = r->list.area[low];
    return true;
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
        found = search_list(r, address, &area);
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
