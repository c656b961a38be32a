"""Synthetic streams whose curves are known, and naive oracles for what the package computes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

Lines = NDArray[np.uint64]


def loop_stream(lines: int, accesses: int) -> Lines:
    return (np.arange(accesses, dtype=np.uint64) % np.uint64(lines)) + np.uint64(1 << 40)


def uniform_stream(lines: int, accesses: int, seed: int) -> Lines:
    return np.random.default_rng(seed).integers(0, lines, accesses).astype(np.uint64)


def zipf_stream(lines: int, accesses: int, seed: int) -> Lines:
    weights = 1 / np.arange(1, lines + 1)
    rng = np.random.default_rng(seed)
    return rng.choice(lines, accesses, p=weights / weights.sum()).astype(np.uint64)


def mixed_stream(accesses: int, seed: int) -> Lines:
    """Interleave at random a hot set, a loop, a large random set and a stream."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(4, accesses, p=[0.5, 0.25, 0.2, 0.05])
    place = np.empty(accesses, np.int64)
    for k in range(4):
        mine = kind == k
        count = int(mine.sum())
        place[mine] = [
            rng.integers(0, 40, count),
            np.arange(count) % 700,
            rng.integers(0, 3000, count),
            np.arange(count),
        ][k]
    return (place + (kind << 30)).astype(np.uint64)


class Oracles:
    """Slow and plain; no code shared with the package."""

    @staticmethod
    def stack_distances(lines: Lines) -> list[int]:
        """Keep a list in order of last touch."""
        order: list[int] = []
        distances = []
        for line in lines.tolist():
            if line in order:
                distances.append(order.index(line))
                order.remove(line)
            else:
                distances.append(-1)
            order.insert(0, line)
        return distances

    @staticmethod
    def random_misses(lines: Lines, size_lines: int, seed: int) -> int:
        """Simulate one cache with Python's own generator."""
        rng = np.random.default_rng(seed)
        victims = rng.integers(0, size_lines, len(lines)).tolist()
        slots: list[int] = []
        held: set[int] = set()
        misses = 0
        for line, victim in zip(lines.tolist(), victims, strict=True):
            if line in held:
                continue
            misses += 1
            held.add(line)
            if len(slots) < size_lines:
                slots.append(line)
            else:
                held.remove(slots[victim])
                slots[victim] = line
        return misses

    @staticmethod
    def reuses(lines: Lines) -> list[tuple[int, bool]]:
        """(d, True) of each access that returns, (c, False) of each that does not."""
        text = lines.tolist()
        found = []
        for t, line in enumerate(text):
            rest = text[t + 1 :]
            found.append((rest.index(line), True) if line in rest else (len(rest), False))
        return found

    @staticmethod
    def kaplan_meier(samples: list[tuple[int, bool]], up_to: int) -> list[float]:
        """S(0..up_to) without bins: censored at c, distance c itself could not be seen."""
        survival = [1.0]
        for k in range(up_to):
            at_risk = sum(1 for d, seen in samples if (d >= k if seen else d > k))
            events = sum(1 for d, seen in samples if seen and d == k)
            survival.append(survival[-1] * (1 - events / at_risk) if at_risk else survival[-1])
        return survival


@pytest.fixture(scope="session")
def oracles() -> type[Oracles]:
    return Oracles


class Streams:
    loop = staticmethod(loop_stream)
    uniform = staticmethod(uniform_stream)
    zipf = staticmethod(zipf_stream)
    mixed = staticmethod(mixed_stream)


@pytest.fixture(scope="session")
def streams() -> type[Streams]:
    return Streams
