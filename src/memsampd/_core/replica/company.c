#include "core.h"
#include "company.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void
path_of_threads(pid_t pid, char *path, size_t size)
{
    snprintf(path, size, "/proc/%d/task", (int)pid);
}

/* How many threads a process has, and something more; 0: it is gone. */
static unsigned long
count_threads(pid_t pid)
{
    struct stat status;
    char path[64];

    path_of_threads(pid, path, sizeof path);
    return stat(path, &status) == 0 ? (unsigned long)status.st_nlink : 0;
}

void
company_meet(struct company *c, pid_t pid, pid_t tid)
{
    const struct dirent *entry;
    char path[64];

    c->pid = pid;
    c->count = 0;
    c->threads = count_threads(pid);
    path_of_threads(pid, path, sizeof path);
    DIR *folder = opendir(path);
    c->is_known = folder != NULL;
    while (c->is_known && (entry = readdir(folder)) != NULL) {
        const pid_t other = atoi(entry->d_name); /* 0: no thread */
        if (other == 0 || other == tid)
            continue;
        c->is_known = c->count < COMPANY_MOST;
        if (c->is_known) {
            c->other[c->count].tid = other;
            c->other[c->count].run_times = (struct run_times){0};
            c->other[c->count++].run_times_fd = run_times_open(other);
        }
    }
    if (folder != NULL)
        closedir(folder);
    company_has_run(c);
}

void
company_part(struct company *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->other[i].run_times_fd >= 0)
            close(c->other[i].run_times_fd);
    c->count = 0;
}

bool
company_has_run(struct company *c)
{
    bool has_run = false;

    c->is_known &= count_threads(c->pid) == c->threads;
    for (size_t i = 0; c->is_known && i < c->count; i++) {
        __typeof__(c->other[0]) *other = &c->other[i];
        struct run_times now;
        const bool is_told = run_times_read(other->run_times_fd, &now);
        if (!is_told || now.starts != other->run_times.starts ||
            now.run_seconds != other->run_times.run_seconds) {
            other->is_running = thread_state(other->tid) == 'R';
            has_run = true;
        }
        if (is_told)
            other->run_times = now;
        has_run |= other->is_running; /* that may be told only when it stops */
    }
    return has_run || !c->is_known;
}

bool
company_is_running(struct company *c)
{
    bool is_running = false;

    company_has_run(c);
    for (size_t i = 0; i < c->count; i++)
        is_running |= c->other[i].is_running;
    return is_running || !c->is_known;
}
