"""What every source of the sampler must do, whichever backend stands behind it."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing

import numpy as np
import pytest
from needed import kernel_ticks
from tracees import descriptors, patiently, running
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.branches import MappedBranches
from memsampd.errors import CaptureError
from memsampd.machines.pmu import HardwareEvent
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.lines import line_stream
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.sampler.clock.counters import CounterClock
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.perf.counts import CounterSet
from memsampd.sampler.perf.groups import TASK_CLOCK
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.ticks import TickSource
from memsampd.sampler.pmu.branches import PmuBranchSource
from memsampd.sampler.process.memory import CodeReader
from memsampd.sampler.protocols import AccessClock, AccessSource, BranchSource
from memsampd.sampler.rates import Stretch
from memsampd.sampler.records import AccessChunk, Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from memsampd.sampler.walk.source import WalkSource

BUSY = "print('ready', flush=True)\nwhile True: d = {i: str(i) for i in range(999)}"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", BUSY) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def mapped(pid: int) -> BranchSource:
    return MappedBranches(pid, TaskClockSource(pid), BranchMaps(lambda p: BranchMap(CodeReader(p))))


def counted(pid: int) -> BranchSource:
    """A source with counters; software events stand in for those of a PMU."""
    return TaskClockSource(pid, counters=CounterSet(((TASK_CLOCK, FAULTS, SWITCHES, TASK_CLOCK),)))


def by_events(pid: int) -> BranchSource:
    """The source of a PMU's branches, driven by nanoseconds of CPU time instead."""
    return PmuBranchSource(pid, [TASK_CLOCK], period=2_000_000)


def by_ticks(pid: int) -> BranchSource:
    """The source of the kernel's ticks, where these can be had."""
    ticks = kernel_ticks()
    ticks.close()
    return TickSource(pid, ticks, period_seconds=ticks.seconds)


FAULTS = HardwareEvent("page faults", _core.PERF_TYPE_SOFTWARE, 2)
SWITCHES = HardwareEvent("context switches", _core.PERF_TYPE_SOFTWARE, 3)
BRANCH_SOURCES: dict[str, Callable[[int], BranchSource]] = {
    "task-clock": TaskClockSource,
    "mapped": mapped,
    "counted": counted,
    "pmu": by_events,
    "ticks": by_ticks,
}
ACCESS_SOURCES: dict[str, Callable[[int], AccessSource]] = {
    "replica": ReplicaSource,
    "walks": lambda pid: WalkSource(pid, random.Random(1)),
}
STOPPING = {"replica"}
CLOCKS: dict[str, Callable[[], AccessClock]] = {
    "registers": ProgressClock,
    "counters": CounterClock,
}


@pytest.mark.parametrize("name", BRANCH_SOURCES)
def test_branch_sources(name: str, busy: subprocess.Popen[str]) -> None:
    with closing(BRANCH_SOURCES[name](busy.pid)) as source:
        assert isinstance(source, BranchSource)
        found = [source.read(0.2)]
        give_up = time.monotonic() + PATIENCE_SECONDS
        while sum(map(len, found)) < 6:
            assert time.monotonic() < give_up
            found.append(source.read(0.2))
        assert np.all(np.diff(np.concatenate([samples.time_seconds for samples in found])) >= 0)
        assert all(samples.period_seconds == source.period_seconds for samples in found)
        assert {int(pid) for samples in found for pid in samples.pid} == {busy.pid}
        busy.kill()
        busy.wait()
        source.read(0.2)
        assert len(source.read(0.05)) == 0
        source.close()


def closed(source: AccessSource) -> AbstractContextManager[AccessSource]:
    """It is closed after the body, whatever happens."""
    assert isinstance(source, AccessSource)
    return closing(source)


