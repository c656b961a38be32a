"""Exact misses of whole streams: the references that the models are judged by.

Both simulators take a stream in pieces of any length and go on for as long as it lasts; their
memory grows with the distinct lines only. Neither is thread-safe, but both run without the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd import _core

Lines = NDArray[np.uint64] | bytes | bytearray | memoryview
"""Line numbers in program order: an array, or a buffer of native uint64 as read from a pipe."""


RUN_LINE_BITS = _core.RUN_LINE_BITS
"""A run is a word: a line in so many low bits, and above it how often it is touched in a row."""


@dataclass(frozen=True, slots=True)
class CacheMisses:
    """Misses of several caches over one stretch of a stream.

    Attributes:
        accesses: accesses of the stretch.
        misses: how many of them missed, first touches included, shape (s,), int64.
    """

    accesses: int
    misses: NDArray[np.int64]

    @property
    def miss_ratio(self) -> NDArray[np.float64]:
        """Misses per access, shape (s,); NaN if there were no accesses."""
        if not self.accesses:
            return np.full(len(self.misses), np.nan)
        return self.misses / self.accesses


class ExactLru:
    """Fully associative LRU caches of several sizes, by stack distance (Mattson et al. 1970).

    Args:
        sizes_lines: 1 to 255 sizes, ascending.
        reuse_bounds: 1 to 255 distances, ascending from 1 or more, to count reuse distances
            between; none are counted without.

    Raises:
        ValueError: sizes or bounds out of order or range.
    """

    def __init__(
        self,
        sizes_lines: Sequence[int],
        reuse_bounds: Sequence[int] | None = None,
    ) -> None:
        sizes = [int(size) for size in sizes_lines]
        bounds = None if reuse_bounds is None else [int(bound) for bound in reuse_bounds]
        self._stack = _core.LruStack(sizes, reuse_bounds=bounds)

    def feed(self, lines: Lines) -> None:
        """Touch these lines in order."""
        self._stack.feed(_array(lines))

    def feed_runs(self, runs: Lines) -> None:
        """Touch the lines of these runs in order, as often as they tell (``RUN_LINE_BITS``)."""
        self._stack.feed_runs(_array(runs))

    def stack_distances(self, lines: Lines) -> NDArray[np.int64]:
        """Touch these lines in order and return their stack distances, -1 for first touches."""
        array = _array(lines)
        distances = np.empty(len(array), dtype=np.int64)
        self._stack.feed(array, distances)
        return distances

    def take_misses(self) -> CacheMisses:
        """Return the misses since the last take; the caches keep their content."""
        return _taken(*self._stack.take_misses())

    def take_reuses(self) -> NDArray[np.int64]:
        """Return the accesses since the last take by their backward reuse distance.

        That is the number of accesses since the last touch of the same line, whenever it was. First
        touches are not in it.

        Returns:
            Those below the first of ``reuse_bounds``, from each to the next, and from the last on,
            shape (number of bounds + 1,), int64.

        Raises:
            RuntimeError: made without ``reuse_bounds``.
        """
        return np.frombuffer(self._stack.take_reuses(), np.uint64).astype(np.int64)

    @property
    def distinct_lines(self) -> int:
        """Distinct lines touched so far."""
        return self._stack.distinct_lines


class ExactRandom:
    """Fully associative caches of several sizes that replace a line at random.

    Slots that never held a line are filled first. Victims depend on the seed and the cache's size
    alone, not on the other sizes simulated nor on how the stream was cut.

    Args:
        sizes_lines: 1 to 63 sizes, ascending.
        seed: 0 to 2**64 - 1.

    Raises:
        ValueError: sizes out of order or range.
    """

    def __init__(self, sizes_lines: Sequence[int], seed: int) -> None:
        sizes = [int(size) for size in sizes_lines]
        self._caches = _core.RandomCaches(sizes, seed)

    def feed(self, lines: Lines) -> None:
        """Touch these lines in order."""
        self._caches.feed(_array(lines))

    def feed_runs(self, runs: Lines) -> None:
        """Touch the lines of these runs in order, as often as they tell (``RUN_LINE_BITS``)."""
        self._caches.feed_runs(_array(runs))

    def take_misses(self) -> CacheMisses:
        """Return the misses since the last take; the caches keep their content."""
        return _taken(*self._caches.take_misses())


def lru_stack_distances(lines: Lines) -> NDArray[np.int64]:
    """Return the stack distance of each access of a stream, -1 for first touches, shape (n,)."""
    return ExactLru([1]).stack_distances(lines)


def _array(lines: Lines) -> NDArray[np.uint64]:
    if isinstance(lines, np.ndarray):
        return np.ascontiguousarray(lines, dtype=np.uint64)
    return np.frombuffer(lines, dtype=np.uint64)


def _taken(accesses: int, misses: bytes) -> CacheMisses:
    return CacheMisses(accesses, np.frombuffer(misses, np.uint64).astype(np.int64))
