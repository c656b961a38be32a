"""References made again: what start-up changes is tolerated, more is not."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest
from invented_reference import misses_alone

from reference.comparison import compare, due
from reference.programs import PROGRAMS
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES, LRU_SIZES_BYTES


@pytest.fixture
def kept() -> Reference:
    rng = np.random.default_rng(2)
    misses = np.sort(rng.integers(0, 10**6, (50, len(LRU_SIZES_BYTES))), axis=1)[:, ::-1]
    return misses_alone(np.full(50, 10**6), misses, misses[:, : len(ERROR_SIZES_BYTES)])


def test_the_same_is_the_same(kept: Reference) -> None:
    found = compare(kept, kept)
    assert found.same
    assert found.tolerable
    assert (found.accesses, found.whole_run, found.windows) == (0, 0, 0)


def test_a_few_accesses_more_at_the_start_are_tolerated(kept: Reference) -> None:
    accesses = kept.accesses.copy()
    accesses[-1] += 90
    found = compare(kept, replace(kept, accesses=accesses, lru=kept.lru + 20))
    assert not found.same
    assert found.tolerable
    assert found.whole_run == pytest.approx(0.002, rel=0.2)


def test_another_curve_is_not_tolerated(kept: Reference) -> None:
    assert not compare(kept, replace(kept, lru=kept.lru + 1000)).tolerable
    assert not compare(kept, replace(kept, random=kept.random + 1000)).tolerable


def test_the_same_mean_of_other_windows_is_not_tolerated(kept: Reference) -> None:
    flat = np.tile(kept.lru.mean(axis=0).round().astype(np.int64), (50, 1))
    found = compare(kept, replace(kept, lru=flat))
    assert found.whole_run < 0.001
    assert not found.tolerable


def test_every_program_has_its_day() -> None:
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(i) for i in range(len(PROGRAMS))]
    assert {due(PROGRAMS, day).name for day in days} == {program.name for program in PROGRAMS}
