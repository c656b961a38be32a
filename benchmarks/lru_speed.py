"""Accesses a second of the exact references and of the reuse histogram.

Goals: LRU at 10^6 distinct lines, uniformly random: 10 million accesses/s at 13 sizes;
reuse histogram at 10^5 distinct lines: 40 million accesses/s. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import ExactLru, ExactRandom
from memsampd.models.histogram import ReuseHistogram

SIZES_LINES = [1 << power for power in range(4, 17)]
GOALS = {("lru", "uniform 1e6"): 10e6, ("histogram", "uniform 1e5"): 40e6}
Lines = NDArray[np.uint64]


def streams(accesses: int) -> dict[str, Callable[[], Lines]]:
    """Name the streams; made one at a time, to keep memory small."""
    rng = np.random.default_rng(1)

    def uniform(lines: int) -> Callable[[], Lines]:
        def make() -> Lines:
            return np.array(rng.integers(0, lines, accesses), dtype=np.uint64)

        return make

    def zipf() -> Lines:
        # Inverse of the cumulative distribution of 1/rank over 10^6 lines, scattered.
        rank = np.exp(rng.random(accesses) * np.log(1e6)).astype(np.uint64)
        scattered: Lines = rank * np.uint64(0x9E3779B1) % np.uint64(1 << 32)
        return scattered

    def loop() -> Lines:
        return np.arange(accesses, dtype=np.uint64) % np.uint64(200_000)

    def words() -> Lines:
        # Eight words of each line of a stream in turn, between them a small hot stack frame.
        stream = np.arange(accesses, dtype=np.uint64) >> np.uint64(4)
        stream[1::2] = (1 << 40) + rng.integers(0, 6, len(stream[1::2]), dtype=np.uint64)
        return stream

    return {
        "uniform 1e3": uniform(10**3),
        "uniform 1e4": uniform(10**4),
        "uniform 1e5": uniform(10**5),
        "uniform 1e6": uniform(10**6),
        "uniform 4e6": uniform(4 * 10**6),
        "zipf 1e6": zipf,
        "loop 2e5": loop,
        "stream by words": words,
    }


def speed(work: Callable[[Lines], object], lines: Lines, repeats: int) -> float:
    """Median accesses per second."""
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        work(lines)
        rates.append(len(lines) / (time.perf_counter() - start))
    return statistics.median(rates)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the accesses")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    accesses = 2_500_000 if options.quick else 10_000_000
    repeats = 3
    rows: dict[str, dict[str, float]] = {}
    print(f"million accesses/s, {len(SIZES_LINES)} sizes, {accesses} accesses, warm")
    print(f"{'stream':18}{'lru':>10}{'random':>10}{'histogram':>12}")
    for name, make in streams(accesses).items():
        lines = make()
        lru, random = ExactLru(SIZES_LINES), ExactRandom(SIZES_LINES, seed=1)
        lru.feed(lines)
        random.feed(lines[: accesses // 4])
        row = rows[name] = {
            "lru": speed(lru.feed, lines, repeats),
            "random": speed(random.feed, lines[: accesses // 4], repeats),
            "histogram": speed(ReuseHistogram.from_lines, lines, repeats),
        }
        figures = {kind: rate / 1e6 for kind, rate in row.items()}
        print(
            f"{name:18}{figures['lru']:10.1f}{figures['random']:10.1f}{figures['histogram']:12.1f}"
        )
    missed = [
        f"{kind} on {name}: {rows[name][kind] / 1e6:.1f} < {goal / 1e6:.0f} million accesses/s"
        for (kind, name), goal in GOALS.items()
        if rows[name][kind] < goal
    ]
    for line in missed:
        print("goal missed:", line)
    if options.json:
        options.json.write_text(json.dumps({"accesses_per_second": rows, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
