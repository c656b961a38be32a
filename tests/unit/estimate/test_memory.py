"""Bursts that are remembered, and two that become one."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.estimate.memory import BurstMemory

CODE = np.eye(4) * 10


def test_two_old_ones_of_like_code_become_one() -> None:
    memory = BurstMemory(4, 2, capacity=6)
    for window, row in enumerate((0, 1, 0, 2, 3, 3)):
        memory.add(window, 0, CODE[row], np.array([0.1 * window, 0.0]), 1e8 * (window + 1))
    at, joined = memory.add(6, 0, CODE[1], np.array([0.9, 0.0]), None)
    assert joined == (0, 2)
    assert at == 0
    assert memory.count == 6
    assert memory.bursts.tolist() == [1, 1, 2, 1, 1, 1]
    assert memory.window.tolist() == [6, 1, 1, 3, 4, 5]
    assert memory.curves[2, 0] == pytest.approx(0.1)
    assert memory.rates[2] == pytest.approx(np.sqrt(3) * 1e8)


def test_rates_of_like_code_go_before_those_of_the_phase() -> None:
    memory = BurstMemory(4, 1)
    for phase, row, rate in ((0, 0, 1e8), (0, 1, 4e8), (1, 1, None), (0, 2, None), (2, 3, None)):
        memory.add(0, phase, CODE[row], np.zeros(1), rate)
    rates, is_known = memory.expected_rates()
    assert rates == pytest.approx([1e8, 4e8, 4e8, 2.5e8, 2.5e8], rel=0.01)
    assert is_known.tolist() == [True, True, True, True, False]


def test_without_any_measurement_all_are_alike() -> None:
    memory = BurstMemory(4, 1)
    memory.add(0, 0, CODE[0], np.zeros(1), None)
    rates, is_known = memory.expected_rates()
    assert (rates.tolist(), is_known.tolist()) == ([1.0], [False])


def test_exact_measurements_count_more_than_guesses() -> None:
    memory = BurstMemory(4, 1)
    memory.add(0, 0, CODE[0], np.zeros(1), 1e8, 0.05)
    memory.add(0, 0, CODE[0], np.zeros(1), 4e8, 0.5)
    rates, _ = memory.expected_rates()
    assert rates[0] < 1.5e8
