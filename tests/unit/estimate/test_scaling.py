"""Curves of the same code on more data, or less, against exact ones of such code."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.estimate.scaling import growth, octaves_of_data, scaled
from memsampd.models.exact import lru_stack_distances
from memsampd.sampler.records import Spacing

SIZE_LINES = np.exp2(np.arange(4, 18, dtype=np.float64))
ACCESSES = 400_000


def miss_ratios(way: str, data_lines: int) -> NDArray[np.float64]:
    """Exact ones of code that goes through data, at random or in order, and about its stack."""
    random = np.random.default_rng(data_lines)
    if way == "at random":
        data = random.integers(0, data_lines, ACCESSES)
    else:
        data = np.arange(ACCESSES) % data_lines
    lines = np.where(random.random(ACCESSES) < 0.4, random.integers(0, 8, ACCESSES), data + 100)
    distances = lru_stack_distances(lines.astype(np.uint64))[ACCESSES // 2 :]
    return np.array([np.mean((distances < 0) | (distances >= size)) for size in SIZE_LINES])


@pytest.mark.parametrize("way", ["at random", "in order"])
@pytest.mark.parametrize(("before", "after"), [(2048, 16384), (16384, 2048), (1024, 65536)])
def test_the_same_code_on_other_data_misses_as_it_does(way: str, before: int, after: int) -> None:
    curve = miss_ratios(way, before)
    octaves = np.log2([before, after])
    found = scaled(curve[None, None], SIZE_LINES, octaves[:1], octaves[1:] - octaves[:1])[0, 0]
    exact = miss_ratios(way, after)
    # A step lies somewhere between two sizes: there nobody can tell.
    is_step = np.abs(np.diff(exact, prepend=exact[0])) > 0.3
    is_step |= np.abs(np.diff(exact, append=exact[-1])) > 0.3
    assert found[~is_step] == pytest.approx(exact[~is_step], abs=0.05)
    assert np.abs(curve - exact).max() > 0.5  # what it would be taken for
    assert np.abs(found - exact).mean() < 0.2 * np.abs(curve - exact).mean()


def test_no_growth_is_no_change() -> None:
    curves = np.sort(np.random.default_rng(1).random((3, 6, len(SIZE_LINES))), axis=2)[:, :, ::-1]
    assert scaled(curves, SIZE_LINES, np.array([3.0, 9.0, 20.0]), np.zeros(3)) == pytest.approx(
        curves
    )
    one = curves[:, :, :1]
    assert scaled(one, SIZE_LINES[:1], np.full(3, 9.0), np.full(3, 4.0)) is one


def test_data_are_as_large_as_what_lies_so_far_apart() -> None:
    """Fifty lines at random in an area of a thousand lie ten apart."""
    assert octaves_of_data(np.log2(np.array([1 + 10.0]))) == pytest.approx(np.log2(1000))
    assert octaves_of_data(np.array([0.0])) == pytest.approx(0.0)  # all in one line
    assert np.isnan(octaves_of_data(np.array([np.nan])))


def test_only_what_is_known_and_matters_grows() -> None:
    spacing = np.array([[4.0, 0.1], [8.6, 0.1], [8.6, 2.5], [np.nan, np.nan], [4.0, 0.1]])
    windows = [Spacing(9.0, 0.1), Spacing(4.5, 0.2), None]
    shares = np.tile([0.5, 0.2, 0.2, 0.092, 0.008], (3, 1))
    found = growth(windows, spacing, shares)
    assert found.shape == (3, 5)
    larger = np.log2((2**9.0 - 1) / (2**4.0 - 1))
    assert found[0].tolist() == pytest.approx([larger, 0, 0, 0, 0])
    assert found[1, 1] == pytest.approx(np.log2((2**4.5 - 1) / (2**8.6 - 1)))
    assert found[1, [0, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    assert not found[2].any()
