"""The error measures, against their definitions evaluated by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reference.metrics import cdf_error, distribution_area, whole_run_error

GRID = 20_000

Sample = tuple[NDArray[np.float64], NDArray[np.float64]]


def area_on_a_grid(left: Sample, right: Sample) -> float:
    """Evaluate both distributions at the middle of every cell of [0, 1]."""
    at = (np.arange(GRID) + 0.5) / GRID
    gap = np.zeros(GRID)
    for (values, weights), sign in ((left, 1), (right, -1)):
        for value, weight in zip(values, weights / weights.sum(), strict=True):
            gap[at >= value] += sign * weight
    return float(np.abs(gap).mean())


samples = st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=1, max_size=12).map(
    lambda pairs: (np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]))
)


@given(samples, samples)
def test_area_is_that_of_a_fine_grid(left: Sample, right: Sample) -> None:
    # Each step of either distribution can be misplaced by half a cell.
    tolerance = (len(left[0]) + len(right[0])) / GRID
    assert distribution_area(*left, *right) == pytest.approx(
        area_on_a_grid(left, right), abs=tolerance
    )


@given(samples, samples)
def test_area_is_symmetric_and_at_least_the_difference_of_the_means(
    left: Sample, right: Sample
) -> None:
    area = distribution_area(*left, *right)
    assert area == pytest.approx(distribution_area(*right, *left), abs=1e-12)
    means = [np.average(values, weights=weights) for values, weights in (left, right)]
    assert area >= abs(means[0] - means[1]) - 1e-9


@given(samples)
def test_the_order_and_the_cutting_of_windows_do_not_matter(sample: Sample) -> None:
    values, weights = sample
    halves = np.concatenate([weights, weights])[::-1] / 2
    assert distribution_area(
        values, weights, np.concatenate([values, values])[::-1], halves
    ) == pytest.approx(0, abs=1e-12)


def test_two_constants_are_their_distance_apart() -> None:
    one = np.ones(1)
    assert distribution_area(0.2 * one, one, 0.7 * one, one) == pytest.approx(0.5)


def test_a_window_without_accesses_counts_for_nothing() -> None:
    area = distribution_area(
        np.array([0.1, 0.9]), np.array([1.0, 0.0]), np.array([0.1]), np.array([1.0])
    )
    assert area == 0


def test_equal_means_in_other_windows_are_still_a_cdf_error() -> None:
    phases = np.array([[0.0], [1.0]])
    flat = np.array([[0.5]])
    assert cdf_error(phases, np.ones(2), flat, np.ones(1)) == pytest.approx(50)
    assert whole_run_error(np.array([0.5]), np.array([0.5])) == 0


def test_errors_are_means_over_sizes_in_percent() -> None:
    estimated, reference = np.array([[0.5, 0.2]]), np.array([[0.4, 0.2]])
    one = np.ones(1)
    assert whole_run_error(estimated[0], reference[0]) == pytest.approx(5)
    assert cdf_error(estimated, one, reference, one) == pytest.approx(5)
