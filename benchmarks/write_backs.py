"""How wrong the estimate of write-backs is: exact write-back caches over traces of real programs.

usage: python benchmarks/write_backs.py [--quick] [--json FILE] TRACE...

Traces are those of ``memsampd trace``. Prints the table of docs/traffic.md.

Goals, in the mean over traces and sizes: the estimated traffic is at most 20 % off, and at most 0.9
of what it is off by if lines are written back equally often everywhere, as often as is best for
these traces (which looks at no store). Never more is written back than the upper bound says, and
there is an access in each trace. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import MemsampdError
from memsampd.exporters.trace import TraceReader
from memsampd.models.exact import lru_stack_distances
from memsampd.models.write_backs import most_written_back, written_back
from memsampd.sampler.records import AccessChunk, Burst
from verdict import add_options, finish

SIZES_BYTES = tuple(1 << octave for octave in range(10, 22, 2))
QUICK_ACCESSES = 1 << 18
ERROR_GOAL = 0.2
PART_OF_CONSTANT_GOAL = 0.9


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

    @property
    def error(self) -> float:
        """How far the estimated traffic is off, relative to the exact one."""
        estimate = self.fetched + written_back(self.fetched, self.write_share)
        return estimate / (self.fetched + self.written_back) - 1

    @property
    def is_bounded(self) -> bool:
        """Whether no more is written back than the upper bound says."""
        return self.written_back <= most_written_back(self.fetched, self.write_share) + 1e-12


def constant_error(found: Iterable[ExactTraffic]) -> float:
    """Return how far traffic is off, in the mean, if lines are written back equally often in all.

    As often as makes that least, which is as often as in one of them.
    """
    traffic = np.array([1 + each.written_back / each.fetched for each in found])
    return float(np.abs(traffic[:, None] / traffic - 1).mean(axis=1).min())


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


def accesses_of(path: Path, most: float) -> Iterator[AccessChunk]:
    """Read the accesses of a trace, up to so many of them.

    Raises:
        TraceError: it cannot be read.
    """
    read = 0
    with TraceReader(path) as trace:
        for chunk in (chunk for burst in trace for chunk in burst):
            if read >= most:
                return
            yield chunk
            read += len(chunk)


def judge(path: Path, most: float) -> list[ExactTraffic]:
    """Print the line of a trace; what caches of all sizes did.

    Raises:
        TraceError: it cannot be read.
    """
    chunks = list(accesses_of(path, most))
    if not chunks:
        return []
    lines, stores = line_accesses(chunks)
    found = list(exact_traffic(lines, stores, [size // 64 for size in SIZES_BYTES]))
    cells = (f"{each.written_back / each.fetched:.2f} ({each.error:+.0%})" for each in found)
    print(f"| {path.stem} | {len(lines)} | {stores.mean():.2f} | " + " | ".join(cells) + " |")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, judge."""
    parser = argparse.ArgumentParser(description="Judge the estimate of write-backs by traces.")
    add_options(parser, f"the first {QUICK_ACCESSES:,} accesses of each trace")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    args = parser.parse_args(words)
    print("| program | accesses | stores | " + " | ".join(f"{s >> 10} KiB" for s in SIZES_BYTES))
    print("|---|---|---|" + "---|" * len(SIZES_BYTES))
    told: dict[str, list[ExactTraffic]] = {}
    missed = []
    for path in args.traces:
        try:
            found = judge(path, QUICK_ACCESSES if args.quick else float("inf"))
        except MemsampdError as error:
            missed.append(f"{path}: {error}")
            continue
        told[str(path)] = found
        if not found:
            missed.append(f"{path}: no access")
        if not all(each.is_bounded for each in found):
            missed.append(f"{path}: more is written back than the upper bound says")
    missed += missed_means([each for found in told.values() for each in found])
    return finish(args.json, {"sizes_bytes": SIZES_BYTES, "traces": told}, missed)


def missed_means(found: Sequence[ExactTraffic]) -> list[str]:
    """Print the mean error; a line for each goal of it that is missed."""
    if not found:
        return []
    errors = np.array([each.error for each in found])
    mean, constant = float(np.abs(errors).mean()), constant_error(found)
    print(f"\nError of the traffic: {mean:.1%} on average, ", end="")
    print(f"{errors.min():+.0%} to {errors.max():+.0%}; {constant:.1%} by the best constant.")
    goal = PART_OF_CONSTANT_GOAL * constant
    return [
        *([f"{mean:.1%} off on average"] if mean > ERROR_GOAL else []),
        *([f"{mean:.1%} off on average, goal {goal:.1%}"] if mean > goal else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
