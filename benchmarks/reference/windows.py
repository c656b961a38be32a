"""Exact misses of a whole run, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import ExactLru, ExactRandom
from reference.records import LINE_BYTES

KIB = 1 << 10
ERROR_SIZES_BYTES: tuple[int, ...] = tuple(KIB << i for i in range(12))  # 1 KiB .. 2 MiB
LRU_SIZES_BYTES: tuple[int, ...] = tuple(KIB << i for i in range(17))  # .. 64 MiB
FINE_SIZES_BYTES: tuple[int, ...] = (
    *(((4 + part) * KIB << octave) // 4 for octave in range(16) for part in range(4)),
    LRU_SIZES_BYTES[-1],
)
"""Sizes of which LRU misses are kept: four an octave, the others among them."""

WINDOWS = 600
QUANTUM_ACCESSES = 1 << 20


def _reuse_edges() -> NDArray[np.int64]:
    """Return exact distances up to 8, then four bins an octave up to 2^40."""
    octaves = [(4 + part) << octave for octave in range(1, 38) for part in range(4)]
    return np.array([*range(8), *octaves, 1 << 40], dtype=np.int64)


REUSE_EDGES = _reuse_edges()
"""Bin b of reuse distances holds ``edges[b] <= d < edges[b + 1]``, in accesses between touches."""


@dataclass(frozen=True, slots=True)
class BlockSamples:
    """Blocks of code that the program entered, sampled at random, by window.

    A block begins where a jump, a call or a return goes and ends at one (valgrind's superblocks: it
    may follow unconditional jumps, and a branch may leave it early). Every entry has the same
    chance of being sampled: so shares are those of taken branches; times ``instructions`` they
    are about those of instructions executed.

    Attributes:
        objects: files that code was mapped from; "" is memory without a file.
        object_index: which of them a block lies in, shape (b,), int64.
        offset: its first byte in that file, or its address without one, shape (b,), int64.
        instructions: instructions from its beginning to its end, shape (b,), int64.
        starts: the samples of window w are ``starts[w]`` to ``starts[w + 1]`` - 1, shape (w + 1,).
        block: index of a block, ascending within a window, each once, shape (n,), int64.
        counts: how often it was sampled in the window, shape (n,), int64.
    """

    objects: tuple[str, ...]
    object_index: NDArray[np.int64]
    offset: NDArray[np.int64]
    instructions: NDArray[np.int64]
    starts: NDArray[np.int64]
    block: NDArray[np.int64]
    counts: NDArray[np.int64]

    def table(self) -> NDArray[np.int64]:
        """Return how often each block was sampled in each window, shape (w, b)."""
        windows = len(self.starts) - 1
        table = np.zeros((windows, len(self.offset)), dtype=np.int64)
        table[np.repeat(np.arange(windows), np.diff(self.starts)), self.block] = self.counts
        return table


@dataclass(frozen=True, slots=True)
class RunMisses:
    """Misses of one run in windows of equal numbers of accesses.

    Attributes:
        accesses: accesses of each window, shape (w,), int64; all but the last are equal.
        lru: misses, first touches included, shape (w, len(LRU_SIZES_BYTES)), int64.
        random: the same with random replacement, shape (w, len(ERROR_SIZES_BYTES)), int64.
        distinct_lines: lines touched by the run.
    """

    accesses: NDArray[np.int64]
    lru: NDArray[np.int64]
    random: NDArray[np.int64]
    distinct_lines: int


def simulate(
    pieces: Iterable[NDArray[np.uint64]],
    *,
    seed: int = 1,
    windows: int = WINDOWS,
    quantum_accesses: int = QUANTUM_ACCESSES,
) -> RunMisses:
    """Simulate fully associative caches over a stream of lines of unknown length.

    Misses are counted for every quantum; whole numbers of quanta then make at most ``windows``
    windows and perhaps a shorter last one.

    Args:
        pieces: line numbers in program order, shapes (n,), of any lengths.
        seed: of random replacement.
        windows: the most full windows wanted.
        quantum_accesses: accesses a quantum.
    """
    lru = ExactLru(_lines(LRU_SIZES_BYTES))
    random = ExactRandom(_lines(ERROR_SIZES_BYTES), seed)
    rows: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []

    def close_quantum(accesses: int) -> None:
        rows.append((accesses, lru.take_misses().misses, random.take_misses().misses))

    filled = 0
    with ThreadPoolExecutor(max_workers=1) as beside:  # both release the GIL while they are fed
        for lines in pieces:
            while len(lines):
                part = lines[: quantum_accesses - filled]
                random_fed = beside.submit(random.feed, part)
                lru.feed(part)
                random_fed.result()
                lines = lines[len(part) :]
                filled += len(part)
                if filled == quantum_accesses:
                    close_quantum(filled)
                    filled = 0
    if filled or not rows:
        close_quantum(filled)

    starts = np.arange(0, len(rows), -(-len(rows) // windows))
    accesses, lru_misses, random_misses = (np.array(column) for column in zip(*rows, strict=True))
    return RunMisses(
        np.add.reduceat(accesses, starts),
        np.add.reduceat(lru_misses, starts, axis=0),
        np.add.reduceat(random_misses, starts, axis=0),
        lru.distinct_lines,
    )


def _lines(sizes_bytes: Sequence[int]) -> list[int]:
    return [size // LINE_BYTES for size in sizes_bytes]
