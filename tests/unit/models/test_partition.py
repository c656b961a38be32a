"""Divisions of a cache, held against all that there are."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.partition import Goal, divide, lookahead


def every_division(programs: int, ways: int, least: int) -> list[tuple[int, ...]]:
    each = range(least, ways + 1)
    return [one for one in itertools.product(each, repeat=programs) if sum(one) == ways]


def judged(costs: NDArray[np.float64], ways: tuple[int, ...], goal: Goal) -> tuple[float, ...]:
    paid = [float(row[has]) for row, has in zip(costs, ways, strict=True)]
    return (sum(paid),) if goal == "misses" else (max(paid), sum(paid))


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


@given(falling_costs(), st.sampled_from(["misses", "fairness"]), st.integers(1, 2))
def test_no_division_is_better(costs: NDArray[np.float64], goal: Goal, least: int) -> None:
    programs, ways = len(costs), costs.shape[1] - 1
    divisions = every_division(programs, ways, least)
    if not divisions:
        with pytest.raises(ValueError, match="ways each at least"):
            divide(costs, goal, least)
        return
    found = tuple(divide(costs, goal, least))
    assert found in divisions
    assert judged(costs, found, goal) == min(judged(costs, one, goal) for one in divisions)


@given(falling_costs(), st.sampled_from(["misses", "fairness"]))
def test_lookahead_gives_all_ways_away(costs: NDArray[np.float64], goal: Goal) -> None:
    found = lookahead(costs, goal)
    assert sum(found) == costs.shape[1] - 1
    assert min(found) >= 1


@given(st.lists(st.lists(st.integers(0, 9), min_size=7, max_size=7), min_size=2, max_size=4))
def test_lookahead_is_best_on_convex_curves(falls: list[list[int]]) -> None:
    falls = [sorted(row, reverse=True) for row in falls]
    costs = np.array([[sum(row[at:]) for at in range(len(row) + 1)] for row in falls], float)
    ways = tuple(lookahead(costs, "misses"))
    best = tuple(divide(costs, "misses"))
    assert judged(costs, ways, "misses") == judged(costs, best, "misses")


def test_lookahead_sees_beyond_a_plateau() -> None:
    cliff = np.array([100, 100, 100, 100, 0, 0, 0], float)  # useless before the fourth way
    slope = np.array([10, 9, 8, 7, 6, 5, 4], float)
    assert lookahead(np.array([cliff, slope]), "misses") == [4, 2]


def test_a_cliff_out_of_reach_is_no_reason_to_give_anything() -> None:
    far = np.array([100, 100, 100, 100, 100, 100, 0], float)  # needs all six ways
    slope = np.array([60, 50, 40, 30, 20, 10, 0], float)
    assert divide(np.array([far, slope]), "misses") == [1, 5]
    assert lookahead(np.array([far, slope]), "misses") == [1, 5]
