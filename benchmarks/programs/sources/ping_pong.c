/* Two processes of one CPU that wake each other, for benchmarks/switch_cost.py.
 *
 * Prints its pid. For each number that it reads, a byte goes to and fro so many times; then it prints
 * the CPU time that a round took both of them, in nanoseconds. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static double cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec now;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &now))
        return 0;
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

int main(void)
{
    int to[2], from[2];
    char byte = 0;
    long rounds;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (pipe(to) || pipe(from) || sched_setaffinity(0, sizeof one, &one))
        return 1;
    const pid_t other = fork();
    if (other == 0) {
        close(to[1]);
        while (read(to[0], &byte, 1) == 1 && write(from[1], &byte, 1) == 1)
            ;
        return 0;
    }
    printf("%d\n", getpid());
    fflush(stdout);
    while (scanf("%ld", &rounds) == 1) {
        const double began = cpu_ns(getpid()) + cpu_ns(other);
        for (long i = 0; i < rounds; i++)
            if (write(to[1], &byte, 1) != 1 || read(from[0], &byte, 1) != 1)
                return 1;
        printf("%.1f\n", (cpu_ns(getpid()) + cpu_ns(other) - began) / (double)rounds);
        fflush(stdout);
    }
    return 0;
}
