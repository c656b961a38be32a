"""The sum of holds in any 100 ms, on a clock that a test moves."""

from __future__ import annotations

import random

import pytest

from memsampd.sampler.replica.holds import HoldLimit

MOST_SECONDS = 0.005


class Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_seconds = 100.0

    def now(self) -> float:
        return self.now_seconds

    def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def limit(time: Time) -> HoldLimit:
    return HoldLimit(time.now, time.sleep)


def never() -> bool:
    return False


def test_holds_of_any_100_ms_are_at_most_what_is_allowed(time: Time, limit: HoldLimit) -> None:
    rng = random.Random(1)
    held: list[tuple[float, float]] = []  # end, seconds
    for _ in range(200):
        limit.wait(MOST_SECONDS, never)
        left_seconds = MOST_SECONDS - limit.lately_seconds()
        assert left_seconds >= MOST_SECONDS / 2
        seconds = left_seconds * rng.random()
        time.sleep(seconds)
        limit.add(seconds)
        held.append((time.now_seconds, seconds))
        time.sleep(0.02 * rng.random())
    for end, _ in held:
        lately = sum(seconds for each, seconds in held if end - 0.1 < each <= end)
        assert lately <= MOST_SECONDS + 1e-9


def test_nobody_waits_while_half_is_left(time: Time, limit: HoldLimit) -> None:
    limit.add(MOST_SECONDS / 2)
    limit.wait(MOST_SECONDS, never)
    assert time.now_seconds == 100.0
    limit.add(MOST_SECONDS / 4)
    limit.wait(MOST_SECONDS, never)
    assert time.now_seconds == pytest.approx(100.1, abs=0.001)


@pytest.mark.parametrize("most_seconds", [0.0001, 0.0003])
def test_the_shortest_holds_are_not_waited_for_for_ever(
    time: Time, limit: HoldLimit, most_seconds: float
) -> None:
    limit.wait(most_seconds, never)
    assert time.now_seconds == 100.0
    limit.add(most_seconds)
    limit.wait(most_seconds, never)
    assert time.now_seconds == pytest.approx(100.1, abs=0.001)


def test_who_is_cancelled_does_not_wait(time: Time, limit: HoldLimit) -> None:
    limit.add(MOST_SECONDS)
    limit.wait(MOST_SECONDS, lambda: True)
    assert time.now_seconds == 100.0
