"""When a phase's access rate is measured again."""

from __future__ import annotations

import dataclasses

import numpy as np

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


def test_it_measures_until_the_spread_is_small() -> None:
    rates = PhaseRates(BurstClock(), spread_goal=0.05)
    taken = 0
    while rates.wants(3):
        rates.add(3, timed(5e8))
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
        rates.add(0, ASKED if is_asked else PLAIN)
    gaps = np.diff(asked)
    assert asked[:3] == list(range(3))
    assert 20 < len(asked) < 60
    assert gaps[-1] > gaps[5] > 1
    assert np.all(np.diff(gaps) >= 0)


def test_a_phase_that_drifted_is_measured_anew() -> None:
    rates = PhaseRates(BurstClock())
    taken = 0
    while rates.wants(0):
        rates.add(0, timed(1e8))
        taken += 1
    rates.drift(0)
    again = 0
    while rates.wants(0):
        rates.add(0, timed(9e8))
        again += 1
    assert again == taken  # the old ones are gone


def test_merged_phases_pool_their_measurements() -> None:
    rates = PhaseRates(BurstClock())
    while rates.wants(1):
        rates.add(1, timed(3e8))
    rates.add(0, timed(3e8))
    assert rates.wants(0)
    rates.merge(1, 0)
    assert not rates.wants(0)
    rates.merge(5, 0)
    assert not rates.wants(0)
    rates.merge(0, 8)
    assert not rates.wants(8)
    assert rates.wants(0)
