from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.exact import ExactLru
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
from memsampd.models.statstack import StatStack, expected_stack_distances
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
    assert expected_stack_distances(survival) == pytest.approx(stack[edges], abs=1e-6)
    sizes = np.array([1, 2, 3, 10, 50, 200, 1000])
    curve = StatStack().curve(survival, 64 * sizes)
    for size, miss, low in zip(sizes, curve.miss_ratio, curve.low, strict=True):
        enough = np.flatnonzero(stack >= size * (1 - 1e-9))
        if len(enough):
            # Rounding may move D* by one access at most.
            around = each[max(enough[0] - 1, 0) : enough[0] + 2]
            assert around.min() - 1e-9 <= miss <= around.max() + 1e-9
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
