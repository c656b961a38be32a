"""Phases are weighted by accesses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from memsampd.daemon.book import (
    PhaseBook,
    overall_curves,
    overall_rate,
    rate_known_share,
)
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statstack import StatStack
from memsampd.phases.records import Window
from memsampd.sampler.records import AccessRate

SIZES_BYTES = np.array([1 << octave for octave in range(10, 22)], np.int64)


def window(index: int) -> Window:
    return Window(index, index * 0.1, index * 0.1 + 0.1, 0.1, np.ones(4), 50, 0, 0, {1: 50})


def book(rates: dict[int, float | None]) -> PhaseBook:
    """Phase n has n + 1 windows; phase 0 hits always, the others miss always."""
    made = PhaseBook((StatStack(),), SIZES_BYTES, 64)
    for phase, rate in rates.items():
        for index in range(phase + 1):
            made.add_window(phase, window(index))
        lines = np.arange(4000, dtype=np.uint64) % np.uint64(2 if phase == 0 else 1 << 30)
        histogram = ReuseHistogram.from_lines(lines)
        made.add_burst(phase, histogram, rows=4000, writes=1000)
        if rate is not None:
            made.set_rate(phase, AccessRate(rate, 0.1, "in-target"))
    return made


def test_accesses_weigh() -> None:
    phases = book({0: 9e8, 1: 1e8, 2: 1e8}).snapshots()
    total = 9 + 2 * 1 + 3 * 1
    assert [phase.weight for phase in phases] == pytest.approx([9 / total, 2 / total, 3 / total])
    curve = overall_curves(phases)["lru"]
    assert curve.miss_ratio[0] == pytest.approx(5 / total, abs=0.01)
    assert rate_known_share(phases) == 1
    assert {phase.write_share for phase in phases} == {0.25}
    rate = overall_rate(phases)
    assert rate.accesses_per_cpu_second == pytest.approx(1e8 * total / 6)
    assert rate.spread == pytest.approx(0.1 * np.hypot(9, np.hypot(2, 3)) / total)
    assert rate.method == "in-target"


def test_the_mean_rate_stands_in() -> None:
    phases = book({0: 8e8, 1: 2e8, 2: None}).snapshots()
    mean = (8 + 2 * 2) / 3
    total = 8 + 2 * 2 + 3 * mean
    expected = [8 / total, 4 / total, 3 * mean / total]
    assert [phase.weight for phase in phases] == pytest.approx(expected)
    assert rate_known_share(phases) == pytest.approx(0.5)
    assert overall_rate(phases).accesses_per_cpu_second == pytest.approx(mean * 1e8)


def test_cpu_time_weighs_where_no_rate_is_known() -> None:
    phases = book({0: None, 1: None}).snapshots()
    assert [phase.weight for phase in phases] == pytest.approx([1 / 3, 2 / 3])
    assert rate_known_share(phases) == 0
    assert overall_rate(phases).accesses_per_cpu_second is None
    assert rate_known_share(()) == 0


def test_a_rate_without_spread_leaves_that_of_all_unknown() -> None:
    phases = list(book({0: 8e8, 1: 2e8}).snapshots())
    phases[1] = dataclasses.replace(phases[1], rate=AccessRate(2e8, None, "pmu"))
    rate = overall_rate(phases)
    assert rate.spread is None
    assert rate.method == "in-target, pmu"
