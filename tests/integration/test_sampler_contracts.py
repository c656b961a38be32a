"""What every source of the sampler must do, whichever backend stands behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from memsampd.daemon.attach import MappedBranches, code_reader
from memsampd.errors import CaptureError
from memsampd.models.counting import LineCounter
from memsampd.phases.branchmap import BranchMap, BranchMaps
from memsampd.sampler.burst_clock import BurstClock
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.protocols import AccessClock, AccessSource, BranchSource
from memsampd.sampler.records import BurstEnd, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

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
    return MappedBranches(
        pid, TaskClockSource(pid), BranchMaps(lambda p: BranchMap(code_reader(p)))
    )


BRANCH_SOURCES: dict[str, Callable[[int], BranchSource]] = {
    "task-clock": TaskClockSource,
    "mapped": mapped,
}
ACCESS_SOURCES: dict[str, Callable[[int], AccessSource]] = {
    "replica": ReplicaSource,
}
CLOCKS: dict[str, Callable[[], AccessClock]] = {
    "in-target": BurstClock,
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
    assert len(burst) > 0
    assert (burst.pid, burst.tid) == (busy.pid, busy.pid)
    assert burst.instructions > 0 or len(np.unique(burst.ip)) == 1  # in one with rep
    assert burst.cost.stops >= 1
    assert burst.cost.stop_seconds > 0

    counter = LineCounter()
    counter.begin()
    without_rows = source.count_lines(BurstRequest(busy.pid, 2000), 64, counter.core)
    assert without_rows.accesses > 0
    assert len(without_rows) == 0
    assert counter.histogram().accesses >= without_rows.accesses
    assert without_rows.cost.stops >= 1

    threading.Timer(0.1, source.cancel).start()
    request = BurstRequest(busy.pid, 10**9, max_stop_seconds=1.0)
    while source.stream(request, lambda chunk: None).end is not BurstEnd.DEADLINE:
        pass
    assert source.stream(request, lambda chunk: None).end is BurstEnd.DEADLINE

    busy.kill()
    busy.wait()
    with pytest.raises(CaptureError):
        source.capture(BurstRequest(busy.pid, 2000))
    source.close()
    source.close()


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
