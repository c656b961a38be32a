"""Watches of a session: what its turns make of what watching costs the target."""

from __future__ import annotations

import random

import numpy as np
import pytest

from memsampd.daemon.ledger import Ledger
from memsampd.daemon.turns import Counts, Turn
from memsampd.daemon.watches import Watches
from memsampd.daemon.watching import WatchPlan
from memsampd.models.open_lines import OpenLine
from memsampd.sampler.perf.watch import Watched
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.records import BranchSamples

PHASE, RATE = 1, 1e8
LINES = [OpenLine((64 * line,), 8, 50_000) for line in range(20)]


class Watching:
    """Watches whose turns are a second of CPU time apart."""

    def __init__(self) -> None:
        self.plan = WatchPlan(0.01, random.Random(1), cost=WatchingCost(0.25e-9, 30.0))
        self.ledger, self.counts = Ledger(0.01, 0.05, 0.0), Counts()
        self.watches = Watches(self.plan, self.ledger, self.counts, lambda seconds: seconds)
        self.plan.offer(LINES, 7, 3, PHASE)
        self.charged = 0.0

    def charge(self, seconds: float) -> None:
        self.charged += seconds

    def turn(self, copied_bytes: int | None, *told: Watched) -> None:
        nobody = np.empty(0, np.int32)
        samples = BranchSamples(np.empty(0, np.uint64), nobody, nobody, np.empty(0), 0.002)
        turn = Turn(0.0, 0.0, 0.0, samples, watched=told, copied_bytes=copied_bytes)
        by_user_time = {7: 1.25}
        self.records = list(
            self.watches.take(
                turn, 1.0, self.charge, lambda tid, begin, end: by_user_time[tid] * (begin < end)
            )
        )


def test_copies_that_are_made_while_words_are_watched_are_paid_and_end_it() -> None:
    session = Watching()
    session.turn(0)
    order, *_ = session.watches.orders(PHASE, 4, lambda: RATE)
    assert order.limit_seconds is None
    session.turn(1_000_000)
    assert session.charged == 0  # it goes on
    assert not session.watches.is_too_costly
    session.turn(100_000_000)
    assert session.watches.is_too_costly
    times, cpus = (0.0, 2.0), (0.0, 2.0)
    session.turn(0, Watched(order, times, cpus, (), "evicted", 0.5, lost_seconds=1e-6))
    (record,) = session.records  # of a thread that was in the kernel for a fifth of its time
    assert record.cpu_seconds == pytest.approx((0.0, 1.6))
    assert record.patience_seconds == pytest.approx(0.4)
    expected = 1e-6 + 101_000_000 * 0.25e-9
    assert session.charged == pytest.approx(expected)
    assert session.ledger.overhead().hit_seconds == pytest.approx(expected)


def test_that_nothing_is_watched_is_told_once() -> None:
    session = Watching()
    for _ in range(3):
        session.turn(10**10)
        assert session.watches.orders(PHASE, 4, lambda: RATE) == ()
    assert session.counts.errors == {"copies": 1}
    assert "rep movs" in session.counts.words["copies"]


def test_a_phase_is_open_whose_bursts_leave_more_than_a_tenth_open() -> None:
    watches = Watching().watches
    watches.tell_bands({0: 0.5, 1: 0.05})
    assert [watches.is_open(phase) for phase in (0, 1, 2, None)] == [True, False, False, False]
    watches.restart()
    assert not watches.is_open(0)
