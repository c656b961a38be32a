"""The tracing thread, with a source that says what it is told."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np

from memsampd.daemon.tracer import CaptureOrder, CaptureResult, TracerThread
from memsampd.errors import CaptureError
from memsampd.sampler.records import (
    AccessChunk,
    Burst,
    BurstCost,
    BurstEnd,
    BurstRequest,
    LineChunk,
)

AT_THE_END = BurstCost(stop_seconds=0.001, stops=1)


class Scripted:
    """One burst for each list of lines; what is no list is raised."""

    name = "scripted"

    def __init__(self, script: list[list[int] | Exception]) -> None:
        self.script = script
        self.requests: list[BurstRequest] = []
        self.closed_generators = 0

    def capture(self, request: BurstRequest) -> Burst:
        raise AssertionError("sessions stream")

    def stream(self, request: BurstRequest, consume: Callable[[AccessChunk], None]) -> Burst:
        raise AssertionError("sessions want lines")

    def stream_moments(
        self, request: BurstRequest, line_bytes: int, consume: Callable[[LineChunk], None]
    ) -> Generator[Burst, None, BurstCost]:
        self.requests.append(request)
        try:
            for number, act in enumerate(self.script):
                if isinstance(act, Exception):
                    raise act
                consume(LineChunk(np.array(act, np.uint64), len(act), len(act), 1))
                yield burst(len(act), 0.1 * number)
            return AT_THE_END
        finally:
            self.closed_generators += 1

    def cancel(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


def burst(accesses: int, ahead_seconds: float) -> Burst:
    none = np.empty(0, np.uint64)
    return Burst(
        ip=none,
        address=none,
        size_bytes=none.astype(np.uint16),
        is_write=none.astype(np.bool_),
        pid=1,
        tid=1,
        time_seconds=1.0,
        instructions=accesses,
        prefetches=0,
        end=BurstEnd.FULL,
        accesses=accesses,
        ahead_seconds=ahead_seconds,
    )


@contextmanager
def tracer_of(source: Scripted) -> Iterator[TracerThread]:
    tracer = TracerThread(os.getpid(), lambda: source, random.Random(1))
    try:
        yield tracer
    finally:
        tracer.close()


def results_of(source: Scripted, gaps_seconds: tuple[float, ...] = ()) -> list[CaptureResult]:
    order = CaptureOrder({}, 0.0, 1000, 5.0, gaps_seconds=gaps_seconds)
    found: list[CaptureResult] = []
    with tracer_of(source) as tracer:
        tracer.order(order)
        give_up = time.monotonic() + 30
        while tracer.is_busy and time.monotonic() < give_up:
            found += tracer.results()
            time.sleep(0.001)
        assert not tracer.is_busy
    return found


def test_each_moment_is_counted_by_itself() -> None:
    source = Scripted([[1, 1, 1], [2, 3, 2, 3], [4]])
    found = results_of(source, (0.01, 0.02))
    assert tuple(source.requests[0].gaps_seconds) == (0.01, 0.02)
    assert [result.is_first for result in found] == [True, False, False, False]
    assert [result.is_last for result in found] == [False, False, False, True]
    assert (found[-1].counted, found[-1].error, found[-1].cost) == (None, None, AT_THE_END)
    counted = [result.counted for result in found]
    assert [each.histogram.accesses for each in counted if each is not None] == [3, 4, 1]
    assert [each.writes for each in counted if each is not None] == [1, 1, 1]
    assert source.closed_generators == 1


def test_a_failure_on_the_way_ends_the_order() -> None:
    found = results_of(Scripted([[1, 2], CaptureError("lost", "gone")]))
    assert [result.is_last for result in found] == [False, True]
    assert found[0].counted is not None
    assert found[1].error is not None
    assert found[1].error.reason == "lost"


def test_whatever_goes_wrong_is_told_and_the_thread_lives_on() -> None:
    for cause, reason in ((ValueError("x"), "internal"), (OSError(5, "x"), "failed")):
        source = Scripted([cause])
        with tracer_of(source) as tracer:
            for _ in range(2):
                tracer.order(CaptureOrder({}, 0.0, 1000, 5.0))
                give_up = time.monotonic() + 30
                found: list[CaptureResult] = []
                while not found and time.monotonic() < give_up:
                    found = tracer.results()
                assert found[0].error is not None
                assert found[0].error.reason == reason
                assert not tracer.is_busy
