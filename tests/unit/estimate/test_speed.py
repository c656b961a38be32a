"""Rates of code that nobody timed."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.estimate.speed import SpeedModel
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction

CACHES = {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}


def survival(lines: int) -> SurvivalFunction:
    """Of a loop over so many lines."""
    loop = np.arange(200_000, dtype=np.uint64) % np.uint64(lines)
    return SurvivalFunction.from_histogram(ReuseHistogram.from_lines(loop))


def test_more_instructions_and_more_misses_take_longer() -> None:
    model = SpeedModel(CACHES, 64)
    hits, from_l2, from_l3 = (model.rate(200_000, 100_000, survival(n)) for n in (8, 4096, 40_000))
    assert hits > from_l2 > from_l3 > 0
    assert hits == pytest.approx(2 * model.rate(400_000, 100_000, survival(8)), rel=0.01)


def test_machines_that_tell_nothing_have_usual_caches() -> None:
    assert SpeedModel({}, 64).rate(0, 10, survival(8)) == SpeedModel(CACHES, 64).rate(
        30, 10, survival(8)
    )
