from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.bins import BINS, EXACT_LIMIT, bin_of
from memsampd.models.histogram import ReuseHistogram

Lines = NDArray[np.uint64]

STREAMS = st.lists(st.integers(0, 12), max_size=120).map(lambda x: np.array(x, np.uint64))


def naive(samples: list[tuple[int, bool]], accesses: int) -> ReuseHistogram:
    """Count by the rule in the docstring: a bin counts if all of it could be seen."""
    reuses, censored = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    for t, (distance, seen) in enumerate(samples):
        last = bin_of(accesses - 1 - t)
        if seen and bin_of(distance) < last:
            reuses[bin_of(distance)] += 1
        else:
            censored[last] += 1
    return ReuseHistogram(reuses, censored)


@given(STREAMS)
def test_equals_the_naive_count(oracles: Any, lines: Lines) -> None:
    assert ReuseHistogram.from_lines(lines) == naive(oracles.reuses(lines), len(lines))


def test_equals_the_naive_count_in_wide_bins(streams: Any) -> None:
    lines = np.concatenate([streams.uniform(6000, 20000, 1), streams.uniform(50, 5000, 2)])
    last_seen: dict[int, int] = {}
    samples = []
    for t in range(len(lines) - 1, -1, -1):
        after = last_seen.get(int(lines[t]))
        samples.append((len(lines) - 1 - t, False) if after is None else (after - t - 1, True))
        last_seen[int(lines[t])] = t
    expected = naive(samples[::-1], len(lines))
    assert ReuseHistogram.from_lines(lines) == expected
    assert expected.reuses[4096:].sum() > 1000


def test_abca_has_a_distance_of_two() -> None:
    histogram = ReuseHistogram.from_lines(np.array([7, 8, 9, 7], np.uint64))
    assert np.flatnonzero(histogram.reuses).tolist() == [2]
    assert histogram.censored[:4].tolist() == [1, 1, 1, 0]
    assert histogram.accesses == 4
    assert histogram.censored_share == 0.75


@given(STREAMS, STREAMS)
def test_merging_adds_the_counts_of_both(one: Lines, other: Lines) -> None:
    a, b = ReuseHistogram.from_lines(one), ReuseHistogram.from_lines(other)
    both = a + b
    assert both == b + a
    assert (both.reuses == a.reuses + b.reuses).all()
    assert both.accesses == len(one) + len(other)
    assert a + ReuseHistogram.empty() == a


@given(STREAMS)
def test_sparse_round_trip(lines: Lines) -> None:
    histogram = ReuseHistogram.from_lines(lines)
    bins, reuses, censored = histogram.to_sparse()
    assert bins.dtype == np.int32
    assert ((reuses > 0) | (censored > 0)).all()
    assert ReuseHistogram.from_sparse(bins, reuses, censored) == histogram


@pytest.mark.parametrize("bins", [[-1], [BINS], [0, 1]])
def test_sparse_rubbish_is_refused(bins: list[int]) -> None:
    one = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="bin"):
        ReuseHistogram.from_sparse(np.array(bins, np.int32), one, one)


def test_extreme_line_numbers_and_odd_buffers() -> None:
    lines = np.array([0, 2**58 - 1, 0, 2**58 - 1], np.uint64)
    assert ReuseHistogram.from_lines(lines).reuses[1] == 2
    strided = np.repeat(lines, 2)[::2]
    assert ReuseHistogram.from_lines(strided) == ReuseHistogram.from_lines(lines)
    assert ReuseHistogram.from_lines(lines[:0]) == ReuseHistogram.empty()
    with pytest.raises(ValueError, match="line number"):
        ReuseHistogram.from_lines(np.array([2**58], np.uint64))


def scattered(lines: NDArray[Any]) -> int:
    return ReuseHistogram.from_lines(np.asarray(lines, np.uint64)).scattered


def naive_scattered(lines: NDArray[Any]) -> int:
    """Distant accesses with no line of the blocks beside them among the 64 distant ones before."""
    last: dict[int, int] = {}
    blocks: list[int] = []
    count = 0
    for now, line in enumerate(np.asarray(lines).tolist()):
        if now - last.get(line, -(1 << 40)) - 1 >= EXACT_LIMIT:
            lately = set(blocks[-64:])
            count += not {(line - 1) // 4, (line + 1) // 4} & lately
            blocks.append(line // 4)
        last[line] = now
    return count


def test_lines_that_are_swept_are_not_scattered() -> None:
    sweep = np.repeat(np.arange(20_000), 8)
    assert scattered(sweep) == 1
    assert scattered(sweep[::-1].copy()) == 1
    assert scattered(np.stack([sweep, sweep + 10**6, sweep + 2 * 10**6], 1).ravel()) == 3


def test_lines_that_nothing_told_are_scattered() -> None:
    rng = np.random.default_rng(0)
    anywhere = rng.integers(0, 1 << 40, 50_000) * 64
    assert scattered(anywhere) == len(anywhere)
    assert scattered(np.stack([anywhere, anywhere + 1], 1).ravel()) == len(anywhere)
    few = rng.integers(0, 100, 50_000) * 64  # all of them return soon
    assert scattered(few) == 100


def test_scattered_lines_are_those_of_the_naive_count() -> None:
    """But for the few whose place in the table another one has taken."""
    rng = np.random.default_rng(1)
    clusters = rng.integers(0, 1 << 14, 4_000)[:, None] * 16 + rng.integers(0, 6, (4_000, 5))
    told, naive = scattered(clusters.ravel()), naive_scattered(clusters.ravel())
    assert naive <= told <= 1.2 * naive


def test_another_burst_begins_anew() -> None:
    counter = _core.ReuseCounter()
    for _ in range(2):
        counter.begin()
        counter.add(np.arange(1000, dtype=np.uint64))
        assert ReuseHistogram.from_counter(counter).scattered == 1
