/* Starts a program and tells what it used: more exactly than its caller could, whose own size would
 * count as the program's peak of resident memory.
 *
 * usage: measured DESCRIPTOR COMMAND [ARGUMENT...]
 * prints on that descriptor:  pid PID
 *         and after its end:  end STATUS WALL_NS CPU_US CHILDREN_CPU_US MINOR MAJOR PEAK_KIB LEFT
 *
 * CPU_US, faults and peak are as wait4 has them: with those of the children that the program waited
 * for, whose CPU time stands beside it. Descendants that outlive the program are waited for up to
 * some seconds; their CPU time is in CPU_US and CHILDREN_CPU_US, too; LEFT is how many still lived.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_TURNS = 300, TURN_NS = 10000000 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_us(const struct rusage *usage)
{
    return (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000u +
           (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

/* CPU time of the children that a process (a zombie, too) has waited for. */
static uint64_t children_us(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *rest = strrchr(text, ')');
    if (rest == NULL || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %lu %lu",
                               &user, &system) != 2)
        return 0;
    return (uint64_t)(user + system) * 1000000u / (uint64_t)sysconf(_SC_CLK_TCK);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc < 3)
        return 2;
    int out = atoi(argv[1]);
    uint64_t start = now_ns();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(out);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    dprintf(out, "pid %d\n", (int)pid);
    siginfo_t info;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) != 0)
        ;
    uint64_t wall = now_ns() - start, children = children_us(pid);
    int status = 0, left = 0;
    struct rusage usage, all;
    if (wait4(pid, &status, 0, &usage) != pid)
        return 1;
    for (int turn = 0; turn < PATIENCE_TURNS; turn++) {
        pid_t found;
        while ((found = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        left = found == 0;
        if (!left)
            break;
        nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
    }
    getrusage(RUSAGE_CHILDREN, &all);
    uint64_t orphans = cpu_us(&all) - cpu_us(&usage);
    dprintf(out, "end %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %ld %ld %ld %d\n",
            WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), wall,
            cpu_us(&usage) + orphans, children + orphans, usage.ru_minflt, usage.ru_majflt,
            usage.ru_maxrss, left);
    return 0;
}
