"""How long a scout stays out, and how often it is observed."""

from __future__ import annotations

import random

from memsampd.daemon.moments import (
    FEWEST_MOMENTS,
    LONGEST_GAP_SECONDS,
    SHORTEST_GAP_SECONDS,
    Moments,
)


def moments(
    until_next_seconds: float, most: int = 100, gap_seconds: float | None = None
) -> Moments:
    return Moments(random.Random(1), most, gap_seconds, until_next_seconds)


def test_a_stop_that_can_be_repeated_at_once_gives_the_fewest() -> None:
    gaps = list(moments(0.0))
    assert len(gaps) == FEWEST_MOMENTS - 1
    assert all(0.5 * SHORTEST_GAP_SECONDS <= gap <= 1.5 * SHORTEST_GAP_SECONDS for gap in gaps)
    assert len(set(gaps)) == len(gaps)


def test_it_stays_out_until_the_next_stop_can_be_paid_for() -> None:
    plan = moments(8.0)
    gaps = []
    for gap in plan:
        gaps.append(gap)
        plan.until_next_seconds = max(8.0 - sum(gaps), 0.0)
    assert 8.0 <= sum(gaps) < 8.0 + 1.5 * LONGEST_GAP_SECONDS
    assert sum(gaps[:5]) > sum(gaps[-5:])  # the farther the next stop, the wider they are


def test_whoever_calls_it_back_is_heard() -> None:
    plan = moments(1e9)
    iterator = iter(plan)
    assert next(iterator) <= 1.5 * LONGEST_GAP_SECONDS
    plan.is_over = True
    assert list(iterator) == []


def test_what_the_user_asks_for() -> None:
    assert list(moments(1e9, most=1)) == []
    gaps = list(moments(1e9, most=5, gap_seconds=3.0))
    assert len(gaps) == 4
    assert all(1.5 <= gap <= 4.5 for gap in gaps)
