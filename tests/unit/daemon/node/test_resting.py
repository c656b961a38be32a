"""A tracing thread that is there only while bursts are wanted."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from rowless import rowless_burst
from tracees import sleeping

from memsampd import _core
from memsampd.daemon.node.resting import RestingTracer
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, TracerThread
from memsampd.errors import CapabilityError, CaptureError
from memsampd.sampler.records import Burst, BurstRequest

ORDER = CaptureOrder({1: 1}, 0.0, 1000, 0.005)


@dataclass
class Source:
    """Takes empty bursts."""

    name: str = "invented"
    closed: list[bool] = field(default_factory=list)

    def count_lines(
        self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
    ) -> Burst:
        return rowless_burst(tid=request.tid)

    def count_rest(self, line_bytes: int, counter: _core.ReuseCounter) -> Burst | None:
        return None

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        self.closed.append(True)


class Resting:
    """One with a clock, and a list of what it made."""

    def __init__(self) -> None:
        self.now, self.pid = 0.0, 1
        self.sources: list[Source] = []
        self.refusal: Exception | None = None
        self.tracer = RestingTracer(self.make, "invented", lambda: self.now)

    def make(self) -> TracerThread:
        if self.refusal is not None:
            raise self.refusal
        self.sources.append(Source())
        source = self.sources[-1]
        return TracerThread(self.pid, lambda: source, random.Random(1))  # type: ignore[arg-type,return-value]

    def result(self) -> CaptureResult:
        while not (found := self.tracer.results()):
            time.sleep(0.001)
        (only,) = found
        return only


def test_there_is_a_thread_from_the_first_order_until_a_while_after_the_last_result() -> None:
    resting = Resting()
    assert not resting.tracer.is_awake
    resting.tracer.order(ORDER)
    resting.now = 100.0
    resting.tracer.rest()  # not while a burst is awaited
    assert resting.tracer.is_awake
    assert resting.result().counted is not None
    resting.now += 29
    resting.tracer.rest()
    assert resting.tracer.is_awake
    resting.now += 1
    resting.tracer.rest()
    assert not resting.tracer.is_awake
    assert resting.sources[0].closed
    resting.tracer.order(ORDER)
    assert resting.result().counted is not None
    assert len(resting.sources) == 2
    resting.tracer.close()
    resting.tracer.close()
    assert resting.sources[1].closed


@pytest.mark.usefixtures("perf_events")
def test_an_order_that_waits_for_the_target_to_run_can_be_given_up() -> None:
    resting = Resting()
    resting.tracer.give_up_waiting()
    resting.tracer.order(ORDER)
    resting.result()
    resting.tracer.give_up_waiting()
    assert resting.tracer.is_awake  # nothing waits
    with sleeping() as sleeper:
        resting.pid = sleeper.pid
        resting.tracer.close()
        resting.tracer.order(replace(ORDER, patience_seconds=1000.0))
        while resting.tracer.is_awake:
            resting.tracer.give_up_waiting()
    told = resting.result()
    assert told.error is not None
    assert told.error.reason == "closed"


def test_what_cannot_be_made_is_told_as_what_came_of_the_order() -> None:
    resting = Resting()
    for refusal, reason in (
        (CaptureError("gone", "it is gone"), "gone"),
        (CapabilityError("no replica", "allow it"), "failed"),
        (OSError(24, "too many files"), "failed"),
    ):
        resting.refusal = refusal
        resting.tracer.order(ORDER)
        told = resting.result()
        assert told.error is not None
        assert told.error.reason == reason
    assert not resting.tracer.is_awake


def test_an_order_that_is_not_done_at_the_end_has_a_result() -> None:
    resting = Resting()
    resting.tracer.order(CaptureOrder({1: 1}, 3600.0, 1000, 0.005))
    resting.tracer.close()
    told = resting.result()
    assert told.error is not None
    assert told.error.reason == "closed"


def test_another_source_takes_the_next_order() -> None:
    resting, other = Resting(), Resting()
    resting.tracer.order(ORDER)
    resting.tracer.change(other.make, "another")
    assert resting.result()  # one result an order, come what may
    assert (resting.sources[0].closed, resting.tracer.source_name) == ([True], "another")
    resting.tracer.order(ORDER)
    assert resting.result().counted is not None
    resting.tracer.close()
    assert (len(resting.sources), len(other.sources)) == (1, 1)
