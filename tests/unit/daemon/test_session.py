"""A session whose target, samples and bursts are what a test says."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from invented import CACHES, TARGET

from memsampd.daemon.book import PhaseBook
from memsampd.daemon.config import SessionConfig
from memsampd.daemon.session import Session, SessionParts
from memsampd.daemon.tracer import CaptureOrder, CaptureResult, CountedBurst, TracerThread
from memsampd.errors import CaptureError
from memsampd.exporters.recording import BurstRecord
from memsampd.exporters.recording.format import Record
from memsampd.exporters.snapshot import BurstTally, Snapshot
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statstack import StatStack
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.leader import LeaderFollower
from memsampd.phases.predictor import RunLengthMarkov
from memsampd.phases.schedule import make_schedule
from memsampd.phases.windows import WindowCutter
from memsampd.sampler.burst_clock import BurstClock
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.records import BranchSamples, Burst, BurstCost, BurstEnd, TimedStretch

WINDOW_SECONDS, PERIOD_SECONDS = 0.1, 0.01
SIZES_BYTES = np.array([1 << octave for octave in range(10, 22)], np.int64)
COST = BurstCost(stop_seconds=0.002, stops=1, longest_stop_seconds=0.002, hit_seconds=0.001)
NONE = np.empty(0, np.uint64)
BURST = Burst(
    ip=NONE,
    address=NONE,
    size_bytes=NONE.astype(np.uint16),
    is_write=NONE.astype(np.bool_),
    pid=TARGET.pid,
    tid=TARGET.pid,
    time_seconds=0.0,
    instructions=5000,
    prefetches=0,
    end=BurstEnd.HOLD,
    cost=COST,
    accesses=4000,
)
Answer = Burst | CaptureError


@dataclass
class World:
    """A target that runs for some windows, one a turn; the time is its CPU time."""

    answer: Callable[[CaptureOrder], Answer]
    windows: int = 40
    window: int = 0
    orders: list[CaptureOrder] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    waiting: list[CaptureResult] = field(default_factory=list)
    is_busy: bool = False
    name = source_name = "invented"
    period_seconds = PERIOD_SECONDS
    identity = TARGET

    def now(self) -> float:
        return self.window * WINDOW_SECONDS

    def alive(self) -> bool:
        return self.window < self.windows

    def read(self, timeout_seconds: float) -> BranchSamples:
        if timeout_seconds == 0 or not self.alive():
            return BranchSamples(
                NONE, np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), PERIOD_SECONDS
            )
        count = round(WINDOW_SECONDS / PERIOD_SECONDS)
        times = (self.now() + PERIOD_SECONDS * np.arange(count)).astype(np.float64)
        self.window += 1
        tids = np.full(count, TARGET.pid, np.int32)
        return BranchSamples(np.full(count, 7, np.uint64), tids, tids, times, PERIOD_SECONDS)

    def order(self, order: CaptureOrder) -> None:
        self.orders.append(order)
        self.is_busy = True
        answer = self.answer(order)
        if isinstance(answer, CaptureError):
            self.waiting.append(CaptureResult(None, answer))
            return
        lines = np.arange(answer.accesses, dtype=np.uint64) % np.uint64(100)
        burst = replace(answer, time_seconds=self.now() + 0.02)
        self.waiting.append(CaptureResult(CountedBurst(burst, ReuseHistogram.from_lines(lines))))

    def results(self) -> list[CaptureResult]:
        self.is_busy = False
        found, self.waiting = self.waiting, []
        return found

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing is open."""

    def bursts(self) -> list[BurstRecord]:
        return [record for record in self.records if isinstance(record, BurstRecord)]


