"""How wrong the estimate of write-backs is: exact write-back caches over traces of real programs.

    python benchmarks/write_backs.py TRACE...

Traces are those of ``memsampd trace``. Prints the table of docs/traffic.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.trace import TraceReader
from memsampd.models.exact import lru_stack_distances
from memsampd.models.write_backs import most_written_back, written_back
from memsampd.sampler.records import AccessChunk, Burst

SIZES_BYTES = tuple(1 << octave for octave in range(10, 22, 2))


@dataclass(frozen=True, slots=True)
class ExactTraffic:
    """What an exact LRU cache does that fetches lines to write and writes them back.

    Attributes:
        fetched: lines fetched per access.
        written_back: lines written back per access, those changed that it holds at the end too.
        write_share: stores among the accesses.
    """

    fetched: float
    written_back: float
    write_share: float


def line_accesses(
    chunks: Iterable[AccessChunk | Burst],
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return line and direction of each access; a row over two lines is two."""
    lines, stores = [], []
    for chunk in chunks:
        first = chunk.address >> np.uint64(6)
        last = (chunk.address + np.maximum(chunk.size_bytes, 1) - np.uint64(1)) >> np.uint64(6)
        count = (last - first + np.uint64(1)).astype(np.int64)
        begin = np.repeat(np.cumsum(count) - count, count)
        lines.append(np.repeat(first, count) + (np.arange(len(begin)) - begin).astype(np.uint64))
        stores.append(np.repeat(chunk.is_write, count))
    return np.concatenate(lines), np.concatenate(stores)


def exact_traffic(
    lines: NDArray[np.uint64], stores: NDArray[np.bool_], sizes_lines: Sequence[int]
) -> Iterator[ExactTraffic]:
    """Simulate caches of several sizes, empty at first.

    A line's accesses from one miss to the next are one stay in the cache; it is written back after
    a stay with a store in it.
    """
    distances = lru_stack_distances(lines)
    order = np.argsort(lines, kind="stable")
    ordered_distances, ordered_stores = distances[order], stores[order]
    for size in sizes_lines:
        misses = (ordered_distances < 0) | (ordered_distances >= size)
        stays = np.flatnonzero(misses)
        changed = np.logical_or.reduceat(ordered_stores, stays)
        yield ExactTraffic(
            len(stays) / len(lines), int(changed.sum()) / len(lines), float(stores.mean())
        )


def main(paths: Sequence[Path]) -> None:
    """Print the table."""
    errors = []
    print("| program | accesses | stores | " + " | ".join(f"{s >> 10} KiB" for s in SIZES_BYTES))
    print("|---|---|---|" + "---|" * len(SIZES_BYTES))
    for path in paths:
        with TraceReader(path) as trace:
            lines, stores = line_accesses(chunk for burst in trace for chunk in burst)
        cells = []
        for exact in exact_traffic(lines, stores, [size // 64 for size in SIZES_BYTES]):
            estimate = written_back(exact.fetched, exact.write_share)
            most = most_written_back(exact.fetched, exact.write_share)
            assert exact.written_back <= most + 1e-12
            error = (exact.fetched + estimate) / (exact.fetched + exact.written_back) - 1
            errors.append(error)
            cells.append(f"{exact.written_back / exact.fetched:.2f} ({error:+.0%})")
        print(f"| {path.stem} | {len(lines)} | {stores.mean():.2f} | " + " | ".join(cells) + " |")
    all_errors = np.array(errors)
    print(
        f"\nError of the traffic: {np.abs(all_errors).mean():.0%} on average, "
        f"{all_errors.min():+.0%} to {all_errors.max():+.0%}."
    )


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
