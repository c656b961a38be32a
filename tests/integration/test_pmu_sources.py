"""Sources of a PMU, driven by events that every kernel has: task clock, faults, breakpoints."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tracees import descriptors, go_on, running, tries

from memsampd import _core
from memsampd.daemon.sampled_lines import SampledLines
from memsampd.exporters.snapshot import AddressTally
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.clock.counters import CounterClock
from memsampd.sampler.perf.counts import CounterSet
from memsampd.sampler.perf.groups import TASK_CLOCK
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.perf.source import COUNTED_RECORD_BYTES, TaskClockSource
from memsampd.sampler.pmu.addresses import AccessSampler, SampledAccesses
from memsampd.sampler.pmu.branches import PmuBranchSource
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.records import BranchSamples

FAULTS = HardwareEvent("page faults", _core.PERF_TYPE_SOFTWARE, 2)
PERIOD = 1_000_000  # ns of CPU time
TRIES = 20
PAGE = 4096

WORKING = """
import sys, threading
def work():
    for _ in range(60): sum(i * i for i in range(20000))
print("ready", flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
WORKER = """
import sys, threading
def work():
    while True: sum(i * i for i in range(20000))
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""
TOUCHING = """
import ctypes, mmap, sys
area = mmap.mmap(-1, 256 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
print(ctypes.addressof(ctypes.c_char.from_buffer(area)), flush=True)
sys.stdin.readline()
for page in range(256): area[page * 4096 + 8] = 1
print("done", flush=True)
sys.stdin.readline()
"""


def stores_to(address: int) -> HardwareEvent:
    """Each store to 8 bytes: delivers instruction and address, as a PMU's sample does."""
    return HardwareEvent("stores", _core.PERF_TYPE_BREAKPOINT, 0, address, 8, bp_type=2)


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    with running(sys.executable, "-c", code) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def until(is_enough: Callable[[], bool]) -> None:
    any(is_enough() for _ in tries())


@pytest.mark.parametrize("most_files", [None, 8], ids=["inherited", "each-thread"])
def test_samples_stand_for_all_cpu_time(most_files: int | None) -> None:
    """However long the periods are that were drawn, and in whichever way threads are followed."""
    shares = []
    for _ in range(TRIES):
        with program(WORKING) as process:
            line(process)
            start_ns = process_cpu_ns(process.pid)
            source = PmuBranchSource(
                process.pid, [TASK_CLOCK], period=PERIOD, most_files=most_files
            )
            go_on(process)
            parts = [source.read(0.1)]
            while not source.ended:
                parts.append(source.read(0.1))
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            used = (process_cpu_ns(process.pid) - start_ns) * 1e-9
            source.close()
        assert all(part.cpu_seconds is not None for part in parts)
        told = sum(float(part.cpu_seconds.sum()) for part in parts if part.cpu_seconds is not None)
        shares.append(told / used)
        # What the host steals from a guest's CPU meanwhile is in samples, and in no CPU time.
        if 0.8 < shares[-1] < 1.02:
            return
    pytest.fail(f"samples never stood for the CPU time: {shares}")


def test_a_ring_has_room_for_samples_that_come_twice_as_often_as_they_should() -> None:
    """So far off a period may be for good."""
    with (
        busy_child() as child,
        PmuBranchSource(
            child.pid, [TASK_CLOCK], period_seconds=PERIOD * 1e-9, period=PERIOD
        ) as one,
    ):
        assert 0 < 2 * one.ring_samples * COUNTED_RECORD_BYTES <= one._stream.ring_bytes


@pytest.mark.parametrize("first", [50 * PERIOD, PERIOD // 30], ids=["too-long", "too-short"])
def test_the_period_follows_the_program(first: int) -> None:
    """Events (here nanoseconds) come at any rate; samples come about as often as was asked for."""
    with (
        busy_child() as child,
        PmuBranchSource(child.pid, [TASK_CLOCK], period_seconds=PERIOD * 1e-9, period=first) as one,
    ):
        assert one._periods.mean == first

        def is_near() -> bool:
            one.read(0.1)
            return PERIOD / 3 < one._periods.mean < PERIOD * 3

        until(is_near)


@pytest.mark.parametrize("first", [50 * PERIOD, PERIOD // 30], ids=["too-long", "too-short"])
def test_the_period_follows_threads_that_inherited_theirs(first: int) -> None:
    """Their events are not reached: the mean period would go to its limit, and they keep theirs."""
    with (
        program(WORKER) as process,
        PmuBranchSource(
            process.pid, [TASK_CLOCK], period_seconds=PERIOD * 1e-9, period=first
        ) as one,
    ):
        line(process)
        go_on(process)

        def apart_ns() -> float:
            parts = read_some(one, 100)
            seconds = sum(
                float(part.cpu_seconds.sum()) for part in parts if part.cpu_seconds is not None
            )
            return 1e9 * seconds / sum(map(len, parts))

        until(lambda: PERIOD / 3 < apart_ns() < PERIOD * 3)
        for _ in range(5):
            apart_ns()
        assert PERIOD / 3 < one._periods.mean < PERIOD * 3


def read_some(source: TaskClockSource | PmuBranchSource, many: int) -> list[BranchSamples]:
    parts: list[BranchSamples] = []

    def is_enough() -> bool:
        parts.append(source.read(0.1))
        return sum(map(len, parts)) >= many

    until(is_enough)
    return parts


def sources(counters: CounterSet, pid: int) -> Sequence[TaskClockSource | PmuBranchSource]:
    return (
        TaskClockSource(pid, period_seconds=PERIOD * 1e-9, counters=counters),
        PmuBranchSource(pid, [TASK_CLOCK], period=PERIOD, counters=counters),
    )


@pytest.mark.parametrize("which", [0, 1], ids=["timer", "pmu"])
def test_counters_are_read_at_each_sample(which: int) -> None:
    """A clock of nanoseconds has a known rate, and the child counts its own accesses."""
    with busy_child() as child:
        word = stores_to(child.word_address)
        counters = CounterSet(((word, FAULTS, TASK_CLOCK, TASK_CLOCK),))
        before = read_word(child.pid, child.word_address)
        for source in sources(counters, child.pid)[which : which + 1]:
            clock = CounterClock()
            parts = read_some(source, 200)
            os.kill(child.pid, signal.SIGSTOP)
            after = read_word(child.pid, child.word_address)
            source.close()
            for part in parts:
                clock.add(part)
            counted = [part.counted for part in parts if part.counted is not None]
            accesses = sum(each.accesses.sum() for each in counted)
            # Each increment stores the word once; a hypervisor may tell a hit twice.
            assert 0 < accesses <= 1.1 * (after - before)
            speed = clock.speed(0.0, np.inf)
            assert speed is not None
            assert speed.instructions_per_cpu_second == pytest.approx(1e9, rel=0.02)
            assert speed.cycles_per_instruction == pytest.approx(1.0, rel=0.01)
            assert accesses == pytest.approx(
                speed.accesses_per_cpu_second * speed.cpu_seconds, rel=1e-6
            )
            assert source.notes == ()  # nobody else had the counters


@pytest.mark.parametrize("which", [0, 1], ids=["timer", "pmu"])
def test_counters_begin_at_once(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to open one after the other while the target goes on."""
    open_event = _core.perf_open_sampler

    def open_slowly(*args: int, **options: Any) -> int:
        opened = open_event(*args, **options)
        time.sleep(0.02)
        return opened

    with busy_child() as child:
        counters = CounterSet(((TASK_CLOCK, FAULTS, TASK_CLOCK, TASK_CLOCK),))
        monkeypatch.setattr(_core, "perf_open_sampler", open_slowly)
        for source in sources(counters, child.pid)[which : which + 1]:
            monkeypatch.undo()
            counted = read_some(source, 1)[-1].counted
            source.close()
            assert counted is not None
            # Read one after the other in the sample: the host may hold up this CPU in between.
            assert counted.accesses[0] == pytest.approx(counted.cycles[0], abs=1e7)
            assert counted.seconds[0] * 1e9 == pytest.approx(counted.cycles[0], abs=1e7)


def read_word(pid: int, address: int) -> int:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return int.from_bytes(memory.read(8), "little")


def test_addresses_of_accesses() -> None:
    """Hits of a breakpoint: all of one word, all in one program, in order."""
    before = descriptors()
    with (
        busy_child() as child,
        AccessSampler(child.pid, [stores_to(child.word_address)], 100) as sampler,
    ):
        parts: list[SampledAccesses] = []

        def is_enough() -> bool:
            parts.append(sampler.read(0.1))
            return sum(map(len, parts)) >= 50

        until(is_enough)
        found = [part for part in parts if len(part)]
        assert {int(tid) for part in found for tid in part.tid} == {child.pid}
        assert {int(each) for part in found for each in part.address} == {child.word_address}
        times = np.concatenate([part.time_seconds for part in found])
        assert (np.diff(times) >= 0).all()
        assert sum(part.invalid for part in parts) == 0
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: sampler.read(0.1) is not None and sampler._stream.ended)
    assert descriptors() == before


def test_addresses_of_every_event() -> None:
    """Each page of an area that is touched for the first time is told, and once."""
    with program(TOUCHING) as process:
        start = int(line(process))
        with AccessSampler(process.pid, [FAULTS], 1) as sampler:
            go_on(process)
            assert line(process) == "done\n"
            found = [sampler.read(0.1), sampler.read(0.1)]
            address = np.concatenate([part.address for part in found])
            mine = address[(address >= start) & (address < start + 256 * PAGE)]
            assert (mine == start + np.arange(256, dtype=np.uint64) * PAGE + 8).all()
            assert sum(part.lost for part in found) == 0


def tally_until(
    sampler: AccessSampler, is_enough: Callable[[AddressTally], bool], pause_seconds: float = 0.0
) -> AddressTally:
    """What a session counts, reading as seldom as this."""
    lines, tally = SampledLines(sampler, 64, random.Random(1)), AddressTally()

    def has_enough() -> bool:
        nonlocal tally
        time.sleep(pause_seconds)
        tally += lines.take()[1]
        return is_enough(tally)

    until(has_enough)
    return tally


def test_sampled_accesses_that_are_lost_are_counted() -> None:
    """Each store is sampled, and the ring is read when it has long been full."""
    with (
        busy_child() as child,
        AccessSampler(child.pid, [stores_to(child.word_address)], 1) as sampler,
    ):
        tally = tally_until(sampler, lambda tally: tally.lost > 0 and tally.samples > 0, 0.3)
        assert tally.invalid == 0


def test_samples_without_an_address_are_counted() -> None:
    with busy_child() as child, AccessSampler(child.pid, [TASK_CLOCK], PERIOD) as sampler:
        tally = tally_until(sampler, lambda tally: tally.invalid >= 20)
        assert tally.samples == 0
