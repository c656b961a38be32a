"""Divisions of a cache, held against all that there are."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.partition import Goal, lookahead


def every_division(programs: int, ways: int) -> list[tuple[int, ...]]:
    each = range(1, ways + 1)
    return [one for one in itertools.product(each, repeat=programs) if sum(one) == ways]


def missed(costs: NDArray[np.float64], ways: Sequence[int]) -> float:
    return sum(float(row[has]) for row, has in zip(costs, ways, strict=True))


@st.composite
def falling_costs(draw: st.DrawFn) -> NDArray[np.float64]:
    programs, ways = draw(st.integers(1, 4)), draw(st.integers(4, 7))
    falls = draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=ways + 1, max_size=ways + 1),
            min_size=programs,
            max_size=programs,
        )
    )
    return np.cumsum(np.array(falls, float)[:, ::-1], axis=1)[:, ::-1]


def test_too_few_ways_are_refused() -> None:
    with pytest.raises(ValueError, match="3 programs, 2 ways each at least, 5 ways"):
        lookahead(np.zeros((3, 6)), "misses", 2)


@given(falling_costs(), st.sampled_from(["misses", "fairness"]))
def test_lookahead_gives_all_ways_away(costs: NDArray[np.float64], goal: Goal) -> None:
    found = lookahead(costs, goal)
    assert sum(found) == costs.shape[1] - 1
    assert min(found) >= 1


@given(st.lists(st.lists(st.integers(0, 9), min_size=7, max_size=7), min_size=2, max_size=4))
def test_lookahead_is_best_on_convex_curves(falls: list[list[int]]) -> None:
    falls = [sorted(row, reverse=True) for row in falls]
    costs = np.array([[sum(row[at:]) for at in range(len(row) + 1)] for row in falls], float)
    every = every_division(len(costs), costs.shape[1] - 1)
    assert missed(costs, lookahead(costs, "misses")) == min(missed(costs, one) for one in every)


def test_lookahead_sees_beyond_a_plateau() -> None:
    cliff = np.array([100, 100, 100, 100, 0, 0, 0], float)  # useless before the fourth way
    slope = np.array([10, 9, 8, 7, 6, 5, 4], float)
    assert lookahead(np.array([cliff, slope]), "misses") == [4, 2]


def test_a_cliff_out_of_reach_is_no_reason_to_give_anything() -> None:
    far = np.array([100, 100, 100, 100, 100, 100, 0], float)  # needs all six ways
    slope = np.array([60, 50, 40, 30, 20, 10, 0], float)
    assert lookahead(np.array([far, slope]), "misses") == [1, 5]
