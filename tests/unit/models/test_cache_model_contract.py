"""The contract of models/protocols.py, over every implementation of CacheModel."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.errors import UsageError
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.protocols import CacheModel
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction

SIZES = 64 * np.array([1, 2, 3, 5, 8, 16, 100, 1000, 4096, 32768, 2**20, 2**34])
MODELS = [StatStack(), StatCache()]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.policy)


@st.composite
def survivals(draw: Any) -> SurvivalFunction:
    """Any falling steps over any ascending distances."""
    points = draw(st.integers(0, 12))
    widths = draw(st.lists(st.integers(1, 10**6), min_size=points, max_size=points))
    falls = draw(st.lists(st.floats(0, 1), min_size=points, max_size=points))
    edges = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    return SurvivalFunction(edges, np.cumprod([1.0, *falls]), 1000)


@every_model
def test_is_a_cache_model(model: CacheModel) -> None:
    assert isinstance(model, CacheModel)


@every_model
@given(survival=survivals())
@settings(max_examples=200)
def test_curve_obeys_the_contract(model: CacheModel, survival: SurvivalFunction) -> None:
    curve = model.curve(survival, SIZES)
    for values in (curve.low, curve.miss_ratio, curve.high):
        assert values.shape == SIZES.shape
        assert values.dtype == np.float64
        assert ((values >= 0) & (values <= 1)).all()
        assert (np.diff(values) <= 0).all()
    assert (curve.low <= curve.miss_ratio).all()
    assert (curve.miss_ratio <= curve.high).all()
    assert curve.policy == model.policy
    assert curve.line_bytes == 64
    assert curve.sampled_accesses == 1000
    if survival.never_returned == 0:
        assert (curve.low == curve.high).all()


@every_model
def test_more_survival_means_no_fewer_misses(model: CacheModel, streams: Any) -> None:
    hot = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(streams.uniform(50, 20000, 1)))
    cold = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(streams.uniform(90, 20000, 1)))
    assert (model.curve(hot, SIZES).high <= model.curve(cold, SIZES).high + 1e-3).all()


@every_model
def test_a_stream_always_misses_but_nobody_knows_for_caches_beyond_the_horizon(
    model: CacheModel,
) -> None:
    lines = np.arange(100_000, dtype=np.uint64)
    curve = model.curve(
        SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines)), 64 * 2 ** np.arange(20)
    )
    assert (curve.miss_ratio == 1).all()
    assert (curve.low[:10] > 0.999).all()
    assert curve.low[-1] == 0


@every_model
def test_without_samples_anything_is_possible(model: CacheModel) -> None:
    empty = SurvivalFunction.from_histogram(ReuseHistogram.empty())
    curve = model.curve(empty, SIZES)
    assert (curve.low == 0).all()
    assert (curve.high == 1).all()


@every_model
def test_one_line_keeps_only_what_is_touched_twice_in_a_row(model: CacheModel) -> None:
    lines = np.repeat(np.arange(100, dtype=np.uint64), 3)
    lines = np.tile(lines, 30)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    assert model.curve(survival, SIZES[:1]).miss_ratio == pytest.approx([1 / 3], abs=0.01)


@every_model
@pytest.mark.parametrize("lines", [10, 1000, 6000])
def test_uniform_streams_miss_with_one_minus_l_over_n(
    model: CacheModel, streams: Any, lines: int
) -> None:
    survival = SurvivalFunction.from_histogram(
        ReuseHistogram.from_lines(streams.uniform(lines, 100 * lines, 5))
    )
    held = np.unique(np.linspace(1, lines, 7).astype(int))
    curve = model.curve(survival, 64 * held)
    # A loop of expectations over integers: exact but for one access.
    assert curve.miss_ratio == pytest.approx(1 - held / lines, abs=0.006 + 1 / lines)
    assert (curve.low == curve.high).all()


@every_model
def test_other_line_sizes(model: CacheModel, streams: Any) -> None:
    survival = SurvivalFunction.from_histogram(
        ReuseHistogram.from_lines(streams.uniform(100, 20_000, 1))
    )
    one, other = model.curve(survival, SIZES), model.curve(survival, 2 * SIZES, line_bytes=128)
    assert (one.miss_ratio == other.miss_ratio).all()
    assert other.line_bytes == 128


@every_model
@pytest.mark.parametrize("sizes", [[32], [0, 64], [128, 64], [64, 64]])
def test_impossible_sizes_are_refused(model: CacheModel, sizes: list[int]) -> None:
    empty = SurvivalFunction.from_histogram(ReuseHistogram.empty())
    with pytest.raises(UsageError):
        model.curve(empty, np.array(sizes))
