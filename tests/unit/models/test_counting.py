"""Counting a burst chunk by chunk against a count that follows the definition."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.models.bins import BINS, bin_of
from memsampd.models.counting import LineCounter
from memsampd.models.histogram import ReuseHistogram

Lines = NDArray[np.uint64]

SEEDS = range(30)


def brute_force(lines: Lines, starts: int | None = None) -> ReuseHistogram:
    """Look up for every access, or the first so many, when its line is touched next."""
    reuses, censored = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    accesses = lines.tolist()
    next_touch: dict[int, int] = {}
    for t in reversed(range(len(accesses))):
        sight = bin_of(len(accesses) - 1 - t)
        after = next_touch.get(accesses[t])
        seen = sight if after is None else bin_of(after - t - 1)
        if starts is None or t < starts:
            (reuses if seen < sight else censored)[seen] += 1
        next_touch[accesses[t]] = t
    return ReuseHistogram(reuses, censored)


def draw(rng: random.Random) -> Lines:
    """Lines of one burst: near and far from each other, few and many, runs and single ones."""
    count = rng.choice([0, 1, 63, 64, 65, 1000, 6000, 30_000])
    places = [rng.randrange(1 << 64) for _ in range(rng.choice([1, 3, 300]))]
    span = rng.choice([1, 5, 4000, 1 << 40])
    stride = rng.choice([1, 4, 64, 4096])
    stays = rng.random()
    lines, line = [], 0
    for _ in range(count):
        if rng.random() >= stays:
            line = (rng.choice(places) + stride * rng.randrange(span)) % (1 << 64)
        lines.append(line)
    return np.array(lines, np.uint64)


def feed(counter: LineCounter, lines: Lines, rng: random.Random, starts: int | None = None) -> None:
    """In chunks of any length, some empty."""
    at = 0
    while at < len(lines):
        length = rng.choice([0, 1, 7, 64, 100, 5000])
        left = None if starts is None else min(max(starts - at, 0), len(lines[at : at + length]))
        counter.add(lines[at : at + length], left)
        at += length


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_as_the_definition_says_whatever_the_chunks(seed: int) -> None:
    rng = random.Random(seed)
    counter = LineCounter()
    for _ in range(3):  # in the same memory, one burst after the other
        lines = draw(rng)
        counter.begin()
        feed(counter, lines, rng)
        assert counter.histogram() == brute_force(lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_accesses_that_do_not_count_tell_of_those_that_do(seed: int) -> None:
    rng = random.Random(seed)
    counter = LineCounter()
    for _ in range(3):
        lines = draw(rng)
        starts = rng.choice([0, len(lines), rng.randint(0, len(lines))])
        counter.begin()
        feed(counter, lines, rng, starts)
        assert counter.histogram() == brute_force(lines, starts)


def test_once_said_it_holds_for_the_whole_burst() -> None:
    lines = np.arange(6, dtype=np.uint64) % np.uint64(2)
    counter = LineCounter()
    counter.begin()
    counter.add(lines[:4], 3)
    counter.add(lines[4:])
    assert counter.histogram() == brute_force(lines, 3)
    with pytest.raises(OverflowError):
        counter.add(lines, -1)


def test_large_tables_shrink_and_count_on() -> None:
    rng = np.random.default_rng(1)
    counter = LineCounter()
    for count, span in ((200_000, 1 << 17), (100, 50), (200_000, 1 << 30), (5000, 3000)):
        lines = rng.integers(0, span, count).astype(np.uint64) * np.uint64(5)
        counter.begin()
        counter.add(lines)
        assert counter.histogram() == brute_force(lines)


def test_a_count_can_be_had_while_the_burst_goes_on() -> None:
    lines = np.random.default_rng(2).integers(0, 9000, 40_000).astype(np.uint64)
    counter = LineCounter()
    counter.begin()
    counter.add(lines[:15_000])
    assert counter.histogram() == brute_force(lines[:15_000])
    counter.add(lines[15_000:])
    assert counter.histogram() == counter.histogram() == brute_force(lines)


def test_any_buffer_of_lines_will_do() -> None:
    lines = np.arange(64, dtype=np.uint64) // np.uint64(3)
    counter = LineCounter()
    counter.begin()
    counter.add(lines[::2])
    assert counter.histogram() == brute_force(lines[::2])
