import bisect
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.exact import (
    RUN_LINE_BITS,
    ExactLru,
    ExactRandom,
    lru_stack_distances,
)

Lines = NDArray[np.uint64]

SHORT = st.lists(st.integers(0, 30), max_size=300).map(lambda x: np.array(x, np.uint64))
SIZES = [1, 2, 3, 7, 16, 64]


@given(SHORT)
def test_stack_distances_equal_the_naive_list(oracles: Any, lines: Lines) -> None:
    assert lru_stack_distances(lines).tolist() == oracles.stack_distances(lines)


@given(SHORT)
def test_misses_equal_those_of_the_naive_list(oracles: Any, lines: Lines) -> None:
    caches = ExactLru(SIZES)
    caches.feed(lines)
    taken = caches.take_misses()
    distances = np.array(oracles.stack_distances(lines), np.int64)
    expected = [int(((distances < 0) | (distances >= size)).sum()) for size in SIZES]
    assert taken.misses.tolist() == expected
    assert taken.accesses == len(lines)


@given(SHORT)
def test_runs_are_their_lines_one_by_one(lines: Lines) -> None:
    runs = [(line, len(list(same))) for line, same in itertools.groupby(lines.tolist())]
    words = np.array([line | count << RUN_LINE_BITS for line, count in runs], np.uint64)
    for make in (lambda: ExactLru(SIZES), lambda: ExactRandom(SIZES, seed=1)):
        by_line, by_run = make(), make()
        by_line.feed(lines)
        by_run.feed_runs(words)
        one, other = by_line.take_misses(), by_run.take_misses()
        assert one.misses.tolist() == other.misses.tolist()
        assert one.accesses == other.accesses


@given(SHORT, st.integers(1, 8))
def test_reuse_distances_are_counted_between_bounds(lines: Lines, cut: int) -> None:
    bounds = [1, 2, 5, 6, 40]
    caches = ExactLru([4], reuse_bounds=bounds)
    last: dict[int, int] = {}
    for start in range(0, len(lines), 7 * cut):
        part = lines[start : start + 7 * cut].tolist()
        caches.feed(np.array(part, np.uint64))
        expected = [0] * (len(bounds) + 1)
        for time, line in enumerate(part, start):
            if line in last:
                expected[bisect.bisect_right(bounds, time - last[line] - 1)] += 1
            last[line] = time
        assert caches.take_reuses().tolist() == expected


def test_reuse_distances_survive_growth_and_compaction(streams: Any) -> None:
    """Long enough for the slots to be used up often, first with few lines, then with many."""
    bounds = [2**i for i in range(1, 22)]
    stream = np.concatenate([streams.uniform(500, 400_000, 1), streams.uniform(60_000, 600_000, 2)])
    caches = ExactLru([16], reuse_bounds=bounds)
    caches.feed(stream)
    order = np.argsort(stream, kind="stable")
    same = stream[order][1:] == stream[order][:-1]
    distances = (np.diff(order) - 1)[same]
    expected = np.bincount(np.searchsorted(bounds, distances, side="right"), minlength=22)
    assert caches.take_reuses().tolist() == expected.tolist()


def test_reuse_distances_nobody_asked_for_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="reuse_bounds"):
        ExactLru([1]).take_reuses()
    with pytest.raises(ValueError, match="reuse_bounds"):
        ExactLru([1], reuse_bounds=[0, 1])


def fenwick_stack_distances(lines: Lines) -> list[int]:
    """An independent method for streams too long for the list: a Fenwick tree over time."""
    tree = [0] * (len(lines) + 1)

    def add(at: int, by: int) -> None:
        at += 1
        while at < len(tree):
            tree[at] += by
            at += at & -at

    def before(at: int) -> int:
        total = 0
        while at:
            total += tree[at]
            at -= at & -at
        return total

    last: dict[int, int] = {}
    distances = []
    for t, line in enumerate(lines.tolist()):
        if line in last:
            distances.append(before(t) - before(last[line] + 1))
            add(last[line], -1)
        else:
            distances.append(-1)
        add(t, 1)
        last[line] = t
    return distances


def test_across_compactions_and_growth(streams: Any) -> None:
    """More slots than the 2**16 of the start, more lines than its table, every kind of reuse."""
    stream = np.concatenate(
        [
            streams.uniform(50_000, 90_000, 1),
            streams.mixed(60_000, 2),
            streams.loop(20_000, 60_000),
            streams.uniform(30, 20_000, 3),
            streams.uniform(50_000, 20_000, 4),
        ]
    )
    assert lru_stack_distances(stream).tolist() == fenwick_stack_distances(stream)


def test_a_wide_stack_counts_through_every_level() -> None:
    """4 million distinct lines: distances that reach across groups of 2**21 slots."""
    lines = np.arange(4_000_000, dtype=np.uint64)
    caches = ExactLru([1_999_999, 2_000_000, 3_999_999, 4_000_000])
    assert (caches.stack_distances(lines) == -1).all()
    back = caches.stack_distances(lines[::-1][:2_000_000].copy())
    assert (back == np.arange(2_000_000)).all()
    assert (caches.stack_distances(lines[:1000]) == 3_999_999).all()
    assert caches.take_misses().misses.tolist() == [4_001_001, 4_001_000, 4_001_000, 4_000_000]
    assert caches.distinct_lines == 4_000_000


