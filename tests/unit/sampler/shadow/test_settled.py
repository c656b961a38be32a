"""When code need not be timed again."""

from __future__ import annotations

import numpy as np

from memsampd.sampler.shadow.settled import SettledRates

LOOP = np.array([0x1000, 0x1004, 0x1048], np.uint64)  # in two pieces of 64 bytes


def rates_of(*measured: float) -> SettledRates:
    rates = SettledRates()
    for rate in measured:
        rates.add(LOOP, rate)
    return rates


def test_three_rates_alike_settle_it() -> None:
    assert not rates_of(1e9, 1e9).knows(0x1000)
    settled = rates_of(1.0e9, 1.1e9, 0.95e9)
    assert settled.knows(0x1000)
    assert settled.knows(0x107F)
    assert not settled.knows(0x1080)


def test_what_differs_from_time_to_time_is_measured_more_often() -> None:
    varying = rates_of(1e9, 1.5e9, 1e9)
    assert [varying.knows(0x1000) for _ in range(5)] == [True] * 3 + [False] * 2
    varying.add(LOOP, 1.5e9)
    assert [varying.knows(0x1000) for _ in range(4)] == [True] * 3 + [False]


def test_the_last_ones_count_and_it_is_measured_again_now_and_then() -> None:
    settled = rates_of(9e9, 1e9, 1e9, 1e9)
    assert [settled.knows(0x1000) for _ in range(9)] == [True] * 8 + [False]
    settled.add(LOOP, 1.1e9)
    assert settled.knows(0x1000)
