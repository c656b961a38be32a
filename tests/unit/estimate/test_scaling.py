"""Curves of the same code on more data, or less, against exact ones of such code."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.estimate.evidence import spacing_table
from memsampd.estimate.scaling import growth, more_misses, octaves_of_data
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
    more = more_misses(curve[None], SIZE_LINES, octaves[:1], octaves[1:] - octaves[:1], SIZE_LINES)
    found = curve + more[0]
    exact = miss_ratios(way, after)
    # A step lies somewhere between two sizes: there nobody can tell.
    is_step = np.abs(np.diff(exact, prepend=exact[0])) > 0.3
    is_step |= np.abs(np.diff(exact, append=exact[-1])) > 0.3
    assert found[~is_step] == pytest.approx(exact[~is_step], abs=0.05)
    assert np.abs(curve - exact).max() > 0.5  # what it would be taken for
    assert np.abs(found - exact).mean() < 0.2 * np.abs(curve - exact).mean()


def test_what_is_found_does_not_depend_on_what_else_is_asked_for() -> None:
    ratios = np.linspace(0.9, 0.0, len(SIZE_LINES))[None] ** 2
    data, grown = np.array([10.0]), np.array([-2.6])
    sizes = SIZE_LINES[0] * np.exp2(np.array([0.0, 0.4, 3.3, 5.0, 7.5, 40.0]))
    found = more_misses(ratios, SIZE_LINES, data, grown, sizes)[0]
    alone = [more_misses(ratios, SIZE_LINES, data, grown, sizes[[at]])[0, 0] for at in range(6)]
    assert found.tolist() == alone
    assert (found <= 0).all()
    assert found.min() < -0.05
    assert not more_misses(ratios, SIZE_LINES, data, np.zeros(1), sizes).any()


def test_data_are_as_large_as_what_lies_so_far_apart() -> None:
    """Fifty lines at random in an area of a thousand lie ten apart."""
    assert octaves_of_data(np.log2(np.array([1 + 10.0]))) == pytest.approx(np.log2(1000))
    assert octaves_of_data(np.array([0.0])) == pytest.approx(0.0)  # all in one line
    assert np.isnan(octaves_of_data(np.array([np.nan])))


def test_only_what_is_known_and_matters_grows() -> None:
    spacing = np.array([[4.0, 0.1], [8.6, 0.1], [8.6, 2.5], [np.nan, np.nan], [4.0, 0.1]])
    windows = [Spacing(9.0, 0.1), Spacing(4.5, 0.2), None]
    shares = np.tile([0.5, 0.2, 0.2, 0.092, 0.008], (3, 1))
    found = growth(spacing_table(windows), spacing, shares)
    assert found.shape == (3, 5)
    larger = np.log2((2**9.0 - 1) / (2**4.0 - 1))
    assert found[0].tolist() == pytest.approx([larger, 0, 0, 0, 0])
    assert found[1, 1] == pytest.approx(np.log2((2**4.5 - 1) / (2**8.6 - 1)))
    assert found[1, [0, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    assert not found[2].any()
