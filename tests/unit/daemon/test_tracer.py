"""The tracing thread, with a source that says what it is told."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from rowless import rowless_burst
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, TracerThread
from memsampd.errors import CaptureError
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.records import AccessChunk, Burst, BurstCost, BurstRequest

COST = BurstCost(stop_seconds=0.002, stops=2, longest_stop_seconds=0.0015)
ORDER = CaptureOrder({}, 0.0, 1000, 0.003)


class Scripted:
    """A burst for each list of lines, counted in two parts; what is no list is raised."""

    name = "scripted"

    def __init__(self, *script: list[int] | Exception) -> None:
        self.script = list(script)
        self.requests: list[BurstRequest] = []
        self.asked_again: list[int] = []
        self.rest: list[list[int]] = []

    def capture(self, request: BurstRequest) -> Burst:
        raise AssertionError("sessions count")

    def count_lines(
        self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
    ) -> Burst:
        self.requests.append(request)
        act = self.script.pop(0)
        if isinstance(act, Exception):
            raise act
        for part in (act[:2], act[2:]):
            counter.add(np.array(part, np.uint64))
        return burst(len(act))

    def count_rest(self, line_bytes: int, counter: _core.ReuseCounter) -> Burst | None:
        if not self.rest:
            return None
        part = self.rest.pop(0)
        counter.add(np.array(part, np.uint64))
        return replace(burst(len(part)), cost=BurstCost(stops=1))

    def rows_again(self, most: int, choice: LineChoice) -> tuple[NDArray[np.uint32], AccessChunk]:
        self.asked_again.append(most)
        address = np.arange(most, dtype=np.uint64) * np.uint64(64)
        none = np.zeros(most, np.uint16)
        rows = AccessChunk(address, address, none + np.uint16(8), none > 0)
        at = np.flatnonzero(choice.has(address))
        return at.astype(np.uint32), rows.part(at)

    def cancel(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


def burst(accesses: int) -> Burst:
    return rowless_burst(
        time_seconds=1.0,
        instructions=accesses,
        cost=COST,
        accesses=accesses,
        code_ip=np.array([10, 20], np.uint64),
        code_times=np.array([300, 100], np.uint64),
    )


@contextmanager
def tracer_of(source: Scripted) -> Iterator[TracerThread]:
    tracer = TracerThread(os.getpid(), lambda: source, random.Random(1))
    try:
        yield tracer
    finally:
        tracer.close()


def result_of(tracer: TracerThread, order: CaptureOrder = ORDER) -> CaptureResult:
    tracer.order(order)
    give_up = time.monotonic() + PATIENCE_SECONDS
    found: list[CaptureResult] = []
    while not found and time.monotonic() < give_up:
        found = tracer.results()
        time.sleep(0.001)
    (result,) = found
    return result


def test_the_end_of_a_search_is_told_to_its_burst_alone() -> None:
    class Waiting(Scripted):
        def count_lines(
            self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
        ) -> Burst:
            if request.seek_ips:
                started.set()
                assert select.select([request.seek_end], [], [], PATIENCE_SECONDS)[0]
            else:
                assert request.seek_end == -1
            return super().count_lines(request, line_bytes, counter)

    started = threading.Event()
    with tracer_of(Waiting([1], [2], [3])) as tracer:
        for _ in range(2):
            started.clear()
            tracer.end_seeking()  # too soon: for none
            tracer.order(replace(ORDER, seek_ips=(1,), seek_seconds=1.0))
            assert started.wait(PATIENCE_SECONDS)
            assert not tracer.results()
            tracer.end_seeking()
            while not tracer.results():
                time.sleep(0.001)
        assert result_of(tracer).error is None


def test_each_burst_is_counted_by_itself() -> None:
    source = Scripted([1, 1, 1], [2, 3, 2, 3])
    with tracer_of(source) as tracer:
        results = [result_of(tracer), result_of(tracer)]
    assert [request.tid for request in source.requests] == [os.getpid()] * 2
    assert source.requests[0] == BurstRequest(os.getpid(), 1000, 0.003)
    assert [(result.error, result.cost) for result in results] == [(None, COST)] * 2
    counted = [result.counted for result in results]
    assert [each.histogram.accesses for each in counted if each is not None] == [3, 4]


def test_parts_are_counted_each_by_itself_at_the_cost_of_the_first() -> None:
    source = Scripted([1, 2, 1, 2], [3])
    source.rest = [[1, 1], [5, 6, 5]]
    with tracer_of(source) as tracer:
        counted = result_of(tracer).counted
        assert counted is not None
        other = result_of(tracer).counted
    assert other is not None
    assert not other.rest
    parts = counted.parts
    assert [int(part.histogram.reuses.sum()) for part in parts] == [2, 1, 1]
    assert [part.burst.cost.stops for part in parts] == [COST.stops, 0, 0]
    assert [len(part.code_ips) > 0 for part in parts] == [True] * 3


def test_a_few_instructions_stand_for_all() -> None:
    with tracer_of(Scripted([1, 2])) as tracer:
        counted = result_of(tracer).counted
    assert counted is not None
    assert len(counted.burst.code_ip) == 0
    found, times = np.unique(counted.code_ips, return_counts=True)
    assert (found.tolist(), times.tolist()) == ([10, 20], [768, 256])


def test_open_lines_are_told_where_they_are_asked_for() -> None:
    many = list(range(20_000))
    source = Scripted(many, many, [1, 2, 3], many)
    asking = replace(ORDER, open_lines=8)
    orders = (ORDER, asking, asking, replace(asking, open_accesses=19_999))
    with tracer_of(source) as tracer:
        told = [result_of(tracer, order).counted for order in orders]
    first, second, third, fourth = (each.open_lines for each in told if each is not None)
    assert first == third == fourth == ()  # nobody asked; it is too short, or too long
    assert source.asked_again == [20_000]
    assert len(second) == 8
    for line in second:
        assert line.least_accesses == 10_000
        assert line.words[0] >> 6 < 10_000
        assert line.touched == 1


REFUSED = BurstCost(stop_seconds=0.25, stops=1, replica_cpu_seconds=0.125)


def asleep_again() -> CaptureError:
    return CaptureError("not-running", "it sleeps", cost=REFUSED)


@pytest.mark.usefixtures("perf_events")
def test_a_thread_that_sleeps_again_is_waited_for_once_more() -> None:
    with tracer_of(Scripted(asleep_again(), asleep_again(), [1, 2])) as tracer:
        result = result_of(tracer, replace(ORDER, patience_seconds=1000.0))
    assert result.counted is not None
    assert result.cost.stop_seconds == COST.stop_seconds + 0.5
    assert result.cost.replica_cpu_seconds == COST.replica_cpu_seconds + 0.25


def test_tries_have_an_end() -> None:
    source = Scripted(*[asleep_again() for _ in range(100)])
    with tracer_of(source) as tracer:
        result = result_of(tracer, replace(ORDER, patience_seconds=1000.0))
    assert result.error is not None
    assert result.error.reason == "not-running"
    assert result.cost.stop_seconds == 0.25 * len(source.requests)
    assert result.cost.replica_cpu_seconds == 0.125 * len(source.requests)


def test_a_refusal_has_its_cost() -> None:
    refusal = CaptureError("not-running", "it sleeps", cost=REFUSED)
    with tracer_of(Scripted(refusal)) as tracer:
        result = result_of(tracer)
    assert (result.counted, result.error) == (None, refusal)
    assert result.cost == REFUSED


def test_whatever_goes_wrong_is_told_and_the_thread_lives_on() -> None:
    source = Scripted(ValueError("x"), OSError(5, "x"), [1])
    with tracer_of(source) as tracer:
        errors = [result_of(tracer).error for _ in range(2)]
        assert [error.reason for error in errors if error is not None] == ["internal", "failed"]
        assert result_of(tracer).counted is not None
