#include "core.h"
#include "run_times.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

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
