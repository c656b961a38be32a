"""Bursts that are remembered, and two that become one."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.estimate.memory import BurstMemory

CODE = np.eye(4) * 10


def test_two_old_ones_of_like_code_become_one() -> None:
    memory = BurstMemory(4, 2, capacity=6)
    for window, row in enumerate((0, 1, 0, 2, 3, 3)):
        memory.add(
            window, 0, CODE[row], np.array([0.1 * window, 0.0]), 1e8 * (window + 1), 0.1, 1e8, True
        )
    at, joined = memory.add(6, 0, CODE[1], np.array([0.9, 0.0]), 1e9, 0.4, 1e9, False)
    assert joined == (0, 2)
    assert at == 0
    assert memory.count == 6
    assert memory.bursts.tolist() == [1, 1, 2, 1, 1, 1]
    assert memory.window.tolist() == [6, 1, 1, 3, 4, 5]
    assert memory.curves[2, 0] == pytest.approx(0.1)
    assert memory.rates[2] == pytest.approx(np.sqrt(3) * 1e8)


def test_one_burst_is_no_better_than_those_of_its_code() -> None:
    """What was measured counts more than what is modelled; other code does not count."""
    memory = BurstMemory(4, 1)
    memory.add(0, 0, CODE[0], np.zeros(1), 1e8, 0.05, 2e8, True)
    memory.add(1, 1, CODE[0], np.zeros(1), 4e8, 0.5, 4e8, False)
    memory.add(2, 0, CODE[1], np.zeros(1), 9e10, 0.5, 9e10, False)
    rates, is_timed = memory.expected_rates()
    assert rates[0] == pytest.approx(1e8)
    assert 1e8 < rates[1] < 1.5e8
    assert rates[2] == pytest.approx(9e10)
    assert is_timed.tolist() == [True, True, False]


def test_where_no_code_is_known_each_has_its_own_rate() -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8):
        memory.add(0, 0, np.zeros(4), np.zeros(1), rate, 0.1, rate, True)
    assert memory.expected_rates()[0] == pytest.approx([1e8, 4e8])


def _two_of_like_code(codes: tuple[int, int]) -> list[float]:
    memory = BurstMemory(4, 1)
    for rate, code in zip((1e8, 4e8), codes, strict=True):
        memory.add(0, 0, CODE[0], np.zeros(1), rate, 0.01, rate, True, code)
    return [float(rate) for rate in memory.expected_rates()[0]]


def test_the_same_code_may_go_at_two_rates() -> None:
    """On two working sets: a step of its counter is as many accesses on both."""
    assert _two_of_like_code((5, 5)) == pytest.approx([1e8, 4e8])


def test_measurements_that_dispute_each_other_are_pooled() -> None:
    """A step of the counter is not the same work every time."""
    assert _two_of_like_code((5, 6)) == pytest.approx([2e8, 2e8])


def test_what_the_model_missed_where_it_was_tried_corrects_it_elsewhere() -> None:
    memory = BurstMemory(4, 1)
    for at in range(3):
        memory.add(at, 0, CODE[0], np.zeros(1), 1e9, 0.01, 1e8, True, 1)
    memory.add(3, 0, CODE[1], np.zeros(1), 1.1e8, 0.7, 1.1e8, False)
    memory.add(4, 0, CODE[2], np.zeros(1), 1e12, 0.7, 1e12, False)
    rates, is_rated = memory.expected_rates()
    assert 3e8 < rates[3] < 1.1e9
    assert rates[4] == pytest.approx(1e12, rel=0.01)
    assert is_rated.tolist() == [True] * 3 + [False] * 2