@pytest.fixture(autouse=True)
def no_lower_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session makes its thread nice, which cannot be undone."""
    monkeypatch.setattr(os, "setpriority", lambda *words: None)


def run(world: World, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Snapshot:
    """Run a session that takes a burst a window if it may; its last state."""
    monkeypatch.setattr(
        "memsampd.daemon.session.process_cpu_ns", lambda pid: round(world.now() * 1e9)
    )
    cutter = WindowCutter(WINDOW_SECONDS, 8, lambda pid, ips: ips)
    parts = SessionParts(
        target=TARGET,
        handle=cast(ProcessHandle, world),
        branches=world,
        tracer=cast(TracerThread, world),
        clock=BurstClock(),
        cutter=cutter,
        clusterer=LeaderFollower(),
        predictor=RunLengthMarkov(),
        schedule=make_schedule("all", random.Random(1), window_seconds=WINDOW_SECONDS),
        drift=DriftMonitor(),
        book=PhaseBook((StatStack(),), SIZES_BYTES, 64),
        cache_sizes_bytes=CACHES,
        sample_seconds=1e-5,
    )
    settings = SessionConfig(period_seconds=PERIOD_SECONDS, **config)
    session = Session(parts, settings, recorders=[world], clock=world.now)
    assert session.run() == "the target ended"
    return session.snapshot()


def test_holds_and_hits_are_charged_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = COST + BurstCost(replica_cpu_seconds=0.001, tracer_cpu_seconds=5.0)
    world = World(lambda order: replace(BURST, cost=cost))
    state = run(world, monkeypatch, own_cpu_share=100.0)
    taken = len(world.bursts())
    assert taken > 30
    overhead = state.overhead
    assert overhead.target_cpu_seconds == pytest.approx(4.0)
    assert overhead.stop_seconds == pytest.approx(0.002 * taken)
    assert overhead.longest_stop_seconds == 0.002
    assert overhead.sampling_seconds == pytest.approx(1e-5 * 400)
    assert overhead.spent_share == pytest.approx(0.003 * taken / 4.0)
    assert overhead.replica_cpu_seconds == pytest.approx(0.001 * taken)
    assert overhead.own_cpu_seconds >= overhead.replica_cpu_seconds
    assert {order.max_stop_seconds for order in world.orders} == {0.005}


def test_what_bursts_go_over_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = replace(
        BURST,
        calls=3,
        calls_compared=2,
        calls_equal=1,
        pages_predicted=90,
        pages_missed=10,
        is_plausible=True,
    )
    world = World(lambda order: burst)
    state = run(world, monkeypatch, own_cpu_share=100.0)
    n = len(world.bursts())
    assert state.tally == BurstTally(n, n, 3 * n, 2 * n, n, 90 * n, 10 * n)
    assert state.burst_ends == {"hold": n}
    record = world.bursts()[-1]
    assert (record.calls, record.pages_missed, record.is_plausible) == (3, 10, True)
    assert state.overall["lru"].miss_ratio[0] > state.overall["lru"].miss_ratio[-1]


def test_a_burst_belongs_to_the_window_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda order: BURST)
    run(world, monkeypatch, own_cpu_share=100.0)
    *taken, last = world.bursts()
    moments = [int(record.time_seconds / WINDOW_SECONDS) for record in taken]
    assert [record.window for record in taken] == moments
    assert last.window == 39  # it came when the target had ended


def test_bursts_wait_for_own_cpu_time_and_windows_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = BurstCost(stop_seconds=1e-4, stops=1, replica_cpu_seconds=100.0)
    world = World(lambda order: replace(BURST, cost=cost))
    state = run(world, monkeypatch)
    assert (len(world.orders), len(world.bursts())) == (1, 1)
    assert state.windows == 40
    assert state.overhead.waits_for_own_cpu
    assert state.overhead.own_cpu_waited_seconds == pytest.approx(4.0, abs=0.3)


def test_what_the_next_window_will_not_change_is_asked_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = CaptureError("forbidden", "the kernel refuses", "see doctor", stop_seconds=0.001)
    world = World(lambda order: refusal)
    state = run(world, monkeypatch, own_cpu_share=100.0)
    assert 4 <= len(world.orders) <= 8  # after 1, 2, 4, ... windows
    assert state.errors == {"forbidden": len(world.orders)}
    assert state.trouble == "the kernel refuses; see doctor"
    assert state.overhead.stop_seconds == pytest.approx(0.001 * len(world.orders))


def test_a_thread_that_sleeps_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda order: CaptureError("not-running", "it sleeps"))
    state = run(world, monkeypatch, own_cpu_share=100.0)
    assert len(world.orders) > 30
    assert state.trouble == ""
    assert state.errors == {"not-running": len(world.orders)}


def test_a_single_failure_is_no_trouble_either(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = [BURST, CaptureError("lost", "gone")]
    world = World(lambda order: answers[len(world.orders) % 2])
    state = run(world, monkeypatch, own_cpu_share=100.0)
    assert len(world.orders) > 20
    assert state.trouble == ""


def test_rates_are_asked_for_until_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(order: CaptureOrder) -> Burst:
        stretch = TimedStretch(100_000, 2e-4, "moments") if order.measure_rate else None
        return replace(BURST, timed=stretch, was_asked_time=order.measure_rate)

    world = World(timed)
    state = run(world, monkeypatch, own_cpu_share=100.0)
    assert state.rate.accesses_per_cpu_second == pytest.approx(5e8)
    assert state.rate.method == "moments"
    asked = [order.measure_rate for order in world.orders]
    assert asked[:3] == [True] * 3 or asked[1:4] == [True] * 3
    assert not any(asked[-10:])
