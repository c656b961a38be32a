"""Bursts that go on as like ones that saw further."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from memsampd.models.histogram import ReuseHistogram
from memsampd.models.late_returns import LateReturns, continued
from memsampd.models.survival import SurvivalFunction


def function(edges: list[int], survival: list[float], accesses: int) -> SurvivalFunction:
    return SurvivalFunction(np.array(edges), np.array(survival), accesses)


def test_a_short_burst_goes_on_as_a_long_one_of_the_same_stream(streams: Any) -> None:
    lines = streams.mixed(300_000, 3)
    short, long = (
        SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines[:n]))
        for n in (20_000, 300_000)
    )
    whole = continued(short, [LateReturns.of(long)], np.ones(1))
    assert short.horizon_accesses < 0.2 * whole.horizon_accesses
    at = np.geomspace(short.horizon_accesses, whole.horizon_accesses, 20)
    expected = long(at) / long(short.horizon_accesses)
    assert whole(at) / short.never_returned == pytest.approx(expected, abs=0.05)
    within = np.arange(0, short.horizon_accesses, 50)
    assert whole(within).tolist() == short(within).tolist()


def test_steps_are_means_by_likeness_and_by_how_many_were_left() -> None:
    """From 1024 to 4096: of one half returns in each octave, of the other nothing."""
    own = function([0, 1024], [1.0, 0.3], 2000)
    octaves = [0, 1024, 2048, 4096]
    falling = function(octaves, [1.0, 0.4, 0.2, 0.1], 1_000_000)
    staying = function(octaves, [1.0, 0.5, 0.5, 0.5], 1_000_000)
    others = [LateReturns.of(each) for each in (falling, staying)]
    for likeness in ([1.0, 1.0], [1.0, 0.5], [0.6, 0.3], [1.0, 0.0]):
        whole = continued(own, others, np.array(likeness))
        share = likeness[0] / sum(likeness)
        edges = np.round(1024 * 2 ** np.arange(0, 2.01, 0.25))
        left = np.ones(1)
        for begin, end in itertools.pairwise(edges):
            left = np.append(left, left[-1] * (1 - share * (1 - falling(end) / falling(begin))))
        assert whole(edges) == pytest.approx(0.3 * left, rel=1e-3)


def test_a_burst_that_hardly_anything_was_left_of_says_little() -> None:
    """Of 200,000 accesses 4 were left, and did not return: that is one loop, not all code."""
    own = function([0, 1024], [1.0, 0.3], 2000)
    falling = function([0, 1024, 4096], [1.0, 0.4, 0.1], 1_000_000)
    loop = function([0, 1024, 4096], [1.0, 2e-5, 2e-5], 200_000)
    both = continued(own, [LateReturns.of(each) for each in (falling, loop)], np.ones(2))
    alone = continued(own, [LateReturns.of(falling)], np.ones(1))
    assert float(both(4096)) == pytest.approx(float(alone(4096)), rel=0.4)


def test_a_step_is_taken_in_part_where_the_horizon_lies_within() -> None:
    half = int(1024 * 2**0.125)  # half a step, in octaves
    other = function([0, 1024, 1218], [1.0, 0.5, 0.25], 1_000_000)
    whole = continued(function([0, half], [1.0, 0.5], 2000), [LateReturns.of(other)], np.ones(1))
    assert float(whole(1218)) == pytest.approx(0.5 * 0.75, rel=0.01)


def test_a_burst_of_which_nothing_is_known_goes_on_as_others_from_the_start() -> None:
    other = function([0, 1, 4, 1024, 4096], [1.0, 0.8, 0.5, 0.4, 0.1], 1_000_000)
    for own in (function([0], [1.0], 10), function([0, 1], [1.0, 0.8], 10)):
        whole = continued(own, [LateReturns.of(other)], np.ones(1))
        at = np.array([0, 1, 2, 4, 1024, 4096])
        assert whole(at) == pytest.approx(other(at), rel=1e-6)


@pytest.mark.parametrize(
    ("edges", "survival", "likeness"),
    [
        ([0, 1024], [1.0, 0.3], 0.7),  # code that is not like it
        ([0, 8192], [1.0, 0.3], 1.0),  # it saw further itself
        ([0, 1024], [1.0, 0.0], 1.0),  # everything returned
    ],
)
def test_nothing_is_said_where_nothing_is_known(
    edges: list[int], survival: list[float], likeness: float
) -> None:
    own = function(edges, survival, 10_000)
    other = LateReturns.of(function([0, 1024, 4096], [1.0, 0.4, 0.1], 1_000_000))
    assert continued(own, [other], np.array([likeness])) is own
    assert continued(own, [], np.empty(0)) is own
