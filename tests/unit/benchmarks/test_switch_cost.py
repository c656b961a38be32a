"""What events take at switches: compared within turns, in changing order."""

from __future__ import annotations

import pytest

from switch_cost import ALONE, SAMPLED, WAYS, more_seconds
from targets.options import rotated


def test_a_slower_turn_takes_nothing_from_the_difference() -> None:
    found = {ALONE: [1.0, 2.0, 9.0], SAMPLED: [3.5, 2.5, 9.5]}
    assert more_seconds(found, SAMPLED, ALONE) == pytest.approx(0.5)


def test_each_turn_begins_with_another_way() -> None:
    turns = [rotated(WAYS, turn) for turn in range(len(WAYS))]
    assert all(set(ways) == set(WAYS) for ways in turns)
    assert [ways[0] for ways in turns] == list(WAYS)
