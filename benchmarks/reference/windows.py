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
WINDOWS = 200
QUANTUM_ACCESSES = 1 << 20


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
