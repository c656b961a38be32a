#include "core.h"
#include "thread_status.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATUS_FILE_BYTES 4096
/* Signals that nobody notices unless there is a handler: SIGCHLD, SIGCONT, SIGURG, SIGWINCH. */
#define IGNORED_BY_DEFAULT (1ull << 16 | 1ull << 17 | 1ull << 22 | 1ull << 27)

/* A number in /proc/PID/status, or another file of such lines. */
struct status_field {
    const char *name; /* as it stands at the begin of its line, with the colon */
    int base;
    bool is_known;
    uint64_t value;
};

static int
open_of_thread(pid_t tid, const char *name)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)tid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void
take_line(const char *line, struct status_field *fields, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(fields[i].name);
        if (strncmp(line, fields[i].name, length) == 0) {
            fields[i].value = strtoull(line + length, NULL, fields[i].base);
            fields[i].is_known = true;
        }
    }
}

/* False where one of them is not to be had. There may be lines of any length: of a user's groups. */
static bool
read_fields(pid_t tid, const char *file, struct status_field *fields, size_t count)
{
    char text[STATUS_FILE_BYTES];
    size_t held = 0, known = 0;
    bool is_rest = false; /* of a line that was too long */
    ssize_t got;
    int fd = open_of_thread(tid, file);

    if (fd < 0)
        return false;
    while ((got = read(fd, text + held, sizeof text - 1 - held)) > 0) {
        char *line = text, *end;
        held += (size_t)got;
        text[held] = '\0';
        while ((end = strchr(line, '\n')) != NULL) {
            if (!is_rest)
                take_line(line, fields, count);
            is_rest = false;
            line = end + 1;
        }
        held -= (size_t)(line - text);
        memmove(text, line, held);
        if (held == sizeof text - 1) {
            is_rest = true;
            held = 0;
        }
    }
    close(fd);
    for (size_t i = 0; i < count; i++)
        known += fields[i].is_known;
    return known == count;
}

static bool
read_status(pid_t tid, struct status_field *fields, size_t count)
{
    return read_fields(tid, "status", fields, count);
}

/* A field of /proc/PID/stat behind the command, which may contain anything: NULL, or text that begins
 * with it. `text` is what it is read to. */
static const char *
stat_field(pid_t tid, int field, char *text)
{
    const char *at;
    int fd = open_of_thread(tid, "stat");
    ssize_t got = fd >= 0 ? read(fd, text, STATUS_FILE_BYTES - 1) : 0;

    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    if ((at = strrchr(text, ')')) == NULL)
        return NULL;
    for (int passed = 2; passed < field && at != NULL; passed++)
        at = strchr(at + 1, ' ');
    return at != NULL ? at + 1 : NULL;
}

char
thread_state(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    const char *state = stat_field(tid, 3, text);
    return state != NULL ? *state : '\0';
}

int
thread_cpu(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    const char *cpu = stat_field(tid, 39, text);
    return cpu != NULL ? atoi(cpu) : -1;
}

bool
thread_is_untraced(pid_t tid)
{
    struct status_field tracer = {.name = "TracerPid:", .base = 10};
    return !read_status(tid, &tracer, 1) || tracer.value == 0;
}

bool
thread_is_own_child(pid_t tid)
{
    struct status_field fields[] = {{.name = "Tgid:", .base = 10}, {.name = "PPid:", .base = 10}};
    return read_status(tid, fields, 2) && fields[0].value == (uint64_t)tid &&
           fields[1].value == (uint64_t)getpid();
}

/* Asked when it matters: programs take a filter long after their start. */
bool
thread_has_filter(pid_t tid)
{
    struct status_field filter = {.name = "Seccomp:", .base = 10};
    return !read_status(tid, &filter, 1) || filter.value != 0;
}

bool
thread_descriptor_waits(pid_t tid, int fd)
{
    struct status_field flags = {.name = "flags:", .base = 8};
    char file[32];

    snprintf(file, sizeof file, "fdinfo/%d", fd);
    return !read_fields(tid, file, &flags, 1) || !(flags.value & O_NONBLOCK);
}

bool
thread_descriptor_is_pipe(pid_t tid, int fd)
{
    static const char pipe[] = "pipe:[";
    char path[64], target[sizeof pipe];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)tid, fd);
    return readlink(path, target, sizeof target) > (ssize_t)strlen(pipe) &&
           strncmp(target, pipe, strlen(pipe)) == 0;
}

bool
thread_is_of(pid_t pid, pid_t tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", (int)pid, (int)tid);
    return access(path, F_OK) == 0;
}

bool
thread_awaits_signal(pid_t tid)
{
    enum { PENDING, SHARED, BLOCKED, IGNORED, CAUGHT, FIELDS };
    struct status_field fields[FIELDS] = {
        [PENDING] = {.name = "SigPnd:", .base = 16}, [SHARED] = {.name = "ShdPnd:", .base = 16},
        [BLOCKED] = {.name = "SigBlk:", .base = 16}, [IGNORED] = {.name = "SigIgn:", .base = 16},
        [CAUGHT] = {.name = "SigCgt:", .base = 16},
    };

    if (!read_status(tid, fields, FIELDS))
        return true;
    uint64_t ignored = fields[IGNORED].value | (IGNORED_BY_DEFAULT & ~fields[CAUGHT].value);
    return ((fields[PENDING].value | fields[SHARED].value) & ~fields[BLOCKED].value & ~ignored) != 0;
}

int
run_times_open(pid_t tid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)tid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

bool
run_times_read(int fd, struct run_times *times)
{
    unsigned long long nanoseconds;
    char text[128];
    ssize_t got = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : 0;

    if (got <= 0)
        return false;
    text[got] = '\0';
    if (sscanf(text, "%llu %*u %llu", &nanoseconds, &times->starts) != 2)
        return false;
    times->run_seconds = (double)nanoseconds * 1e-9;
    return nanoseconds > 0; /* a kernel without these counts says 0 of all */
}
