"""Expected stops against machines whose true cost is known."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd.sampler.shadow.stops import StopEstimator, read_huge_bytes

GB = 10**9


@dataclass
class Machine:
    """Time that the test moves, and huge pages that it counts how often one asked for."""

    now: float = 1000.0
    huge_bytes: int = 0
    walks: list[float] = field(default_factory=list)

    def walk(self) -> int:
        self.walks.append(self.now)
        return self.huge_bytes

    def estimator(self, max_stop_seconds: float = 0.02) -> StopEstimator:
        return StopEstimator(max_stop_seconds, self.walk, lambda: self.now)


def test_the_prior_is_20_ms_a_gigabyte() -> None:
    estimator = Machine().estimator()
    assert estimator.estimate(GB) == pytest.approx(0.02, rel=0.05)
    assert estimator.forbids(2 * GB)
    assert not estimator.forbids(GB // 2)
    assert estimator.forbids(GB // 2, count=4)


@given(st.floats(1e-12, 1e-10), st.integers(200 * 10**6, 10 * GB))
def test_measured_stops_become_the_estimate(seconds_per_byte: float, size_bytes: int) -> None:
    estimator = Machine().estimator()
    true = 0.3e-3 + seconds_per_byte * size_bytes
    before = abs(estimator.estimate(size_bytes) - true)
    for _ in range(30):
        estimator.learn(size_bytes, 1, true)
    after = abs(estimator.estimate(size_bytes) - true)
    assert after <= before / 15 + 1e-12


def test_shadows_of_one_stop_cost_one_copy_each() -> None:
    estimator = Machine().estimator()
    for _ in range(30):
        estimator.learn(GB, 3, 3 * (0.3e-3 + 5e-3))
    assert estimator.estimate(GB, 1) == pytest.approx(5.3e-3, rel=0.05)
    assert estimator.estimate(GB, 2) == pytest.approx(2 * estimator.estimate(GB))


def test_long_stops_are_held_against_a_target_for_a_minute() -> None:
    machine = Machine()
    estimator = machine.estimator()
    for _ in range(10):
        estimator.learn(GB // 10, 1, 0.1)
    assert estimator.forbids(GB // 10)
    machine.now += 30
    assert estimator.forbids(GB // 10)
    machine.now += 31
    assert not estimator.forbids(GB // 10)
    for _ in range(3):
        estimator.learn(GB // 10, 1, 0.4)
    assert estimator.forbids(GB // 10)


def test_one_stop_in_a_busy_moment_forbids_nothing_a_few_do() -> None:
    estimator = Machine().estimator()
    estimator.learn(GB // 20, 1, 0.1)
    assert not estimator.forbids(GB // 20)
    for _ in range(5):
        estimator.learn(GB // 20, 1, 0.1)
    assert estimator.forbids(GB // 20)


def test_what_shrinks_is_allowed_again() -> None:
    estimator = Machine().estimator()
    assert estimator.forbids(3 * GB)
    assert not estimator.forbids(GB // 3)


def test_huge_pages_are_counted_only_where_it_matters_and_once_a_minute() -> None:
    machine = Machine(huge_bytes=2 * GB)
    estimator = machine.estimator()
    assert not estimator.forbids(GB // 2)
    assert estimator.forbids(100 * GB)  # even were they all huge
    assert machine.walks == []
    assert estimator.forbids(4 * GB)
    machine.huge_bytes = 4 * GB
    machine.now += 59
    assert estimator.forbids(4 * GB)
    assert len(machine.walks) == 1
    machine.now += 2
    assert not estimator.forbids(4 * GB)
    assert len(machine.walks) == 2


def test_huge_pages_of_ourselves() -> None:
    resident_bytes = 4096 * int(Path("/proc/self/statm").read_text().split()[1])
    assert 0 <= read_huge_bytes(os.getpid()) <= resident_bytes
    assert read_huge_bytes(2**22 + 1) == 0


def test_copies_of_what_a_clone_lacks_come_on_top_once() -> None:
    estimator = Machine().estimator(0.025)
    alone = estimator.estimate(GB)
    assert estimator.estimate(GB, 1, 10**7) == pytest.approx(alone + 5e-3)
    assert estimator.estimate(GB, 2, 10**7) == pytest.approx(2 * alone + 5e-3)
    assert not estimator.forbids(GB, 1, 10**6)
    assert estimator.forbids(GB, 1, 10**7)
    for _ in range(30):
        estimator.learn_copy(10**7, 1e-3)
    assert estimator.estimate(GB, 1, 10**7) == pytest.approx(alone + 1e-3, rel=0.05)
    assert not estimator.forbids(GB, 1, 10**7)
