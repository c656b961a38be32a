"""Milestones of bursts that are made up, and what hits at them tell."""

from __future__ import annotations

import numpy as np

from memsampd.sampler.clock.held import Milestone, find_milestones, fresh_lines, rate_of
from memsampd.sampler.clock.hits import Hits
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.records import TimedStretch

ROWS = 40_000
HIT_SECONDS = 1e-5


def burst(*, new_line_every: int) -> Rows:
    """Loads of a few lines, and of a new one now and then."""
    address = 0x1000 + 8 * (np.arange(ROWS, dtype=np.uint64) % 64)
    at = np.arange(0, ROWS, new_line_every)
    address[at] = 0x100_0000 + 64 * np.arange(len(at), dtype=np.uint64) + 4
    return Rows(np.full(ROWS, 0x401000, np.uint64), address, np.full(ROWS, 4, np.uint16))


def test_milestones_are_the_last_first_touches_before_each_quarter() -> None:
    rows = burst(new_line_every=100)
    found = find_milestones(rows)
    assert [milestone.row for milestone in found] == [9_900, 19_900, 29_900, 39_900]
    for milestone in found:
        touched = int(rows.address[milestone.row])
        assert milestone.address % 8 == 0
        assert milestone.address <= touched < milestone.address + 8
        line = rows.address >> np.uint64(6)
        assert touched >> 6 not in line[: milestone.row]


def test_lines_touched_before_are_none() -> None:
    rows = burst(new_line_every=100)
    # The second half repeats the first one.
    rows.address[ROWS // 2 :] = rows.address[: ROWS // 2]
    assert [milestone.row for milestone in find_milestones(rows)] == [9_900, 19_900]


def test_a_line_that_another_reference_crossed_into_is_none() -> None:
    rows = burst(new_line_every=100)
    line = int(rows.address[9_900]) & -64
    rows.address[5], rows.size_bytes[5] = line - 4, 8
    # The one before it is of the line that the reference begins in.
    assert find_milestones(rows)[0].row == 9_700


def test_a_burst_without_new_lines_has_none() -> None:
    rows = burst(new_line_every=100)
    rows.address[:] = 0x1000
    assert find_milestones(rows) == []


def test_fresh_lines_are_those_not_touched_before() -> None:
    rows = burst(new_line_every=100)
    assert fresh_lines(rows, 9_900, 19_900) == 100


MILESTONES = [Milestone(100, 0x1000), Milestone(1_100, 0x2000), Milestone(2_100, 0x3000)]
# One line all the time: nothing is warmed.
STILL = Rows(np.ones(3_000, np.uint64), np.ones(3_000, np.uint64), np.ones(3_000, np.uint16))


def hits(points: list[int], seconds: list[float]) -> Hits:
    return Hits(np.array(seconds), np.array(points, np.uint32))


def test_hits_between_the_first_and_the_last_are_taken_off() -> None:
    timed = rate_of(hits([0, 1, 2], [0.1, 0.2, 0.3]), STILL, MILESTONES, HIT_SECONDS)
    assert isinstance(timed, TimedStretch)
    assert timed.accesses == 2_000
    assert np.isclose(timed.cpu_seconds, 0.2 - 2 * HIT_SECONDS)


def test_another_course_than_the_burst_is_told() -> None:
    for points, why in (([0], "few-hits"), ([1, 0], "order"), ([0, 2], "order")):
        found = rate_of(hits(points, [0.1, 0.2][: len(points)]), STILL, MILESTONES, HIT_SECONDS)
        assert isinstance(found, Untimed)
        assert (found.reason, found.hits) == (why, len(points))


def test_many_new_lines_in_a_short_time_are_refused() -> None:
    rows = burst(new_line_every=10)
    milestones = [Milestone(10_000, 0x1000), Milestone(30_000, 0x2000)]  # 2,000 lines: 200 us
    fast, slow = (
        rate_of(hits([0, 1], [0.0, seconds]), rows, milestones, HIT_SECONDS)
        for seconds in (1e-3, 1e-2)
    )
    assert isinstance(fast, Untimed)
    assert fast.reason == "warmed"
    assert isinstance(slow, TimedStretch)
