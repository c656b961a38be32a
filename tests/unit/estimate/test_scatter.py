"""How much bursts of a phase differ, held against the whole run's ratio worked out anew."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.estimate.scatter import phase_bands, phase_scatter

ONE = np.ones(1)


def test_the_deviation_is_that_of_the_whole_runs_ratio() -> None:
    """Exchange the burst that speaks for a second of a phase: how far does the ratio move?"""
    rng = np.random.default_rng(4)
    count, seconds = 400, 1000.0
    rates = np.exp(rng.normal(0, 0.3, count))
    ratios = np.clip(rng.normal(0.3, 0.1, (count, 2)), 0, 1)
    accesses, misses = rates.mean() * seconds, (rates[:, None] * ratios).mean(axis=0) * seconds
    overall = misses / accesses
    moved = [
        (misses + rate * ratio) / (accesses + rate) - overall
        for rate, ratio in zip(rates, ratios, strict=True)
    ]
    expected = np.sqrt((np.std(moved, axis=0) ** 2).mean()) * accesses
    found = phase_scatter(
        np.zeros(count, np.int64), np.ones(count), rates, ratios, np.zeros((count, 2)), overall
    )
    assert found[0] == pytest.approx(expected, rel=0.01)


def test_phases_seen_once_are_as_uncertain_as_others_are() -> None:
    phases = np.array([0, 0, 0, 1])
    ratios = np.array([[0.1], [0.2], [0.3], [0.9]])
    found = phase_scatter(phases, np.ones(4), np.ones(4), ratios, np.zeros((4, 1)), 0.2 * ONE)
    assert found[1] == pytest.approx(0.1)  # the deviation of the three
    assert found[0] == pytest.approx(0.1)


def test_bursts_that_agree_tell_so_the_more_the_more_there_are() -> None:
    def steady(count: int) -> float:
        phases = np.array([1, 1] + [0] * count)
        ratios = np.array([[0.1], [0.3]] + [[0.5]] * count)
        ones = np.ones(count + 2)
        return phase_scatter(phases, ones, ones, ratios, np.zeros((count + 2, 1)), 0.2 * ONE)[0]

    assert steady(2) > steady(4) > steady(16)


def test_sizes_that_bursts_leave_open_do_not_count() -> None:
    ratios = np.array([[0.1, 0.0], [0.1, 1.0], [0.3, 0.0], [0.3, 1.0]])
    widths = np.array([[0.0, 1.0]] * 4)
    phases = np.array([0, 0, 1, 1])
    found = phase_scatter(phases, np.ones(4), np.ones(4), ratios, widths, np.array([0.2, 0.5]))
    assert found == pytest.approx({0: 0.0, 1: 0.0})
    assert not phase_scatter(phases[:1], ONE, ONE, ratios[:1], widths[:1], np.array([0.2, 0.5]))


def test_bands_are_means_over_sizes_and_bursts() -> None:
    widths = np.array([[0.0, 0.2], [0.2, 0.4], [0.0, 0.0]])
    found = phase_bands(np.array([3, 3, 5]), np.array([3.0, 1.0, 1.0]), widths)
    assert found == pytest.approx({3: 0.75 * 0.1 + 0.25 * 0.3, 5: 0.0})
