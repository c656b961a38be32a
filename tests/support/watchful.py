"""Programs that say so if they notice that they are observed."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from tracees import observed

COMMON = r"""
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
"""

# Takes so many bursts; after the first one it says so, and waits for a line.
OBSERVER = """
import sys, time
from memsampd.errors import MemsampdError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
pid, wanted, bursts = int(sys.argv[1]), int(sys.argv[2]), 0
source = ReplicaSource(pid)
while bursts < wanted:
    try:
        source.capture(BurstRequest(pid, 20000))
        bursts += 1
        if bursts == 1:
            print("begun", flush=True)
            sys.stdin.readline()
    except MemsampdError as error:
        if error.reason == "gone":
            sys.exit("gone")
        time.sleep(0.001)
source.close()
"""


def tell(process: subprocess.Popen[str]) -> None:
    """It is to end."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has said what it had to
        process.stdin.write("\n")
        process.stdin.flush()


def outcome(
    process: subprocess.Popen[str], attaches: int = 0, bursts: int = 0, **options: object
) -> str:
    """What a program says that was observed so often, at least.

    While it is observed it is not waited for: its stops are for its tracer.
    """
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with observed(process.pid, **options) as tally:
        tally.wait(lambda: tally.attaches >= attaches and tally.bursts >= bursts)
        tell(process)
        answer = process.stdout.read().strip()
    return answer + (f", ended by {code}" if (code := process.wait()) else "")
