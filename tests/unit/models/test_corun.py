"""Shared caches: against simulation, against StatStack of the composed survival functions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.corun import Demand, SharedMisses, share_cache
from memsampd.models.exact import ExactLru
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction

LINE = 64
FINE = default_sizes(16)


def curve_of(lines: NDArray[np.uint64]) -> MissRatioCurve:
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    return StatStack().curve(survival, FINE)


def program(lines: NDArray[np.uint64], rate: float) -> list[Demand]:
    return [Demand(1.0, rate, 0.0, curve_of(lines))]


def simulated(
    streams: Sequence[NDArray[np.uint64]], shares: Sequence[float], size_bytes: int
) -> list[float]:
    """Draw whose access is next, simulate the shared cache, and count each one's misses."""
    accesses = int(min(len(s) / share for s, share in zip(streams, shares, strict=True)) * 0.95)
    who = np.random.default_rng(5).choice(len(streams), accesses, p=shares)
    merged = np.empty(accesses, np.uint64)
    for i, stream in enumerate(streams):
        mine = who == i
        merged[mine] = stream[: mine.sum()] | np.uint64(i << 45)
    distances = ExactLru([1]).stack_distances(merged)
    missed = (distances < 0) | (distances >= size_bytes // LINE)
    warm = np.arange(accesses) > accesses // 3
    return [float(missed[warm & (who == i)].mean()) for i in range(len(streams))]


@pytest.mark.parametrize("size_bytes", [16 << 10, 64 << 10, 256 << 10])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_what_a_simulation_of_interleaved_streams_shows(
    streams: Any, size_bytes: int, share: float
) -> None:
    one = streams.mixed(400_000, 1)
    other = streams.zipf(20_000, 400_000, 2)
    told = share_cache([program(one, share), program(other, 1 - share)], size_bytes)
    truth = simulated([one, other], [share, 1 - share], size_bytes)
    assert [each.miss_ratio for each in told] == pytest.approx(truth, abs=0.02)


def test_three_programs_against_simulation(streams: Any) -> None:
    three = [
        streams.mixed(300_000, 1),
        streams.zipf(9_000, 300_000, 2),
        streams.uniform(3000, 300_000, 3),
    ]
    told = share_cache([program(s, r) for s, r in zip(three, (5, 3, 2), strict=True)], 128 << 10)
    truth = simulated(three, [0.5, 0.3, 0.2], 128 << 10)
    assert [each.miss_ratio for each in told] == pytest.approx(truth, abs=0.02)


def test_equals_statstack_of_the_composed_survival_functions(streams: Any) -> None:
    survivals = [
        SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
        for lines in (streams.zipf(5_000, 200_000, 1), streams.uniform(2_000, 200_000, 2))
    ]
    share = np.array([0.7, 0.3])
    distances = np.arange(120_000)
    # Of k accesses of both, a share is each one's own.
    stack = sum(
        np.cumsum(part * survival(part * distances))
        for part, survival in zip(share, survivals, strict=True)
    )
    for size_bytes in (32 << 10, 128 << 10, 300 << 10):
        full = int(np.searchsorted(stack, size_bytes // LINE))
        expected = [float(s(part * full)) for s, part in zip(survivals, share, strict=True)]
        demands = [
            [Demand(1.0, 100 * part, 0.0, StatStack().curve(survival, FINE))]
            for part, survival in zip(share, survivals, strict=True)
        ]
        told = share_cache(demands, size_bytes)
        assert [each.miss_ratio for each in told] == pytest.approx(expected, abs=0.004)


def test_alone_a_program_misses_what_its_curve_says(streams: Any) -> None:
    curve = curve_of(streams.zipf(5_000, 200_000, 1))
    (told,) = share_cache([[Demand(1.0, 3e6, 0.0, curve)]], int(FINE[100]))
    assert told.miss_ratio == pytest.approx(curve.miss_ratio[100])
    assert told.misses_per_second == pytest.approx(3e6 * curve.miss_ratio[100])
    assert told.held_bytes == pytest.approx(FINE[100])


def test_equal_programs_get_half_each(streams: Any) -> None:
    both = [program(streams.uniform(50_000, 200_000, seed), 1.0) for seed in (1, 2)]
    told = share_cache(both, 256 << 10)
    assert [each.held_bytes for each in told] == pytest.approx([128 << 10] * 2, rel=0.02)


def test_a_rate_that_may_be_wrong_is_one_of_misses_too() -> None:
    (told,) = share_cache([[Demand(1.0, 3e6, 0.5, flat(0.2, 0.2, 0.2))]], 256 << 10)
    assert (told.low, told.high) == pytest.approx((0.2, 0.2))
    assert told.misses_per_second == pytest.approx(6e5)
    assert (told.low_per_second, told.high_per_second) == pytest.approx((3e5, 12e5))


def test_what_fits_is_not_missed(streams: Any) -> None:
    small = [program(streams.loop(100, 50_000), 1.0), program(streams.loop(200, 50_000), 9.0)]
    assert [each.miss_ratio for each in share_cache(small, 64 << 10)] == pytest.approx([0, 0])


def flat(middle: float, low: float, high: float) -> MissRatioCurve:
    row = np.ones(len(FINE))
    return MissRatioCurve(FINE, middle * row, low * row, high * row, "lru", LINE, 1)


@given(
    st.lists(
        st.lists(st.floats(0.001, 1), min_size=3, max_size=3).map(sorted), min_size=2, max_size=3
    ),
    st.lists(st.floats(0.5, 50), min_size=3, max_size=3),
)
def test_bounds_hold_whatever_lies_between_the_curves(
    curves: list[list[float]], rates: list[float]
) -> None:
    """Any mixture of bounds, taken as the truth, is within what is told."""
    size_bytes = 512 << 10
    told = share_cache(
        [
            [Demand(1.0, r, 0.1, flat(m, low, h))]
            for (low, m, h), r in zip(curves, rates, strict=False)
        ],
        size_bytes,
    )
    for which in range(3):
        truth: list[SharedMisses] = share_cache(
            [
                [Demand(1.0, r * f, 0.0, flat(c[k], c[k], c[k]))]
                for i, (c, r) in enumerate(zip(curves, rates, strict=False))
                for k, f in [((which + i) % 3, (1.2, 1 / 1.2)[(which + i) % 2])]
            ],
            size_bytes,
        )
        for one, real in zip(told, truth, strict=True):
            assert one.low - 1e-9 <= real.miss_ratio <= one.high + 1e-9


def test_phases_meet_by_chance_and_unknown_time_widens_the_bounds() -> None:
    quiet, loud = flat(0.0, 0.0, 0.0), flat(0.5, 0.5, 0.5)
    one = [Demand(0.25, 8.0, 0.0, quiet), Demand(0.5, 2.0, 0.0, loud)]  # a quarter without a curve
    (told,) = share_cache([one], 1 << 20)
    weights = np.array([0.25 * 8, 0.5 * 2])
    assert told.miss_ratio == pytest.approx(weights @ [0, 0.5] / weights.sum())
    assert told.low == pytest.approx(told.miss_ratio)
    assert told.high == pytest.approx(0.75 * told.miss_ratio + 0.25)


def test_many_phases_are_drawn_and_come_to_the_same() -> None:
    many = [Demand(0.05, 1.0, 0.0, flat(r, r, r)) for r in np.linspace(0.1, 0.9, 20)]
    whole = [Demand(1.0, 1.0, 0.0, flat(0.5, 0.5, 0.5))]
    drawn = share_cache([many, many, whole], 1 << 20)  # 400 meetings
    assert drawn[2].miss_ratio == pytest.approx(0.5)
    assert drawn[0].miss_ratio == pytest.approx(0.5, abs=0.01)
