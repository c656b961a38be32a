"""How many misses the memory of a program allows for: against caches that are simulated."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import SIZES_BYTES, burst_record, window_record
from numpy.typing import NDArray

from memsampd.estimate.estimator import Estimator
from memsampd.estimate.footprint import Footprint
from memsampd.models.exact import ExactLru, ExactRandom
from memsampd.models.policies import MODELS
from memsampd.sampler.process.mapped import MemoryUse

LINE_BYTES, PAGE_LINES = 64, 4
SIZES_LINES = np.array([8, 16, 24, 32, 48, 64, 96, 128])
POLICIES = tuple(model() for model in MODELS.values())
LRU = [model.policy for model in POLICIES].index("lru")
MIB = 1 << 20


def use(resident_lines: int, mapped_lines: int) -> MemoryUse:
    return MemoryUse(resident_lines * LINE_BYTES, mapped_lines * LINE_BYTES)


def footprint() -> Footprint:
    return Footprint(POLICIES, SIZES_LINES * LINE_BYTES, LINE_BYTES)


class Program:
    """It touches lines of pages that come and go; at a new address each time."""

    def __init__(self, seed: int, churn: float) -> None:
        self.random = random.Random(seed)
        self.churn = churn
        self.pages = list(range(6))
        self.given = len(self.pages)
        self.last = len(self.pages) - 1

    def window(self) -> tuple[list[int], MemoryUse]:
        touched = []
        for _ in range(self.random.randrange(60)):
            if self.random.random() < self.churn:
                self.pages.pop(self.random.randrange(len(self.pages)))
                self.last += 1
                self.pages.append(self.last)
                self.given += 1
            page = self.random.choice(self.pages)
            touched.append(page * PAGE_LINES + self.random.randrange(PAGE_LINES))
        given, self.given = self.given, 0
        return touched, use(len(self.pages) * PAGE_LINES, given * PAGE_LINES)


@given(seed=st.integers(0, 10_000), churn=st.sampled_from([0.0, 0.003, 0.02, 0.2]))
@settings(deadline=None)
def test_no_cache_ever_misses_more(seed: int, churn: float) -> None:
    program, told = Program(seed, churn), footprint()
    sizes = SIZES_LINES.tolist()
    exact: dict[str, ExactLru | ExactRandom] = {
        "lru": ExactLru(sizes),
        "random": ExactRandom(sizes, seed),
    }
    caches = [exact[model.policy] for model in POLICIES]
    missed = np.zeros((len(POLICIES), len(SIZES_LINES)))
    most = np.zeros_like(missed)
    for _ in range(130):
        touched, memory = program.window()
        for cache in caches:
            cache.feed(np.array(touched, np.uint64))
        missed += [cache.take_misses().misses for cache in caches]
        most += told.add(memory)
        assert np.all(missed <= most)


def test_all_that_fits_misses_new_lines_only() -> None:
    told = footprint()
    told.add(use(20, 20))
    most = told.add(use(30, 10))
    assert np.all(most[:, SIZES_LINES >= 32] == 10)
    assert np.all(np.isinf(most[:, SIZES_LINES < 32]))


def test_windows_that_end_together_share_what_was_there_before_them() -> None:
    """Each is told a part of it, but all of it may have been touched in the first."""
    told = footprint()
    for _ in range(4):
        most = told.add(use(40, 10))
        assert np.all(np.isinf(most[:, SIZES_LINES < 40]))
        assert np.all(most[:, SIZES_LINES >= 48] == 10)


def test_lines_of_pages_given_back_long_ago_are_forgotten_by_lru() -> None:
    """Thirty lines at a time, all of them others within a hundred windows."""
    told = footprint()
    for _ in range(300):
        most = told.add(use(30, 3))
    of_lru = most[LRU]
    assert np.all(np.isinf(of_lru[SIZES_LINES < 33]))
    assert of_lru[SIZES_LINES == 48].item() == 3 + 30  # those of one window before fit
    assert of_lru[SIZES_LINES == 64].item() == 3 + 30 / 10
    assert np.all(np.isinf(np.delete(most, LRU, axis=0)))


def test_nothing_is_told_of_a_window_that_nobody_looked_at() -> None:
    told = footprint()
    assert np.all(np.isinf(told.add(None)))
    assert not np.all(np.isinf(told.add(use(8, 8))))
    assert np.all(np.isinf(told.add(None)))


def estimated(memory: MemoryUse | None) -> tuple[NDArray[np.float64], float]:
    """Miss ratios of a run, low and high bounds, at all sizes, and the relative error of its rate.

    Its bursts stream for a part.
    """
    estimator = Estimator(SIZES_BYTES, LINE_BYTES)
    for index in range(40):
        given = None
        if memory is not None:
            given = msgspec.structs.replace(
                memory, mapped_bytes=memory.resident_bytes * (index == 0)
            )
        estimator.add(msgspec.structs.replace(window_record(index, 2), memory=given))
        if index % 10 == 0:
            estimator.add(burst_record(2, index, rate=1e8))
    estimator.finish()
    estimate = estimator.estimate()
    curve = estimate.curves["lru"]
    assert estimate.rate.spread is not None
    return np.array([curve.miss_ratio, curve.low, curve.high]), estimate.rate.spread


def test_caches_as_large_as_all_memory_hold_it() -> None:
    (without, _), (within, spread) = estimated(None), estimated(MemoryUse(8 * MIB, 0))
    holds = SIZES_BYTES >= 8 * MIB
    assert np.all(without[0, holds] > 0.02)
    new_lines = 8 * MIB / LINE_BYTES / (40 * 0.1 * 1e8)
    assert np.all(within[0, holds] <= new_lines * 1.001)
    assert np.all(within[2, holds] <= new_lines * 1.001 * (1 + 2 * spread))
    assert within[:, ~holds] == pytest.approx(without[:, ~holds], rel=1e-9)


def test_memory_bounds_code_that_no_burst_has_seen() -> None:
    estimator = Estimator(SIZES_BYTES, LINE_BYTES)
    estimator.add(burst_record(0, 0, rate=1e8))
    for index in range(3):
        memory = MemoryUse(8 * MIB, 8 * MIB if index == 0 else 0)
        estimator.add(msgspec.structs.replace(window_record(index, 1), memory=memory))
    curve = estimator.estimate().curves["lru"]
    assert np.all(curve.high[SIZES_BYTES >= 8 * MIB] < 0.01)
    assert np.all(curve.high[SIZES_BYTES < 8 * MIB] > 0.9)
