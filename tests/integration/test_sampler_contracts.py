"""What every source of the sampler must do, whichever backend stands behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd import _core
from memsampd.daemon.attach import MappedBranches, code_reader
from memsampd.errors import CaptureError
from memsampd.models.counting import LineCounter
from memsampd.models.lines import line_stream
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.sampler.native_clock import NativeTwinClock
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.protocols import AccessClock, AccessSource, BranchSource
from memsampd.sampler.records import BurstEnd, BurstRequest, LineChunk
from memsampd.sampler.shadow.collectors import Counted, Lines
from memsampd.sampler.shadow.executors import ShadowExecutor
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from memsampd.sampler.shadow.translating import TranslatingExecutor
from memsampd.sampler.unknown_clock import UnknownClock

BUSY = "print('ready', flush=True)\nwhile True: d = {i: str(i) for i in range(999)}"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def mapped(pid: int) -> BranchSource:
    return MappedBranches(TaskClockSource(pid), BranchMaps(lambda p: BranchMap(code_reader(p))))


BRANCH_SOURCES: dict[str, Callable[[int], BranchSource]] = {
    "task-clock": TaskClockSource,
    "mapped": mapped,
}
ACCESS_SOURCES: dict[str, Callable[[int], AccessSource]] = {
    "shadow-step": lambda pid: ShadowSource(pid, SteppingExecutor()),
    "shadow-translate": lambda pid: ShadowSource(pid, TranslatingExecutor()),
}
CLOCKS: dict[str, Callable[[], AccessClock]] = {
    "unknown": UnknownClock,
    "native-twin": NativeTwinClock,
}


@pytest.mark.parametrize("name", BRANCH_SOURCES)
def test_branch_sources(name: str, busy: subprocess.Popen[str]) -> None:
    source = BRANCH_SOURCES[name](busy.pid)
    assert isinstance(source, BranchSource)
    found = [source.read(0.2) for _ in range(5)]
    times = np.concatenate([samples.time_seconds for samples in found])
    assert len(times) > 5
    assert np.all(np.diff(times) >= 0)
    assert all(samples.period_seconds == source.period_seconds for samples in found)
    assert {int(pid) for samples in found for pid in samples.pid} == {busy.pid}
    busy.kill()
    busy.wait()
    source.read(0.2)
    assert len(source.read(0.05)) == 0
    source.close()
    source.close()


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources(name: str, busy: subprocess.Popen[str]) -> None:
    source = ACCESS_SOURCES[name](busy.pid)
    assert isinstance(source, AccessSource)
    burst = source.capture(BurstRequest(busy.pid, 2000))
    columns = (burst.ip, burst.address, burst.size_bytes, burst.is_write)
    assert [column.dtype for column in columns] == [np.uint64, np.uint64, np.uint16, np.bool_]
    assert {len(column) for column in columns} == {len(burst)}
    assert burst.end is not BurstEnd.FULL or len(burst) >= 2000
    assert (burst.pid, burst.tid) == (busy.pid, busy.pid)
    assert burst.instructions > 0 or len(np.unique(burst.ip)) == 1  # in one with rep
    assert burst.cost.stops >= 1
    assert burst.cost.stop_seconds > 0

    lines: list[int] = []
    request = BurstRequest(busy.pid, 2000, gaps_seconds=(0.001, 0.001))
    moments = list(source.stream_moments(request, 64, lambda chunk: lines.append(len(chunk))))
    assert 1 <= len(moments) <= 3
    for without_rows in moments:
        assert without_rows.end is not BurstEnd.FULL or without_rows.accesses >= 2000
        assert len(without_rows) == 0
    assert sum(lines) >= sum(moment.accesses for moment in moments)
    assert moments[0].cost.stops >= 1

    threading.Timer(0.3, source.cancel).start()
    long = source.capture(BurstRequest(busy.pid, 10**8, deadline_seconds=60))
    assert long.end in (BurstEnd.DEADLINE, BurstEnd.SYSCALL)

    busy.kill()
    busy.wait()
    with pytest.raises(CaptureError):
        source.capture(BurstRequest(busy.pid, 2000))
    source.close()
    source.close()


@pytest.mark.parametrize("executor", [SteppingExecutor(), TranslatingExecutor()])
@pytest.mark.parametrize("line_bytes", [2, 16, 64, 4096])
def test_lines_are_those_of_the_rows(
    executor: ShadowExecutor, line_bytes: int, busy: subprocess.Popen[str]
) -> None:
    snapshots = Snapshots(busy.pid)
    seen: list[LineChunk] = []
    by_line = Lines(line_bytes, lambda chunk: seen.append(replace(chunk, runs=chunk.runs.copy())))
    shadows: tuple[Shadow, ...] = ()
    try:
        shadows = snapshots.take(busy.pid, 2, 5.0).shadows
        found = executor.run(shadows[0], 150_000 if executor.name == "translate" else 3000, 60.0)
        other = executor.run(shadows[1], found.accesses, 60.0, by_line)
    finally:
        for shadow in shadows:
            snapshots.end(shadow)
        snapshots.close()
    assert (other.accesses, other.instructions) == (found.accesses, found.instructions)
    assert len(other.rows) == 0
    expected = line_stream(found.rows.address, found.rows.size_bytes, line_bytes)
    np.testing.assert_array_equal(np.concatenate([chunk.line for chunk in seen]), expected)
    assert by_line.accesses == len(expected)
    assert sum(chunk.writes for chunk in seen) == np.count_nonzero(found.rows.is_write)
    assert sum(chunk.rows for chunk in seen) == found.accesses


@pytest.mark.parametrize("use_vectors", [False, True])
@pytest.mark.parametrize("line_bytes", [4, 64, 1024])
def test_lines_are_counted_as_they_are_handed_over(
    use_vectors: bool, line_bytes: int, busy: subprocess.Popen[str]
) -> None:
    executor, counter, handed = TranslatingExecutor(), LineCounter(), LineCounter()
    snapshots = Snapshots(busy.pid)
    shadows: tuple[Shadow, ...] = ()
    seen: list[NDArray[np.uint64]] = []
    counted = Counted(line_bytes, counter.core)
    _core.use_vectors(use_vectors)
    try:
        shadows = snapshots.take(busy.pid, 3, 5.0).shadows
        rows = executor.run(shadows[0], 150_000, 60.0).rows
        by_line = Lines(line_bytes, lambda chunk: seen.append(chunk.line))
        executor.run(shadows[1], len(rows), 60.0, by_line)
        executor.run(shadows[2], len(rows), 60.0, counted)
    finally:
        _core.use_vectors(True)
        for shadow in shadows:
            snapshots.end(shadow)
        snapshots.close()
    lines = line_stream(rows.address, rows.size_bytes, line_bytes)
    np.testing.assert_array_equal(np.concatenate(seen), lines)
    handed.add(lines)
    assert counter.histogram() == handed.histogram()
    assert (counted.rows, counted.accesses) == (len(rows), len(lines))
    assert counted.writes == np.count_nonzero(rows.is_write)
    assert (counted.instructions, counted.prefetches) == (by_line.instructions, by_line.prefetches)


def test_visits_tell_how_often_instructions_ran(busy: subprocess.Popen[str]) -> None:
    """As often as they show in the rows, if not masked, each at most 4 times; one may be cut."""
    executor, snapshots = TranslatingExecutor(), Snapshots(busy.pid)
    shadows: tuple[Shadow, ...] = ()
    try:
        shadows = snapshots.take(busy.pid, 1, 5.0).shadows
        seen = executor.run(shadows[0], 150_000, 60.0, None, 1)
    finally:
        for shadow in shadows:
            snapshots.end(shadow)
        snapshots.close()
    ips, references = np.unique(seen.rows.ip, return_counts=True)
    times = np.array([seen.code_times[seen.code_ip == ip].sum() for ip in ips])
    assert np.mean(times <= references + 1) > 0.9
    assert np.all(4 * times >= references)
    assert seen.code_times.sum() >= seen.instructions


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources_leave_no_descriptors(name: str, busy: subprocess.Popen[str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = ACCESS_SOURCES[name](busy.pid)
    for _ in range(3):
        source.capture(BurstRequest(busy.pid, 200))
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks(name: str) -> None:
    clock = CLOCKS[name]()
    assert isinstance(clock, AccessClock)
    rate = clock.measure([])
    assert rate.accesses_per_cpu_second is None
    assert rate.method
