/* What programs have in common that say so if they notice that they are observed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include <poll.h>
#include <time.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/resource.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile uint64_t sink;
static void compute(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 20000; i++) sink += (uint64_t)i;
}

static void ready(void) { puts("ready"); fflush(stdout); }

/* Whether there is a line of input: programs go on until they are told to end. */
static int told(void)
{
    struct pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

static void fail(const char *what) { printf("%s: %s\n", what, strerror(errno)); exit(1); }
