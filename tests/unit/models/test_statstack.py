import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.exact import ExactLru
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
from memsampd.models.stack_samples import REUSE_EDGES
from memsampd.models.statstack import StatStack, seen_lines
from memsampd.models.survival import SurvivalFunction

Lines = NDArray[np.uint64]

SIZES_LINES = 2 ** np.arange(4, 16)


def curve_of(lines: Lines, sizes_lines: Any) -> MissRatioCurve:
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    return StatStack().curve(survival, 64 * np.asarray(sizes_lines))


@pytest.mark.parametrize("lines", [2, 100, 4096])
def test_a_loop_misses_always_below_its_length_and_never_from_it_on(
    streams: Any, lines: int
) -> None:
    curve = curve_of(streams.loop(lines, 3 * lines + 500), [lines - 1, lines, lines + 1])
    assert curve.miss_ratio.tolist() == [1, 0, 0]


def test_a_long_loop_within_its_bin(streams: Any) -> None:
    curve = curve_of(streams.loop(50_000, 200_000), [46_000, 54_000])
    assert curve.miss_ratio.tolist() == [1, 0]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.lists(st.floats(0, 1), min_size=8, max_size=8),
)
def test_equals_the_definition_summed_access_by_access(
    widths: list[int], falls: list[float]
) -> None:
    edges = np.concatenate([[0], np.cumsum(widths)])
    survival = SurvivalFunction(edges, np.cumprod(np.array([1.0, *falls[: len(widths)]])), 1)
    each = survival(np.arange(edges[-1] + 1))
    stack = np.concatenate([[0.0], np.cumsum(each[:-1])])
    assert seen_lines(survival) == pytest.approx(stack[-1], abs=1e-6)
    sizes = np.array([1, 2, 3, 10, 50, 200, 1000])
    curve = StatStack().curve(survival, 64 * sizes)
    for size, miss, low in zip(sizes, curve.high, curve.low, strict=True):
        enough = np.flatnonzero(stack >= size * (1 - 1e-9))
        if len(enough):
            # D* is one access; two where ES meets the size but for rounding.
            surely = np.flatnonzero(stack >= size * (1 + 1e-7))
            last = surely[0] if len(surely) else len(stack) - 1
            assert each[last] - 1e-9 <= miss <= each[enough[0]] + 1e-9
            assert low == miss
        else:
            assert miss == survival.never_returned
            assert low == 0


@pytest.mark.parametrize("kind", ["mixed", "zipf"])
def test_agrees_with_exact_lru(streams: Any, kind: str) -> None:
    stream = streams.mixed(600_000, 7) if kind == "mixed" else streams.zipf(20_000, 600_000, 7)
    exact = ExactLru(SIZES_LINES.tolist())
    exact.feed(stream[:100_000])
    exact.take_misses()
    exact.feed(stream[100_000:])
    truth = exact.take_misses().miss_ratio
    curve = curve_of(stream, SIZES_LINES)
    assert curve.miss_ratio == pytest.approx(truth, abs=0.025)
    assert np.abs(curve.miss_ratio - truth).mean() < 0.006
    # What is unknown is bracketed.
    assert (truth <= curve.high + 0.025).all()
    assert (truth >= curve.low - 0.025).all()


def taking_turns() -> Lines:
    """A loop over 256 lines, then one over 8, and so on: windows of 256 accesses differ."""
    turn = np.concatenate([np.arange(3072) % 256, 1000 + np.arange(3072) % 8])
    return np.tile(turn, 20).astype(np.uint64)


def test_stack_distances_that_were_seen_go_before_expected_ones() -> None:
    lines, sizes = taking_turns(), [4, 100, 200, 256, 300]
    exact = ExactLru(sizes)
    exact.feed(lines[:6144])
    exact.take_misses()
    exact.feed(lines[6144:])
    truth = exact.take_misses().miss_ratio
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    expected = StatStack().curve(replace(survival, stacks=None), 64 * np.array(sizes)).miss_ratio
    assert expected[2] < truth[2] - 0.4  # what is mended
    assert curve_of(lines, sizes).miss_ratio == pytest.approx(truth, abs=0.01)


def test_without_samples_of_a_distance_its_expected_stack_distance_counts(streams: Any) -> None:
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(streams.mixed(300_000, 3)))
    stacks = survival.stacks
    assert stacks is not None
    plain = StatStack().curve(replace(survival, stacks=None), 64 * SIZES_LINES)
    none = StatStack().curve(replace(survival, stacks=stacks.none()), 64 * SIZES_LINES)
    assert none.miss_ratio == pytest.approx(plain.miss_ratio, abs=1e-12)
    assert none.low == pytest.approx(plain.low, abs=1e-12)
    some = StatStack().curve(survival, 64 * SIZES_LINES)
    assert not np.allclose(some.miss_ratio, plain.miss_ratio, atol=1e-3)
    assert (some.low <= some.miss_ratio).all()
    assert (some.miss_ratio <= some.high).all()
    for each in (some.miss_ratio, some.low):
        assert (np.diff(each) <= 0).all()
    # Going on beyond the horizon changes nothing that is known within.
    longer = survival.continued_by(survival.thinned())
    assert longer.stacks is survival.stacks