def test_closed_forms_of_loop_uniform_and_stream(streams: Any) -> None:
    sizes = [10, 99, 100, 1000]
    caches = ExactLru(sizes)
    caches.feed(streams.loop(100, 10_000))
    assert caches.take_misses().misses.tolist() == [10_000, 10_000, 100, 100]
    caches = ExactLru([100, 250, 500])
    caches.feed(streams.uniform(500, 5000, 1))
    caches.take_misses()
    caches.feed(streams.uniform(500, 400_000, 2))
    assert caches.take_misses().miss_ratio == pytest.approx([0.8, 0.5, 0.0], abs=0.005)
    random = ExactRandom([100, 250, 500], seed=3)
    random.feed(streams.uniform(500, 20_000, 1))
    random.take_misses()
    random.feed(streams.uniform(500, 400_000, 2))
    assert random.take_misses().miss_ratio == pytest.approx([0.8, 0.5, 0.0], abs=0.005)
    random = ExactRandom(sizes, seed=1)
    random.feed(np.arange(10_000, dtype=np.uint64))
    assert random.take_misses().misses.tolist() == [10_000] * 4


@pytest.mark.parametrize("size", [1, 3, 50, 400, 2000])
def test_random_caches_agree_with_a_naive_one(oracles: Any, streams: Any, size: int) -> None:
    stream = streams.mixed(60_000, 9)
    caches = ExactRandom([size], seed=5)
    caches.feed(stream)
    naive = [oracles.random_misses(stream, size, seed) for seed in range(3)]
    ours = caches.take_misses().misses[0]
    assert ours / len(stream) == pytest.approx(np.mean(naive) / len(stream), abs=0.006)


@pytest.mark.parametrize("make", [ExactLru, lambda s: ExactRandom(s, seed=11)])
@given(lines=SHORT, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_pieces_and_windows_add_up_to_the_whole(
    make: Callable[[list[int]], ExactLru | ExactRandom], lines: Lines, cuts: list[int]
) -> None:
    whole = make(SIZES)
    whole.feed(lines)
    total = whole.take_misses()
    ends = sorted(min(cut, len(lines)) for cut in cuts)
    pieces = make(SIZES)
    windows = []
    for start, end in itertools.pairwise([0, *ends, len(lines)]):
        pieces.feed(lines[start:end])
        windows.append(pieces.take_misses())
    assert [w.accesses for w in windows] == np.diff([0, *ends, len(lines)]).tolist()
    assert sum(w.accesses for w in windows) == total.accesses
    np.testing.assert_array_equal(sum(w.misses for w in windows), total.misses)


def test_a_random_cache_does_not_depend_on_the_others(streams: Any) -> None:
    stream = streams.mixed(30_000, 1)
    together, alone = ExactRandom(SIZES, seed=2), ExactRandom([7], seed=2)
    other = ExactRandom([7], seed=3)
    for caches in (together, alone, other):
        caches.feed(stream)
    expected = alone.take_misses().misses[0]
    assert together.take_misses().misses[SIZES.index(7)] == expected
    assert other.take_misses().misses[0] != expected


@pytest.mark.parametrize("make", [ExactLru, lambda s: ExactRandom(s, seed=0)])
def test_larger_fed_as_bytes_and_strided_arrays(
    make: Callable[[list[int]], ExactLru | ExactRandom], streams: Any
) -> None:
    stream = streams.mixed(5000, 1)
    results = []
    for form in (stream, stream.tobytes(), np.repeat(stream, 2)[::2], memoryview(stream.tobytes())):
        caches = make(SIZES)
        caches.feed(form)
        results.append(caches.take_misses().misses.tolist())
    assert results == results[:1] * 4


@pytest.mark.parametrize("sizes", [[], [0], [2, 1], [1, 1], [2**32], list(range(1, 257))])
def test_impossible_sizes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes_lines"):
        ExactLru(sizes)
    with pytest.raises(ValueError, match="sizes_lines"):
        ExactRandom(sizes, seed=0)


def test_as_many_sizes_as_there_may_be(streams: Any) -> None:
    sizes = list(range(1, 64))
    stream = streams.uniform(63, 5000, 1)
    caches = ExactLru(sizes)
    distances = caches.stack_distances(stream)
    expected = [int(((distances < 0) | (distances >= size)).sum()) for size in sizes]
    assert caches.take_misses().misses.tolist() == expected


def test_broken_buffers_are_refused() -> None:
    caches = _core.LruStack([1])
    with pytest.raises(ValueError, match="uint64"):
        caches.feed(b"1234567")
    with pytest.raises(ValueError, match="int64"):
        caches.feed(b"12345678", bytearray(16))
    with pytest.raises(BufferError):
        caches.feed(b"12345678", b"12345678")
    assert np.isnan(ExactLru([1]).take_misses().miss_ratio).all()


def test_two_threads_on_one_stack_are_told_apart(streams: Any) -> None:
    """Feeding runs without the GIL; a second feed meanwhile must be refused, not corrupt it."""
    caches = _core.LruStack([8])
    stream = streams.uniform(100_000, 3_000_000, 1)
    feeder = threading.Thread(target=caches.feed, args=(stream,))
    feeder.start()
    refused = False
    while feeder.is_alive() and not refused:
        try:
            caches.feed(b"")
        except RuntimeError as error:
            refused = "another thread" in str(error)
    feeder.join()
    accesses, _ = caches.take_misses()
    assert accesses == len(stream)
    assert refused
