"""Rates by the pace of a replica, from made-up runs."""

from __future__ import annotations

import pytest

from memsampd.sampler.records import TimedStretch
from memsampd.sampler.replica.pace import FIRST_ERROR, FIRST_RATIO, LEARNT_ERROR, Pace


def test_translated_code_is_slower_than_the_program_s_own() -> None:
    found = Pace().estimate(3e-3, 200_000, 0)
    assert found is not None
    assert found.cpu_seconds == pytest.approx(3e-3 / FIRST_RATIO)
    assert (found.accesses, found.method, found.error) == (200_000, "pace", FIRST_ERROR)


def test_a_new_page_takes_time_that_the_replica_does_not_see() -> None:
    pace = Pace()
    without, with_pages = (pace.estimate(1e-4, 1000, pages) for pages in (0, 500))
    assert without is not None
    assert with_pages is not None
    assert with_pages.cpu_seconds > without.cpu_seconds


def test_nothing_is_said_of_no_access() -> None:
    assert Pace().estimate(1e-3, 0, 3) is None


def test_a_burst_whose_stops_hide_its_run_is_rough() -> None:
    pace = Pace()
    for _ in range(5):
        pace.learn(2e-3, 1_000_000, TimedStretch(500_000, 5e-4, "moments"))
    rough = pace.estimate(None, 1000, 10)
    assert rough is not None
    assert rough.error == FIRST_ERROR


def test_the_ratio_is_learnt_from_bursts_that_were_timed() -> None:
    pace = Pace()
    for _ in range(50):  # a replica that takes twice the target's time
        pace.learn(2e-3, 1_000_000, TimedStretch(500_000, 5e-4, "moments"))
    found = pace.estimate(2e-3, 1_000_000, 0)
    assert found is not None
    assert found.cpu_seconds == pytest.approx(1e-3, rel=0.01)
    assert found.error == LEARNT_ERROR
