"""A thread that waits half of the time, and counts in a register: it is timed by its CPU time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import address_of, compile_c, go_on, running, tries

from memsampd.sampler.clock.odometer import Pairs
from memsampd.sampler.clock.samples import LatestSamples
from memsampd.sampler.perf.source import StreamedBranches, TaskClockSource
from memsampd.sampler.perf.ticks import Ticks, TickSource
from memsampd.sampler.process.status import list_threads

# A thread that begins when it is told to counts in r12. It logs what it has counted, and its CPU
# time by then, twenty times a millisecond. After each millisecond or so it sleeps for as long as
# it ran; then it does not for 2 s, and so on. Told again, it ends, and writes the log to a file.
PROGRAM = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
enum { LOGGED = 1 << 22, A_MS = 20, WAITING_MS = 300, STEADY_MS = 2000 };
static struct { uint64_t counted, cpu_ns; } logged[LOGGED];
static volatile int is_told;
static uint64_t at;
static uint64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static void *count(void *rounds)
{
    uint64_t counted = 0, slept_cpu_ns = 0, sleeps_at = 0;
    for (; !is_told; at++) {
        logged[at % LOGGED].counted = counted;
        logged[at % LOGGED].cpu_ns = thread_ns();
        uint64_t left = (uint64_t)rounds;
        register uint64_t r12 __asm__("r12") = counted;
        __asm__ volatile(".globl count_ip\ncount_ip: inc %0\ndec %1\njnz count_ip"
                         : "+r"(r12), "+c"(left));
        counted = r12;
        if (at == sleeps_at) { /* not in step with ticks */
            const struct timespec pause = {0, (long)(thread_ns() - slept_cpu_ns)};
            if (at / A_MS % (WAITING_MS + STEADY_MS) < WAITING_MS)
                nanosleep(&pause, NULL);
            slept_cpu_ns = thread_ns();
            sleeps_at = at + A_MS / 2 + at * 2654435761u / 65536 % A_MS;
        }
    }
    return NULL;
}
int main(int argc, char **argv)
{
    pthread_t thread;
    (void)argc;
    getchar();
    pthread_create(&thread, NULL, count, (void *)150000);
    puts("counting");
    fflush(stdout);
    getchar();
    is_told = 1;
    pthread_join(thread, NULL);
    FILE *file = fopen(argv[1], "w");
    fwrite(logged, sizeof *logged, at < LOGGED ? at : LOGGED, file);
    fclose(file);
    return 0;
}
"""
R12 = 12  # among the registers of a sample
ENOUGH_PAIRS = 12

Open = Callable[[int], StreamedBranches]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("waiting"), PROGRAM, "-no-pie")


def undisturbed_pairs(process: subprocess.Popen[str], code_ip: np.ndarray, opened: Open) -> Pairs:
    """Enough pairs of samples of the thread that it begins, as a session takes them in."""
    kept = LatestSamples()
    with opened(process.pid) as source:
        go_on(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "counting\n"
        (tid,) = set(list_threads(process.pid)) - {process.pid}
        for _ in tries():
            kept.add(source.read(0.05))
            pairs = kept.pairs(tid, kept.between(0.0, np.inf), code_ip)
            if len(pairs.seconds) >= ENOUGH_PAIRS:
                return pairs
    raise AssertionError("tries have no end")


def check(program: Path, tmp_path: Path, opened: Open) -> None:
    """Most pairs are as far apart as the thread itself says, by its CPU time."""
    code_ip = np.uint64(address_of(program, "count_ip")) + np.array([0, 3, 6], np.uint64)
    written = tmp_path / "log"
    with running(program, written) as process:
        # Else it hardly ever has a CPU for as long, where all are busy.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, process.pid, -20)
        pairs = undisturbed_pairs(process, code_ip, opened)
        go_on(process)
        process.wait()
    counted, cpu_ns = np.fromfile(written, np.uint64).reshape(-1, 2).T
    order = np.argsort(counted)
    first = pairs.registers[:, R12]
    ends = [
        np.interp(at, counted[order], cpu_ns[order])
        for at in (first, first + pairs.advance[:, R12])
    ]
    told = pairs.seconds / (1e-9 * (ends[1] - ends[0]))
    assert 0.8 < np.median(told) < 1.25


def test_by_a_timer(program: Path, tmp_path: Path) -> None:
    check(program, tmp_path, lambda pid: TaskClockSource(pid, period_seconds=0.0005))


@pytest.mark.parametrize("tells_time", [True, False])
def test_by_ticks(program: Path, tmp_path: Path, ticks: Ticks, tells_time: bool) -> None:
    """Those of kernels before 6.13 tell no CPU time: the thread is asked at each turn."""
    if tells_time and not ticks.tells_time:
        pytest.skip("this kernel does not tell CPU time at each sample of a new thread")
    found = replace(ticks, tells_time=tells_time)
    check(program, tmp_path, lambda pid: TickSource(pid, found, period_seconds=found.seconds))
