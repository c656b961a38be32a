"""When a phase's access rate is measured again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from memsampd.daemon.rates import PhaseRates
from memsampd.sampler.burst_clock import BurstClock
from memsampd.sampler.records import Burst, BurstEnd, TimedStretch

ROWS = 100
PLAIN = Burst(
    ip=np.zeros(ROWS, np.uint64),
    address=np.zeros(ROWS, np.uint64),
    size_bytes=np.zeros(ROWS, np.uint16),
    is_write=np.zeros(ROWS, np.bool_),
    pid=1,
    tid=1,
    time_seconds=0.0,
    instructions=0,
    prefetches=0,
    end=BurstEnd.FULL,
)


ASKED = dataclasses.replace(PLAIN, was_asked_time=True)


def timed(rate: float) -> Burst:
    stretch = TimedStretch(int(rate * 1e-3), 1e-3, "held")
    return dataclasses.replace(ASKED, timed=stretch)


def known_rate(rates: PhaseRates, phase: int, burst: Burst) -> float | None:
    rate = rates.add(phase, burst)
    return None if rate is None else rate.accesses_per_cpu_second


def test_it_measures_until_the_spread_is_small() -> None:
    rates = PhaseRates(BurstClock(), spread_goal=0.05)
    taken = 0
    while rates.wants(3):
        assert known_rate(rates, 3, timed(5e8)) == pytest.approx(5e8)
        taken += 1
    assert 2 <= taken <= 8
    assert not rates.wants(3)
    assert rates.wants(4)
    assert not rates.wants(None)


def test_what_cannot_be_measured_is_tried_ever_more_rarely() -> None:
    rates = PhaseRates(BurstClock())
    asked = []
    for burst in range(400):
        is_asked = rates.wants(0)
        asked += [burst] if is_asked else []
        assert rates.add(0, ASKED if is_asked else PLAIN) is None
    gaps = np.diff(asked)
    assert asked[:3] == list(range(3))
    assert 20 < len(asked) < 60
    assert gaps[-1] > gaps[5] > 1
    assert np.all(np.diff(gaps) >= 0)


def test_a_phase_that_drifted_is_measured_anew() -> None:
    rates = PhaseRates(BurstClock())
    while rates.wants(0):
        known_rate(rates, 0, timed(1e8))
    rates.drift(0)
    assert rates.wants(0)
    assert known_rate(rates, 0, timed(9e8)) == pytest.approx(9e8)  # the old ones are gone
    assert rates.wants(0)


def test_a_drifted_phase_keeps_its_rate_until_there_is_another() -> None:
    rates = PhaseRates(BurstClock())
    known_rate(rates, 0, timed(1e8))
    rates.drift(0)
    assert rates.add(0, ASKED) is None
    assert rates.add(0, PLAIN) is None
    assert rates.wants(0)


def test_merged_phases_pool_their_measurements() -> None:
    rates = PhaseRates(BurstClock())
    known_rate(rates, 0, timed(1e8))
    known_rate(rates, 1, timed(3e8))
    merged = rates.merge(1, 0)
    assert merged is not None
    assert merged.accesses_per_cpu_second == pytest.approx(2e8)
    assert rates.merge(5, 0) is None
    known_rate(rates, 7, timed(4e8))
    into_new = rates.merge(7, 8)
    assert into_new is not None
    assert into_new.accesses_per_cpu_second == pytest.approx(4e8)
