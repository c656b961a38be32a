"""The statistics of the clock of timed stretches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from memsampd.sampler.burst_clock import BurstClock, measurement_error
from memsampd.sampler.records import AccessRate, Burst, BurstEnd, TimedStretch

NOTHING = np.empty(0)
BURST = Burst(
    ip=NOTHING.astype(np.uint64),
    address=NOTHING.astype(np.uint64),
    size_bytes=NOTHING.astype(np.uint16),
    is_write=NOTHING.astype(np.bool_),
    pid=1,
    tid=1,
    time_seconds=0.0,
    instructions=0,
    prefetches=0,
    end=BurstEnd.FULL,
)


def timed(rate: float, seconds: float = 1e-3, hit_seconds: float = 0.0) -> Burst:
    stretch = TimedStretch(round(rate * seconds), seconds, "moments", 4, hit_seconds)
    return dataclasses.replace(BURST, timed=stretch)


def measure(bursts: Sequence[Burst]) -> tuple[float, float]:
    rate = BurstClock().measure(bursts)
    assert rate.accesses_per_cpu_second is not None
    assert rate.spread is not None
    assert rate.method == "moments"
    return rate.accesses_per_cpu_second, rate.spread


@pytest.mark.parametrize("bursts", [[], [BURST], [timed(0.0)], [timed(1e8, seconds=0.0)]])
def test_nothing_timed_is_nothing_known(bursts: list[Burst]) -> None:
    assert BurstClock().measure(bursts) == AccessRate(None, None, "unknown")


def test_it_is_accesses_per_cpu_second_when_code_alternates() -> None:
    """Half of the time fast code, half slow, each burst 1000 accesses from a random moment.

    The sum of accesses by the sum of seconds would be the harmonic mean: 36 % too little here.
    """
    rng = np.random.default_rng(7)
    rates = rng.choice([2e8, 8e8], 4000)
    found, _ = measure([timed(rate, seconds=1e6 / rate) for rate in rates])
    assert found == pytest.approx(5e8, rel=0.03)
    assert 4000e6 / sum(1e6 / rates) == pytest.approx(3.2e8, rel=0.03)


def test_the_spread_is_that_of_the_mean() -> None:
    """By simulation: two thirds of all means lie within one spread of the truth."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(400):
        found, spread = measure([timed(r) for r in rng.normal(1e9, 3e8, 16).clip(1e8)])
        inside += abs(found / 1e9 - 1) <= spread
    assert 0.6 < inside / 400 < 0.8


def test_one_measurement_is_not_certain() -> None:
    _, one = measure([timed(1e9)])
    _, four = measure([timed(1e9)] * 4)
    _, many = measure([timed(1e9)] * 40)
    assert one > 0.1 > 0.05 > four > many > 0


def test_what_was_taken_off_does_not_average_out() -> None:
    short = timed(1e9, seconds=50e-6, hit_seconds=20e-6)
    assert short.timed is not None
    assert measurement_error(short.timed) == pytest.approx(0.1)
    _, spread = measure([short] * 1000)
    assert spread == pytest.approx(0.1, rel=0.05)


def test_short_measurements_count_little() -> None:
    good = [timed(1e9)] * 4
    bad = [timed(9e9, seconds=1e-6, hit_seconds=20e-6)] * 4
    found, _ = measure([*good, *bad])
    assert found == pytest.approx(1e9, rel=0.02)