def returns_by_samples(survival: SurvivalFunction, size: int) -> float:
    """Share of the accesses that return and miss, group by group as the class says it."""
    stacks, horizon = survival.stacks, survival.horizon_accesses
    assert stacks is not None
    distance = float(np.searchsorted(np.cumsum(survival(np.arange(horizon))), size - 1e-6) + 1)
    at_distance, edges = float(survival(min(distance, horizon))), [0, *REUSE_EDGES.tolist()]
    told = float(survival(max(distance, min(edges[-1], horizon)))) - survival.never_returned
    for begin, end in itertools.pairwise(edges):
        start, stop = survival(np.minimum([begin, end], horizon)).tolist()
        mine = stacks.stack[(stacks.reuse >= begin) & (stacks.reuse < end)] if begin else []
        missed = int(np.sum(np.asarray(mine) >= size))
        expected = max(min(at_distance, start), stop) - stop
        told += (missed * (start - stop) + expected) / (len(mine) + 1)
    return told


@pytest.mark.parametrize("kind", ["mixed", "turns"])
def test_samples_of_each_group_of_reuses_tell_what_it_does(streams: Any, kind: str) -> None:
    lines = taking_turns() if kind == "turns" else streams.mixed(60_000, 5)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    sizes = [4, 64, 300, 1500]
    curve = StatStack().curve(survival, 64 * np.array(sizes))
    told = np.minimum.accumulate([returns_by_samples(survival, size) for size in sizes])
    assert curve.high == pytest.approx(told + survival.never_returned, abs=1e-9)


def test_what_does_not_fit_together_is_refused() -> None:
    edges, values = np.arange(3), np.linspace(1, 0.5, 3)
    with pytest.raises(ValueError, match="differ in number"):
        _core.lru_returns(edges, values[:2], edges, edges, None, None)
    with pytest.raises(ValueError, match="differ in number"):
        _core.lru_returns(edges, values, edges, edges, edges, edges[:2])
    with pytest.raises(ValueError, match="differ in number"):
        _core.random_ratios(edges, values[:2], edges)
    with pytest.raises(ValueError, match="differ in number"):
        _core.product_limit(edges, edges, edges, 64)


def power_law(horizon_accesses: int, power: float) -> SurvivalFunction:
    """S(k) = k ** -power, seen as far as the horizon."""
    edges = np.unique(np.geomspace(1, horizon_accesses, 400).astype(np.int64))
    return SurvivalFunction(np.append(0, edges), np.append(1.0, edges**-power), 1)


@pytest.mark.parametrize("power", [0.1, 0.3])
def test_beyond_the_horizon_it_goes_on_as_it_fell(power: float) -> None:
    sizes = 64 * 2 ** np.arange(4, 16)
    truth = StatStack().curve(power_law(10**7, power), sizes)
    told = StatStack().curve(power_law(10**3, power), sizes)
    is_known = told.low == told.high
    assert is_known.any()
    assert not is_known.all()
    assert told.miss_ratio[is_known] == pytest.approx(told.high[is_known])
    near = ~is_known & (sizes <= 8 * sizes[is_known][-1])
    assert told.miss_ratio[near] == pytest.approx(truth.miss_ratio[near], rel=0.1)
    assert told.high[-1] > 1.3 * truth.miss_ratio[-1]


def test_a_stream_misses_in_caches_eight_times_as_large_and_less_beyond() -> None:
    """An eighth of its accesses bring a new line; nothing returned in two octaves."""
    stream = SurvivalFunction(np.array([0, 8, 65_508]), np.array([1.0, 0.125, 0.125]), 1)
    lines = np.rint(seen_lines(stream)) * np.array([1, 2, 8, 32, 128])
    curve = StatStack().curve(stream, (64 * lines).astype(np.int64))
    assert curve.miss_ratio == pytest.approx(0.125 / np.array([1, 1, 1, 2, 4]), rel=1e-3)
    assert curve.high.tolist() == [0.125] * 5
    assert curve.low[-1] == 0


def test_no_steeper_than_the_square_root_rule() -> None:
    steep = SurvivalFunction(np.array([0, 2500, 10_000]), np.array([1.0, 0.9, 0.01]), 1)
    lines = np.array([100_000, 400_000])
    curve = StatStack().curve(steep, 64 * lines)
    assert curve.miss_ratio[1] == pytest.approx(curve.miss_ratio[0] / 2)
