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

static size_t
read_status_file(pid_t tid, const char *name, char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, STATUS_FILE_BYTES - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

/* A number in /proc/PID/status; masks have base 16. */
static uint64_t
status_number(const char *text, const char *field, int base)
{
    const char *found = strstr(text, field);
    return found == NULL ? 0 : strtoull(found + strlen(field), NULL, base);
}

/* A field of /proc/PID/stat behind the command, which may contain anything: NULL, or text that begins
 * with it. `text` is what it is read to. */
static const char *
stat_field(pid_t tid, int field, char *text)
{
    const char *at;

    if (read_status_file(tid, "stat", text) == 0 || (at = strrchr(text, ')')) == NULL)
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
    char text[STATUS_FILE_BYTES];
    return read_status_file(tid, "status", text) == 0 || strstr(text, "TracerPid:\t0\n") != NULL;
}

bool
thread_is_own_child(pid_t tid)
{
    char text[STATUS_FILE_BYTES];

    return read_status_file(tid, "status", text) != 0 &&
           status_number(text, "\nTgid:\t", 10) == (uint64_t)tid &&
           status_number(text, "\nPPid:\t", 10) == (uint64_t)getpid();
}

/* Asked when it matters: programs take a filter long after their start. */
bool
thread_has_filter(pid_t tid)
{
    char text[STATUS_FILE_BYTES];
    return read_status_file(tid, "status", text) != 0 && status_number(text, "\nSeccomp:\t", 10) != 0;
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
    char text[STATUS_FILE_BYTES];
    if (read_status_file(tid, "status", text) == 0)
        return true;
    uint64_t pending = status_number(text, "\nSigPnd:", 16) | status_number(text, "\nShdPnd:", 16);
    uint64_t ignored = status_number(text, "\nSigIgn:", 16) |
                       (IGNORED_BY_DEFAULT & ~status_number(text, "\nSigCgt:", 16));
    return (pending & ~status_number(text, "\nSigBlk:", 16) & ~ignored) != 0;
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
