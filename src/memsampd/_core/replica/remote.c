/* What is known of the target: its descriptors under /proc and the areas of its memory. */
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
#include <unistd.h>

#define NAME_BYTES 32

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
