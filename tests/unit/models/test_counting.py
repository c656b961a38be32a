"""Counting a burst chunk by chunk against a count that follows the definition."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.bins import BINS, BINS_PER_OCTAVE, EXACT_LIMIT, bin_of
from memsampd.models.histogram import ReuseHistogram

Lines = NDArray[np.uint64]

SEEDS = range(30)
LINE_BITS = _core.LINE_BITS
FEW_LINES, FEW_REUSES = 4096, 16384  # looked at before only a sample is


def brute_force(lines: Lines) -> ReuseHistogram:
    """Look up for every access when its line is touched next."""
    order = np.argsort(lines, kind="stable")  # accesses of a line one behind the other, in time
    returns = lines[order[1:]] == lines[order[:-1]]
    sight = bin_of(len(lines) - 1 - np.arange(len(lines)))
    seen = sight.copy()
    seen[order[:-1][returns]] = bin_of((order[1:] - order[:-1] - 1)[returns])
    reuses = np.bincount(seen[seen < sight], minlength=BINS)
    censored = np.bincount(seen[seen >= sight], minlength=BINS)
    return ReuseHistogram(reuses, censored)


def assert_as_promised(found: ReuseHistogram, lines: Lines) -> None:
    """Exact while little is distant; else as far as distances are short, and in sum."""
    exact = brute_force(lines)
    if len(np.unique(lines)) <= FEW_LINES and exact.reuses[EXACT_LIMIT:].sum() <= FEW_REUSES:
        assert found == exact
        return
    near = slice(0, EXACT_LIMIT)
    np.testing.assert_array_equal(found.reuses[near], exact.reuses[near])
    np.testing.assert_array_equal(found.censored[near], exact.censored[near])
    assert found.accesses == exact.accesses
    assert min(found.reuses.min(), found.censored.min()) >= 0


def draw(rng: random.Random) -> Lines:
    """Lines of one burst: near and far from each other, few and many, runs and single ones."""
    count = rng.choice([0, 1, 63, 64, 65, 1000, 6000, 30_000])
    places = [rng.randrange(1 << LINE_BITS) for _ in range(rng.choice([1, 3, 300]))]
    span = rng.choice([1, 5, 4000, 1 << 40])
    stride = rng.choice([1, 4, 64, 4096])
    stays = rng.random()
    lines, line = [], 0
    for _ in range(count):
        if rng.random() >= stays:
            line = (rng.choice(places) + stride * rng.randrange(span)) % (1 << LINE_BITS)
        lines.append(line)
    return np.array(lines, np.uint64)


def feed(counter: _core.ReuseCounter, lines: Lines, rng: random.Random) -> None:
    """In chunks of any length, some empty."""
    at = 0
    while at < len(lines):
        length = rng.choice([0, 1, 7, 64, 100, 5000])
        counter.add(lines[at : at + length])
        at += length


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_as_the_definition_says_whatever_the_chunks(seed: int) -> None:
    rng = random.Random(seed)
    counter = _core.ReuseCounter()
    for _ in range(3):  # in the same memory, one burst after the other
        lines = draw(rng)
        counter.begin()
        feed(counter, lines, rng)
        assert_as_promised(ReuseHistogram.from_counter(counter), lines)


def scattered(lines: int, accesses: int, seed: int) -> Lines:
    """Any of so many lines each time, of which some are accessed more often than others."""
    rng = np.random.default_rng(seed)
    ranks = np.minimum(lines * rng.random(accesses) ** 2, lines - 1).astype(np.uint64)
    return ranks * np.uint64(0x9E3779B1) % np.uint64(1 << 40)


def test_distances_are_exact_as_far_as_is_promised() -> None:
    """And so is how many accesses return later or not at all, however many lines there are."""
    counter = _core.ReuseCounter()
    for seed, lines in enumerate((100_000, 50, 1 << 30, 3000, 300_000)):
        accesses = scattered(lines, 300_000, seed)
        counter.begin()
        counter.add(accesses)
        assert_as_promised(ReuseHistogram.from_counter(counter), accesses)


def test_few_lines_are_counted_exactly_at_all_distances() -> None:
    lines = scattered(FEW_LINES, 30_000, 1)
    counter = _core.ReuseCounter()
    counter.add(lines)
    assert brute_force(lines).reuses[EXACT_LIMIT:].sum() > 1000
    assert ReuseHistogram.from_counter(counter) == brute_force(lines)


@pytest.mark.parametrize("lines", [30_000, 200_000, 5000])
def test_a_sample_of_many_lines_is_right_on_average(lines: int) -> None:
    """No octave of distances is off by more than chance, over many choices of lines."""
    accesses, seeds = scattered(lines, 400_000, lines), 40
    exact = _by_octave(brute_force(accesses))
    found = np.array([_by_octave(_counted(accesses, seed)) for seed in range(seeds)])
    assert np.ptp(found, axis=0).max() > 0  # it is a sample
    chance = found.std(axis=0) / np.sqrt(seeds)
    assert np.all(np.abs(found.mean(axis=0) - exact) <= 4 * chance + 1e-3 * exact + 2)
    assert np.all(found.std(axis=0) <= 0.2 * exact + 0.01 * len(accesses))


def _counted(accesses: Lines, seed: int) -> ReuseHistogram:
    counter = _core.ReuseCounter(seed)
    counter.add(accesses)
    return ReuseHistogram.from_counter(counter)


def _by_octave(histogram: ReuseHistogram) -> NDArray[np.int64]:
    """Reuses and censored beyond what is exact, an octave each."""
    beyond = np.array([histogram.reuses[EXACT_LIMIT:], histogram.censored[EXACT_LIMIT:]])
    octaves: NDArray[np.int64] = beyond.reshape(2, -1, BINS_PER_OCTAVE).sum(axis=2)
    return octaves


def test_each_burst_of_a_counter_chooses_other_lines() -> None:
    lines = scattered(200_000, 300_000, 1)
    counter = _core.ReuseCounter()
    counter.add(lines)
    first = ReuseHistogram.from_counter(counter)
    counter.begin()
    counter.add(lines)
    assert ReuseHistogram.from_counter(counter) != first


def test_lines_that_all_want_one_place_are_told_apart() -> None:
    """Numbers whose product with the hash's factor is small lie side by side in small tables."""
    inverse, factor = pow(0x9E3779B97F4A7C15, -1, 1 << 64), 1 << 38
    close = (inverse * factor * i % (1 << 64) for i in range(1, 1 << 14))
    lines = [line for line in close if line < 1 << LINE_BITS][:40]
    assert len(lines) == 40
    counter = _core.ReuseCounter()
    for _ in range(2):
        counter.begin()
        counter.add(np.array(lines * 50, np.uint64))
        assert ReuseHistogram.from_counter(counter) == brute_force(np.array(lines * 50, np.uint64))


