from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.models.exact import ExactRandom
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statcache import StatCache, _reuses, _solve
from memsampd.models.survival import SurvivalFunction

SIZES_LINES = np.array([16, 64, 256, 700, 1024, 2048, 4096, 16384])


@pytest.mark.parametrize("kind", ["mixed", "zipf", "loop"])
def test_agrees_with_the_simulator(streams: Any, kind: str) -> None:
    stream = {
        "mixed": lambda: streams.mixed(600_000, 7),
        "zipf": lambda: streams.zipf(20_000, 600_000, 7),
        "loop": lambda: streams.loop(1500, 600_000),
    }[kind]()
    exact = ExactRandom(SIZES_LINES.tolist(), seed=1)
    exact.feed(stream[:100_000])
    exact.take_misses()
    exact.feed(stream[100_000:])
    truth = exact.take_misses().miss_ratio
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(stream))
    curve = StatCache().curve(survival, 64 * SIZES_LINES)
    assert curve.miss_ratio == pytest.approx(truth, abs=0.02)


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.lists(st.floats(0, 1), min_size=8, max_size=8),
    st.sampled_from([2, 3, 10, 100, 1000]),
)
@settings(max_examples=200)
def test_is_the_largest_solution_of_the_equation(
    widths: list[int], falls: list[float], size: int
) -> None:
    edges = np.concatenate([[0], np.cumsum(widths)])
    survival = SurvivalFunction(edges, np.cumprod(np.array([1.0, *falls[: len(widths)]])), 1)
    share = -np.diff(survival.survival)
    middle = (edges[:-1] + edges[1:] - 1) / 2
    trial = np.linspace(0, 1, 2001)
    stays = (1 - 1 / size) ** (middle[:, None] * trial[None, :])
    excess = share @ (1 - stays) + survival.never_returned - trial
    largest = trial[np.flatnonzero(excess >= -1e-12)[-1]]
    found = StatCache().curve(survival, np.array([64 * size])).high[0]
    # The root lies between the last trial that is not above it and the next. Distances less than
    # 1 % apart are one.
    assert largest - 1e-3 <= found <= largest + 1 / 2000 + 1e-3


def test_distances_that_are_taken_together_hardly_matter() -> None:
    """Against all of them, one by one."""
    lines = np.random.default_rng(1).zipf(1.3, 300_000).clip(max=100_000).astype(np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    share = -np.diff(survival.survival)
    middle = (survival.edges_accesses[:-1] + survival.edges_accesses[1:] - 1) / 2
    every = _solve(share, middle, survival.never_returned, SIZES_LINES, np.ones(8))
    assert len(_reuses(survival)[0]) < len(share[share > 0]) / 4
    np.testing.assert_allclose(StatCache().curve(survival, 64 * SIZES_LINES).high, every, atol=1e-5)


def test_what_is_beyond_the_horizon_matters_little_to_small_caches() -> None:
    stream = np.arange(100_000, dtype=np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(stream))
    curve = StatCache().curve(survival, 64 * 2 ** np.arange(0, 20, 3))
    gap = curve.high - curve.low
    assert gap[0] < 1e-9
    assert (np.diff(gap) >= 0).all()
    assert gap[-1] == 1


def test_who_begins_at_a_root_stays_there() -> None:
    """So that bounds which meet are equal to the last bit: sizes in between are not known."""
    share, distance = np.array([0.5, 0.3, 0.2]), np.array([3.0, 900.0, 40_000.0])
    root = _solve(share, distance, 0.0, SIZES_LINES, np.ones(len(SIZES_LINES)))
    assert np.array_equal(_solve(share, distance, 0.0, SIZES_LINES, root), root)
    together = [
        float(_solve(share, distance, 0.0, np.array([lines]), np.ones(1))[0])
        for lines in SIZES_LINES.tolist()
    ]
    assert root == pytest.approx(together, abs=1e-9)
