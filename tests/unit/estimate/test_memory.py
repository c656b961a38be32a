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
            window, 0, CODE[row], np.array([0.1 * window, 0.0]), 1e8 * (window + 1), 0.1, True
        )
    at, joined = memory.add(6, 0, CODE[1], np.array([0.9, 0.0]), 1e9, 0.4, False)
    assert joined == (0, 2)
    assert at == 0
    assert memory.count == 6
    assert memory.bursts.tolist() == [1, 1, 2, 1, 1, 1]
    assert memory.window.tolist() == [6, 1, 1, 3, 4, 5]
    assert memory.curves[2, 0] == pytest.approx(0.1)
    assert memory.rates[2] == pytest.approx(np.sqrt(3) * 1e8)


def test_one_burst_is_no_better_than_those_of_its_code() -> None:
    """Exact measurements count more than what is modelled; other code does not count."""
    memory = BurstMemory(4, 1)
    memory.add(0, 0, CODE[0], np.zeros(1), 1e8, 0.05, True)
    memory.add(1, 1, CODE[0], np.zeros(1), 4e8, 0.5, False)
    memory.add(2, 0, CODE[1], np.zeros(1), 9e8, 0.5, False)
    rates, is_timed = memory.expected_rates()
    assert 1e8 < rates[0] < 1.5e8
    assert rates[1] == pytest.approx(rates[0])
    assert rates[2] == pytest.approx(9e8)
    assert is_timed.tolist() == [True, True, False]


def test_where_no_code_is_known_each_has_its_own_rate() -> None:
    memory = BurstMemory(4, 1)
    for rate in (1e8, 4e8):
        memory.add(0, 0, np.zeros(4), np.zeros(1), rate, 0.1, True)
    assert memory.expected_rates()[0] == pytest.approx([1e8, 4e8])
