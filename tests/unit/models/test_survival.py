from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction

Lines = NDArray[np.uint64]

SHORT = st.lists(st.integers(0, 8), max_size=80).map(lambda x: np.array(x, np.uint64))


def survival_of(*bursts: Lines, **kwargs: int) -> SurvivalFunction:
    histogram = sum(map(ReuseHistogram.from_lines, bursts), ReuseHistogram.empty())
    return SurvivalFunction.from_histogram(histogram, **kwargs)


@given(st.lists(SHORT, min_size=1, max_size=4))
def test_equals_kaplan_meier_without_bins(oracles: Any, bursts: list[Lines]) -> None:
    survival = survival_of(*bursts, min_observable=1)
    samples = [sample for burst in bursts for sample in oracles.reuses(burst)]
    horizon = survival.horizon_accesses
    expected = oracles.kaplan_meier(samples, horizon)
    assert survival(np.arange(horizon + 1)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("lines", [1, 2, 100, 4096, 5000, 40_000])
def test_a_loop_falls_at_its_length_however_it_is_cut(streams: Any, lines: int) -> None:
    survival = survival_of(streams.loop(lines, 3 * lines + 200), streams.loop(lines, 2 * lines))
    first = survival.edges_accesses[np.flatnonzero(survival.survival == 0)[0]]
    assert lines <= first <= lines * 17 / 16 + 1
    before = np.arange(int(lines * 15 / 16))
    assert (survival(before) == 1).all()


def test_geometric_distances_of_a_uniform_stream(streams: Any) -> None:
    lines = 8000
    survival = survival_of(*(streams.uniform(lines, 60_000, seed) for seed in range(10)))
    at = np.array([0, 10, 1000, 4000, 8192, 16384, 32768])
    assert survival(at) == pytest.approx((1 - 1 / lines) ** at, abs=0.01)


def test_short_bursts_merge_to_the_survival_of_the_long_stream(streams: Any) -> None:
    """No bias from cutting: the mean over many cuts meets the truth within its own noise."""
    stream = streams.mixed(1_500_000, 3)
    truth = survival_of(stream)
    cut = survival_of(*np.split(stream, 100))
    at = np.array([1, 10, 100, 1000, 3000, 6144, 10_240])
    assert 10_240 <= cut.horizon_accesses < 15_000
    assert cut(at) == pytest.approx(truth(at), abs=0.004)


def test_bursts_of_very_different_lengths(streams: Any) -> None:
    stream = streams.mixed(1_200_000, 4)
    truth = survival_of(stream)
    short = [stream[i : i + 3000] for i in range(0, 600_000, 3000)]
    mixed = survival_of(*short, stream[600_000:])
    at = np.array([10, 100, 1000, 2500, 10_240, 65_536, 131_072])
    assert mixed.horizon_accesses > 300_000
    assert mixed(at) == pytest.approx(truth(at), abs=0.006)


def test_horizon_needs_a_quarter_of_the_distance_to_look_from() -> None:
    streaming = np.arange(100_000, dtype=np.uint64)
    horizon = survival_of(streaming).horizon_accesses
    assert 0.7 * 100_000 <= horizon <= 0.8 * 100_000
    assert survival_of(streaming).never_returned == 1
    many = survival_of(*[streaming[:10_000]] * 20).horizon_accesses
    assert 9000 < many < 10_000


@pytest.mark.parametrize("accesses", [0, 1, 64])
def test_too_few_accesses_say_nothing(accesses: int) -> None:
    survival = survival_of(np.arange(accesses, dtype=np.uint64))
    assert survival.horizon_accesses == 0
    assert survival.never_returned == 1
    assert survival.sampled_accesses == accesses


def test_beyond_the_horizon_it_does_not_rise_nor_fall(streams: Any) -> None:
    survival = survival_of(np.arange(1000, dtype=np.uint64))
    assert survival([10**6]).tolist() == [survival.never_returned]


@pytest.mark.parametrize(
    ("edges", "survival"),
    [([], []), ([1], [1.0]), ([0, 1], [0.9, 0.8]), ([0, 1], [1.0, 1.1]), ([0, 0], [1.0, 1.0])],
)
def test_what_is_no_survival_function_is_refused(edges: list[int], survival: list[float]) -> None:
    with pytest.raises(ValueError, match="survival function"):
        SurvivalFunction(np.array(edges, np.int64), np.array(survival), 0)
