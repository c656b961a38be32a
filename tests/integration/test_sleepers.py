"""Threads that sleep: bursts wait until they run, and nothing happens to them before that."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tracees import (
    compile_c,
    descriptors,
    go_on,
    result_of,
    running,
    sleeps,
    tracer_of,
    wait_until_clean,
)
from waiting import PATIENCE_SECONDS

from memsampd.daemon.tracer import CaptureOrder
from memsampd.sampler.perf.sleepers import wait_until_one_runs
from memsampd.sampler.process.status import list_threads, read_threads

# Runs for a while whenever a byte comes: in its first thread, or in a second one.
WAKING = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static volatile char area[1 << 16];
static void work(void)
{
    struct timespec from, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    do {
        for (int at = 0; at < (int)sizeof area; at += 64) area[at]++;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while (now.tv_sec - from.tv_sec + 1e-9 * (now.tv_nsec - from.tv_nsec) < 0.5);
}
static void *wait_and_work(void *unused)
{
    char byte;
    while (read(0, &byte, 1) == 1) work();
    return unused;
}
int main(int count, char **words)
{
    pthread_t thread;
    puts("ready");
    fflush(stdout);
    if (!strcmp(words[1], "first")) wait_and_work(NULL);
    pthread_create(&thread, NULL, wait_and_work, NULL);
    pthread_join(thread, NULL);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("waking"), WAKING)


@contextmanager
def asleep(program: Path, which: str) -> Iterator[subprocess.Popen[str]]:
    """A process all threads of which wait for a byte."""
    with running(program, which) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threads = 1 if which == "first" else 2
        give_up = time.monotonic() + PATIENCE_SECONDS
        before: list[int] = []
        while [sleeps(each.tid) for each in read_threads(process.pid)] != [True] * threads or (
            before != switches(process.pid)  # it may have slept, and still be on its way
        ):
            assert time.monotonic() < give_up
            before = switches(process.pid)
            time.sleep(0.01)
        yield process


@pytest.mark.parametrize("which", ["first", "second"])
def test_the_thread_that_runs_first_is_told(program: Path, which: str, never: int) -> None:
    before = descriptors()
    with asleep(program, which) as process:
        threads = list_threads(process.pid)
        inside = descriptors()
        assert wait_until_one_runs(threads, 0.05, never) is None
        go_on(process)
        assert wait_until_one_runs(threads, PATIENCE_SECONDS, never) == threads[-1]
        assert descriptors() == inside
    assert descriptors() <= before


def test_a_wait_ends_when_it_is_cancelled_and_when_all_have_ended(
    program: Path, never: int
) -> None:
    with asleep(program, "first") as process:
        fd = os.eventfd(1)
        try:
            assert wait_until_one_runs([process.pid], 10 * PATIENCE_SECONDS, fd) is None
        finally:
            os.close(fd)
        killer = threading.Timer(0.2, process.kill)
        killer.start()
        assert wait_until_one_runs([process.pid], 10 * PATIENCE_SECONDS, never) is None
        killer.join()
        process.wait()
        assert wait_until_one_runs([process.pid], 10 * PATIENCE_SECONDS, never) is None


def order(process: subprocess.Popen[str], patience_seconds: float) -> CaptureOrder:
    return CaptureOrder({process.pid: 1}, 0.0, 10_000, 0.05, patience_seconds=patience_seconds)


def switches(pid: int) -> list[int]:
    """How often each thread has gone to sleep, or has had to wait."""
    folders = sorted(Path(f"/proc/{pid}/task").iterdir())
    lines = [
        line.split() for each in folders for line in (each / "status").read_text().splitlines()
    ]
    return [int(words[1]) for words in lines if words[0].endswith("ctxt_switches:")]


def test_threads_that_wait_in_a_system_call_are_let_alone(program: Path) -> None:
    with asleep(program, "second") as process, tracer_of(process) as tracer:
        before = switches(process.pid)
        tracer.order(order(process, 0.5))
        result = result_of(tracer)
        assert result.error is not None
        assert result.error.reason == "none-ran"
        assert result.cost.stop_seconds == 0
        assert switches(process.pid) == before


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_burst_is_taken_when_a_thread_wakes_up(program: Path, which: str) -> None:
    with asleep(program, which) as process:
        threads = list_threads(process.pid)
        with tracer_of(process) as tracer:
            give_up = time.monotonic() + PATIENCE_SECONDS
            accesses = 0
            while accesses == 0:  # it may be held where nothing is accessed, or code is new
                tracer.order(order(process, PATIENCE_SECONDS))
                # What the replica learns in the first run may take all of it.
                while not (found := tracer.results()):
                    assert time.monotonic() < give_up
                    go_on(process)
                    time.sleep(1)
                (result,) = found
                assert result.counted is not None, result.error
                assert result.counted.burst.tid == threads[-1]
                accesses = result.counted.histogram.accesses
        assert wait_until_clean(process.pid) == []
        assert process.poll() is None


def test_closing_ends_a_wait(program: Path) -> None:
    with asleep(program, "first") as process:
        with tracer_of(process) as tracer:
            tracer.order(order(process, 100 * PATIENCE_SECONDS))
            while not any("[perf_event]" in each for each in _links()):
                time.sleep(0.01)
        (result,) = tracer.results()
        assert result.error is not None
        assert result.error.reason == "closed"
        tracer.close()


def _links() -> list[str]:
    """What this process's descriptors are."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found