def test_a_count_can_be_had_while_the_burst_goes_on() -> None:
    lines = np.random.default_rng(2).integers(0, FEW_LINES, 30_000).astype(np.uint64)
    counter = _core.ReuseCounter()
    counter.begin()
    counter.add(lines[:15_000])
    assert ReuseHistogram.from_counter(counter) == brute_force(lines[:15_000])
    counter.add(lines[15_000:])
    for _ in range(2):
        assert ReuseHistogram.from_counter(counter) == brute_force(lines)


def test_any_buffer_of_lines_will_do() -> None:
    lines = np.arange(64, dtype=np.uint64) // np.uint64(3)
    assert ReuseHistogram.from_lines(lines[::2]) == brute_force(lines[::2])


def stack_pairs(lines: Lines) -> set[tuple[int, int, int]]:
    """When, reuse and stack distance of each reuse, by the definition."""
    last: dict[int, int] = {}
    found = set()
    for now, line in enumerate(touched := lines.tolist()):
        if line in last:
            between = touched[last[line] + 1 : now]
            found.add((now, len(between), len(set(between))))
        last[line] = now
    return found


def sampled_pairs(counter: _core.ReuseCounter) -> list[tuple[int, int]]:
    pairs = np.frombuffer(counter.stack_samples(), np.uint32).reshape(-1, 2)
    return [(int(reuse), int(stack)) for reuse, stack in pairs]


def is_in_order(wanted: list[tuple[int, int]], among: set[tuple[int, int, int]]) -> bool:
    """Whether reuses with these distances came one after the other."""
    times = iter(sorted(among))
    return all(any((d, s) == pair for _, d, s in times) for pair in wanted)


@pytest.mark.parametrize("seed", range(6))
def test_sampled_stack_distances_are_those_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    counter = _core.ReuseCounter()
    sampled = 0
    for lines in (2000, 30, 6000, 300):  # in the same memory, one burst after the other
        accesses = np.repeat(scattered(lines, 7000, seed), seed % 3 + 1)
        counter.begin()
        feed(counter, accesses, rng)
        pairs = sampled_pairs(counter)
        assert is_in_order(pairs, stack_pairs(accesses))
        assert min((reuse for reuse, _ in pairs), default=16) >= 16
        sampled += len(pairs)
    assert sampled > 100


def test_which_stack_distances_are_sampled_does_not_hang_on_chunks() -> None:
    lines = scattered(3000, 40_000, 5)
    whole, pieces = _core.ReuseCounter(), _core.ReuseCounter()
    whole.add(lines)
    feed(pieces, lines, random.Random(1))
    assert sampled_pairs(whole) == sampled_pairs(pieces) != []


def test_reuses_at_each_place_of_a_loop_are_sampled_as_often() -> None:
    near = np.arange(64, dtype=np.uint64)
    counter = _core.ReuseCounter()
    counter.add(np.tile(np.concatenate([near[:32], near[:32], near]), 1000))
    pairs, times = np.unique(np.array(sampled_pairs(counter)), axis=0, return_counts=True)
    assert pairs.tolist() == [[31, 31], [63, 63], [127, 63]]
    assert times / times.sum() == pytest.approx([0.5, 0.25, 0.25], abs=0.04)


def test_long_stack_distances_are_not_sampled_once_lines_are_forgotten() -> None:
    """Others still are, and are right: a loop within what many lines were touched before."""
    many = np.arange(40_000, dtype=np.uint64) + np.uint64(1 << 30)
    loop = np.tile(np.arange(500, dtype=np.uint64), 20)
    lines = np.concatenate([many, loop, many[:20_000], loop])
    counter = _core.ReuseCounter()
    counter.add(lines)
    pairs = sampled_pairs(counter)
    assert {pair for pair in pairs if pair[0] < EXACT_LIMIT} == {(499, 499)}
    assert [pair for pair in pairs if pair[0] >= EXACT_LIMIT] == []


def test_only_the_beginning_of_a_long_burst_is_sampled() -> None:
    lines = np.tile(np.arange(100, dtype=np.uint64), 4000)
    counter = _core.ReuseCounter()
    counter.add(lines[: 1 << 18])
    before = sampled_pairs(counter)
    counter.add(lines[1 << 18 :])
    assert sampled_pairs(counter) == before
    assert set(before) == {(99, 99)}
    assert len(before) == pytest.approx((1 << 18) / 64, rel=0.05)