def whole(capture: Callable[[], Burst]) -> Burst:
    """A burst that was not cut short: the program makes calls now and then."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while (burst := patiently(capture)).end is not BurstEnd.FULL:
        assert time.monotonic() < give_up, burst.end
    return burst


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources_give_rows(name: str, busy: subprocess.Popen[str]) -> None:
    request = BurstRequest(busy.pid, 2000, 1.0)
    with closed(ACCESS_SOURCES[name](busy.pid)) as source:
        burst = whole(lambda: source.capture(request))
    columns = (burst.ip, burst.address, burst.size_bytes, burst.is_write)
    assert [column.dtype for column in columns] == [np.uint64, np.uint64, np.uint16, np.bool_]
    assert {len(column) for column in columns} == {len(burst)} == {burst.accesses}
    assert 2000 <= len(burst) < 2100  # a last instruction may have several
    assert (burst.pid, burst.tid) == (busy.pid, busy.pid)
    # One that repeats itself makes as many accesses, and has not ended then.
    assert burst.instructions > 0 or len(np.unique(burst.ip)) == 1
    assert (burst.cost.stops >= 1) == (name in STOPPING)
    assert (burst.cost.stop_seconds > 0) == (name in STOPPING)


def test_replicas_hand_rows_over(busy: subprocess.Popen[str]) -> None:
    chunks: list[AccessChunk] = []

    def stream() -> Burst:
        chunks.clear()
        return source.stream(BurstRequest(busy.pid, 2000, 1.0), chunks.append)

    with closing(ReplicaSource(busy.pid)) as source:
        streamed = whole(stream)
    assert len(streamed) == 0
    assert sum(len(chunk.ip) for chunk in chunks) == streamed.accesses >= 2000


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources_count_lines(name: str, busy: subprocess.Popen[str]) -> None:
    counters: list[_core.ReuseCounter] = []

    def capture() -> Burst:
        counters.append(_core.ReuseCounter())
        counters[-1].begin()
        return source.count_lines(BurstRequest(busy.pid, 2000, 1.0), 64, counters[-1])

    with closed(ACCESS_SOURCES[name](busy.pid)) as source:
        every, half = LineChoice(64), LineChoice.of(0.5, 64, random.Random(1))
        assert len(source.rows_again(100, every)[0]) == 0  # there was no burst yet
        burst = whole(capture)
        (all_at, rows), (few_at, few) = (
            source.rows_again(most, every) for most in (burst.accesses, 100)
        )
        half_at, chosen = source.rows_again(burst.accesses, half)
    assert len(source.rows_again(100, every)[0]) == 0
    assert np.array_equal(all_at, np.arange(len(rows)))
    assert np.array_equal(few_at, np.arange(len(few)))
    assert np.array_equal(half_at, np.flatnonzero(half.has(rows.address)))
    for column in ("ip", "address", "size_bytes", "is_write"):
        assert np.array_equal(getattr(chosen, column), getattr(rows, column)[half_at])
    assert len(burst) == 0
    assert 0.95 * burst.accesses <= len(rows) <= burst.accesses
    assert 100 <= len(few) < 200
    assert np.array_equal(few.address, rows.address[: len(few)])
    lines = line_stream(rows.address, rows.size_bytes)
    if len(rows) == burst.accesses:
        assert ReuseHistogram.from_lines(lines) == ReuseHistogram.from_counter(counters[-1])
    # An access to two lines is counted twice.
    counted = ReuseHistogram.from_counter(counters[-1])
    assert 2000 <= burst.accesses <= counted.accesses <= 2 * burst.accesses
    assert (burst.cost.stops >= 1) == (name in STOPPING)


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources_can_be_cancelled(name: str, busy: subprocess.Popen[str]) -> None:
    request = BurstRequest(busy.pid, 10**9, max_stop_seconds=1.0)

    def capture() -> Burst:
        return source.count_lines(request, 64, _core.ReuseCounter())

    with closed(ACCESS_SOURCES[name](busy.pid)) as source:
        cancelling = threading.Timer(0.1, source.cancel)
        cancelling.start()
        give_up = time.monotonic() + PATIENCE_SECONDS
        while patiently(capture).end is not BurstEnd.DEADLINE:
            assert time.monotonic() < give_up
        cancelling.join()  # that one may have come to its own deadline
        for _ in range(3):  # and so does each later one
            later = patiently(capture)
            assert later.end in (BurstEnd.DEADLINE, BurstEnd.COLD)


@pytest.mark.parametrize("name", ACCESS_SOURCES)
def test_access_sources_outlive_their_target(name: str, busy: subprocess.Popen[str]) -> None:
    before = descriptors()
    with closed(ACCESS_SOURCES[name](busy.pid)) as source:
        for _ in range(3):
            patiently(lambda: source.capture(BurstRequest(busy.pid, 200)))
        busy.kill()
        busy.wait()
        with pytest.raises(CaptureError) as caught:
            source.capture(BurstRequest(busy.pid, 2000))
        assert caught.value.reason == "gone"
        source.close()
    assert descriptors() == before


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks(name: str) -> None:
    clock = CLOCKS[name]()
    assert isinstance(clock, AccessClock)
    assert clock.name
    here = np.array([64, 64], np.uint64)
    nothing = Stretch(
        1.0,
        1,
        np.array([0.0, 10.0]),
        np.zeros((2, 16), np.uint64),
        here,
        here,
    )
    assert clock.measure(nothing) is None  # it was told nothing
    assert clock.rates(0.0, 2.0) == ()
    assert clock.speed(0.0, 2.0) is None
