"""A program that switches often is sampled for a part of the time, and is told of as it is."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest
from psutil import Process
from tracees import compile_c, descriptors, running
from waiting import PATIENCE_SECONDS

from memsampd.daemon.attach import attached
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.exporters.recording import read_recording
from memsampd.machines.cpulist import online_cpus
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.switches import LEAST_SHARE
from memsampd.sampler.perf.ticks import TickSource
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import BranchSamples

# Two threads pass a byte over pipes; each time the second works for three times as long. At a byte
# on its input it becomes another program, or starts a third thread that works without a pause.
PROGRAM = r"""
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int to[2], from[2];
static volatile long area[1 << 10];
static void work(long times)
{
    for (long i = 0; i < times; i++) area[i & 1023]++;
}
static void *answer(void *words)
{
    char byte;
    long times = 3 * *(long *)words;
    while (read(to[0], &byte, 1) == 1) {
        work(times);
        if (write(from[1], &byte, 1) != 1) break;
    }
    return NULL;
}
static void *compute(void *unused)
{
    for (;;) work(1000);
    return unused;
}
int main(int count, char **words)
{
    pthread_t thread;
    char byte = 0;
    static long times = 10000;
    struct pollfd told = {0, POLLIN, 0};
    if (count > 2) times = 100;
    if (pipe(to) || pipe(from)) return 1;
    pthread_create(&thread, NULL, answer, &times);
    puts("ready");
    fflush(stdout);
    for (long round = 0;; round++) {
        work(times);
        if (write(to[1], &byte, 1) != 1 || read(from[0], &byte, 1) != 1) return 1;
        if (round % 64 || poll(&told, 1, 0) != 1 || read(0, &byte, 1) != 1) continue;
        if (byte == 'x') execl(words[0], words[0], "again", NULL);
        pthread_create(&thread, NULL, compute, NULL);
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("switching"), PROGRAM, "-pthread")


@contextmanager
def switching(program: Path, *words: str) -> Iterator[Popen[str]]:
    """The program, once it has both threads."""
    with running(program, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def sampling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "memsampd-sampling"]


@contextmanager
def thinned(pid: int, share: float, most_files: int | None = None) -> Iterator[TaskClockSource]:
    with TaskClockSource(pid, most_files=most_files) as source:
        source.thin(share)
        yield source


def read_until(
    source: TaskClockSource, is_enough: Callable[[list[BranchSamples]], object]
) -> list[BranchSamples]:
    give_up = time.monotonic() + PATIENCE_SECONDS
    parts: list[BranchSamples] = []
    while not is_enough(parts):
        assert time.monotonic() < give_up, parts[-3:]
        parts.append(source.read(0.1))
    return parts


def tell(process: Popen[str], byte: str) -> None:
    assert process.stdin is not None
    process.stdin.write(byte)
    process.stdin.flush()


def samples_of(parts: list[BranchSamples]) -> int:
    return sum(map(len, parts))


def user_seconds(pid: int) -> dict[int, float]:
    """CPU time of each thread in user mode: passing the byte can take longer than that."""
    return {each.id: each.user_time for each in Process(pid).threads()}


def told_share(parts: list[BranchSamples], tid: int) -> float:
    """The share of a thread in windows, which hold all samples."""
    cutter = WindowCutter(0.1, 8, lambda pid, ips: ips)
    windows = [window for part in parts for window in cutter.add(part)]
    last = cutter.flush()
    windows += [] if last is None else [last]
    found: Counter[int] = Counter()
    for window in windows:
        found.update(window.thread_samples)
    assert found.total() == samples_of(parts)
    assert sum(window.cpu_seconds for window in windows) == pytest.approx(
        sum((len(part) + part.lost) * part.period_seconds * part.weight for part in parts)
    )
    return found[tid] / found.total()


def test_windows_hold_the_threads_as_they_ran(program: Path) -> None:
    """And the CPU time of the samples, by their weights, is that of the process in user mode.

    Not in each run: what a busy host takes from a CPU changes both.
    """
    with switching(program) as process, thinned(process.pid, 1 / 8) as source:
        assert (source.share, source.period_seconds) == (1 / 8, 0.00025)
        _, second = list_threads(process.pid)
        # From here on weights are those that were measured.
        read_until(source, lambda parts: samples_of(parts) > 100)
        tried = []
        for _ in range(20):
            before = user_seconds(process.pid)
            parts = read_until(source, lambda parts: samples_of(parts) > 300)
            after = user_seconds(process.pid)
            used = {tid: seconds - before[tid] for tid, seconds in after.items()}
            assert max(part.weight for part in parts) > 1 <= min(part.weight for part in parts)
            told = told_share(parts, second)
            stands_for = sum(len(part) * part.period_seconds * part.weight for part in parts)
            share, whole = used[second] / sum(used.values()), stands_for / sum(used.values())
            tried.append((told, share, whole))
            # What weights leave out or count twice would be seen.
            if told == pytest.approx(share, abs=0.15) and 0.4 < whole < 1.6:
                break
        else:
            pytest.fail(f"samples never stood for the CPU time: {tried}")


def test_another_program_is_noticed_while_nothing_is_sampled(program: Path) -> None:
    with switching(program) as process, thinned(process.pid, LEAST_SHARE) as source:
        read_until(source, samples_of)
        for _ in range(3):  # most of the time nothing is
            source.take_events()
            tell(process, "x")
            execs: list[float] = []

            def has_execed(parts: list[BranchSamples], execs: list[float] = execs) -> bool:
                execs += [each.time_seconds for each in source.take_events() if each.kind == "exec"]
                return bool(execs)

            read_until(source, has_execed)
            read_until(source, samples_of)


@pytest.mark.parametrize("most_files", [None, 3], ids=["a ring a CPU", "a ring a thread"])
def test_threads_born_meanwhile_are_sampled(program: Path, most_files: int | None) -> None:
    with switching(program) as process, thinned(process.pid, 1 / 16, most_files) as source:
        read_until(source, samples_of)
        known = set(list_threads(process.pid))
        tell(process, "t")
        parts = read_until(source, lambda parts: any(set(part.tid) - known for part in parts))
        (born,) = set(list_threads(process.pid)) - known
        assert born in {tid for part in parts for tid in part.tid.tolist()}


@pytest.mark.parametrize("layout", ["a ring a CPU", "a ring a thread"])
def test_where_descriptors_do_not_suffice_others_are_sampled_each_time(
    program: Path, layout: str
) -> None:
    cpus = len(online_cpus())
    most_files = 3 * cpus if layout == "a ring a CPU" else 2
    before = len(descriptors())
    with switching(program) as process, thinned(process.pid, 1 / 4, most_files) as source:
        before += 2  # its input and output
        known = set(list_threads(process.pid))
        tell(process, "ttt")
        while len(born := set(list_threads(process.pid)) - known) < 3:
            time.sleep(0.01)
        opened = set[int]()

        def are_all_sampled(more: list[BranchSamples]) -> bool:
            opened.add(len(descriptors()))
            return born <= {tid for part in more for tid in part.tid.tolist()}

        read_until(source, are_all_sampled)
        assert "descriptors" in source.notes[-1]
        # The process is held on to, and looked at.
        assert max(opened) <= before + most_files + 4


def test_all_is_as_it_was_when_there_are_few_switches_again(program: Path) -> None:
    with switching(program) as process, TaskClockSource(process.pid) as source:
        opened = len(descriptors())
        events = 2 * len(online_cpus())
        for share in (1 / 2, 1 / 64, 1):
            source.thin(share)
            assert source.share == share
            assert len(sampling_threads()) == (share < 1)
            give_up = time.monotonic() + PATIENCE_SECONDS
            # Each thread's events are closed in pauses; the process is held on to.
            for as_is in (opened + 1, opened + 1 - events, opened + 1) if share < 1 else (opened,):
                while len(descriptors()) != as_is:  # the cycle has one more for a moment
                    assert time.monotonic() < give_up
            parts = read_until(source, samples_of)
            assert parts[-1].period_seconds == source.period_seconds
        assert (parts[-1].weight, source.period_seconds) == (1.0, 0.002)


def test_what_was_sampled_before_is_of_no_on_time(program: Path) -> None:
    """Events whose period stays were open all the time until then."""
    with (
        switching(program) as process,
        TaskClockSource(process.pid, period_seconds=1e-4) as source,
    ):
        read_until(source, lambda parts: samples_of(parts) > 2000)
        source.thin(LEAST_SHARE)
        assert source.period_seconds == 1e-4
        later = time.monotonic() + 0.1

        def is_later(parts: list[BranchSamples]) -> bool:
            return any(len(part) and part.time_seconds[-1] > later for part in parts)

        assert read_until(source, is_later)[-1].weight > 1


@pytest.mark.parametrize("most_files", [None, 3], ids=["a ring a CPU", "a ring a thread"])
def test_the_end_of_the_process_ends_it(program: Path, most_files: int | None) -> None:
    before = descriptors()
    with switching(program) as process, thinned(process.pid, 1 / 32, most_files) as source:
        read_until(source, samples_of)
        process.kill()
        read_until(source, lambda parts: source.ended)
        assert source.take_events() is not None
    assert descriptors() == before
    assert sampling_threads() == []


def test_a_session_says_so_and_records_it(program: Path, tmp_path: Path) -> None:
    config = SessionConfig(branches="timer", own_cpu_share=1e6, budget_share=1e-2)
    path = tmp_path / "recording"
    with switching(program, "a", "b") as process:
        with attached(process.pid, config, OutputConfig(path)) as session:
            give_up = time.monotonic() + PATIENCE_SECONDS

            def windows() -> int:
                snapshot = session.snapshot()
                is_thinned = snapshot.overhead.sampled_share < 1
                return snapshot.estimate.windows if is_thinned else 0

            begin, told = None, {1.0}
            while begin is None or windows() < begin + 1:
                assert time.monotonic() < give_up, session.snapshot()
                begin = begin or windows() or None
                time.sleep(0.05)
                session.step()
                told.add(session.snapshot().overhead.sampled_share)
            overhead = session.snapshot().overhead
            session.finish()
            told.add(session.snapshot().overhead.sampled_share)
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG) is None  # it lives
    assert "switched to" in overhead.sampling_why
    assert overhead.sampling_seconds > 0
    shares = [window.sampled_share for window in read_recording(path).windows]
    assert min(shares) < 1
    assert set(shares) <= told


def test_who_is_sampled_by_ticks_is_sampled_all_the_time(program: Path) -> None:
    config = SessionConfig(own_cpu_share=1e6, budget_share=1e-3)
    with (
        switching(program, "a", "b") as process,
        attached(process.pid, config, OutputConfig()) as session,
    ):
        if session.snapshot().backend["branches"] != TickSource.name:
            pytest.skip("ticks are not to be had here")
        give_up = time.monotonic() + PATIENCE_SECONDS
        while session.snapshot().estimate.windows < 3:
            assert time.monotonic() < give_up, session.snapshot()
            time.sleep(0.05)
            session.step()
        assert session.snapshot().overhead.sampled_share == 1
        assert session.snapshot().overhead.sampling_seconds > 0
        assert sampling_threads() == []
