"""Programs that share a cache: what memsampd predicts, and what an exact simulation shows.

usage: python benchmarks/corun.py [--quick] [--pairs A+B ...] [--json FILE] [--markdown FILE]

A stretch of each program is traced, and the stretches of two take turns at LRU caches of ten
sizes, 64 KiB to 32 MiB, at the pace that the programs have alone. Of each stretch memsampd is shown
what it would see of it live: windows, and a burst in each (200,000 accesses, of one in eight a
million). From that it predicts what each program misses beside the other, and divides caches of 16
ways.

  error       mean over programs and sizes of |predicted - simulated| miss ratio, in points
  exact       the same with exact curves of each program alone: what the model itself is wrong by
  alone, half the same if one takes the curve at the whole cache, or at half of it
  excess      misses of the division that was chosen, beyond those of the best of all divisions,
              searched one by one on the simulated curves; mean of caches of 1, 4 and 16 MiB

Goals of the means: an error of 2 points; with exact curves, half the error of whoever takes the
curve at the whole cache or at half of it; an excess of 5 %, and of a point more than that of the
undivided cache. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import BurstRecord, WindowRecord
from memsampd.exporters.demand import demands_of
from memsampd.models.corun import Demand, SharedMisses, share_cache
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.partition import lookahead
from memsampd.models.policies import MODELS
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes
from memsampd.sampler.records import BurstCost, BurstEnd
from reference.documents import machine_text, replace_section
from reference.interleaving import Trace, capture, shared_ratios, taking_part
from reference.programs import BUILD, find
from reference.records import LINE_BYTES
from verdict import add_options, finish

ERROR_GOAL = 2.0  # points
PART_OF_BASELINE_GOAL = 0.5  # of the error of those that know nothing of sharing
EXCESS_GOAL = 5.0  # percent
OVER_UNDIVIDED_GOAL = 1.0  # points beyond what no division at all misses

PAIRS = (
    ("gzip", "sqlite3"),
    ("bzip2", "python3"),
    ("xz", "hashjoin"),
    ("zstd", "cc1"),
    ("graph", "perl"),
    ("pagerank", "solver"),
    ("kernels", "sorting"),
    ("fft", "image"),
)
QUICK_PAIRS = (("gzip", "kernels"), ("graph", "bzip2"))
SKIP, ACCESSES = 200_000_000, 32_000_000
QUICK_SKIP, QUICK_ACCESSES = 20_000_000, 8_000_000
SIZES_BYTES = [1 << octave for octave in range(16, 26)]
CURVE_SIZES_BYTES = default_sizes(4)
WAYS = 16
DIVIDED_BYTES = (1 << 20, 4 << 20, 16 << 20)
WINDOWS = 40
BURST_ACCESSES, LONG_BURST_ACCESSES, LONG_EVERY = 200_000, 1_000_000, 8
CACHES = {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
INSTRUCTION_SECONDS = 0.10e-9
MISS_SECONDS = {"L1d": 1.7e-9, "L2": 1.7e-9, "L3": 4e-9}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """One pair: errors in points, misses beyond the best division's in percent of these.

    ``inside`` is the share of simulated ratios that lie between the bounds, ``shared_excess`` what
    an undivided cache misses beyond the best division.
    """

    pair: str
    accesses: tuple[int, ...]
    error: float
    exact: float
    alone: float
    half: float
    inside: float
    excess: float
    shared_excess: float


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A program's part in a pair: lines, pace, exact misses alone, and two views of it."""

    lines: NDArray[np.uint64]
    rate: float
    alone: Floats
    exact: list[Demand]
    seen: list[Demand]


def pace(trace: Trace) -> float:
    """Return accesses a second, by exact counts of what takes time."""
    misses = shared_ratios([trace.lines()], list(CACHES.values()))[0]
    seconds = INSTRUCTION_SECONDS * trace.instructions / trace.accesses
    return float(1 / (seconds + misses @ np.array([MISS_SECONDS[name] for name in CACHES])))


def seen_live(lines: NDArray[np.uint64], instructions: float, rate: float) -> list[Demand]:
    """Return what memsampd knows of a program after one burst in each of its windows.

    Args:
        lines: of all its accesses.
        instructions: for each access.
        rate: accesses a second.
    """
    estimator = Estimator(CURVE_SIZES_BYTES, LINE_BYTES, (MODELS["lru"](),), CACHES)
    random = np.random.default_rng(1)
    ends = np.linspace(0, len(lines), WINDOWS + 1).astype(int)
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        is_long = index % LONG_EVERY == 1  # as the schedule has it
        length = min(LONG_BURST_ACCESSES if is_long else BURST_ACCESSES, end - start)
        first = int(random.integers(start, end - length + 1))
        histogram = ReuseHistogram.from_lines(lines[first : first + length])
        seconds = (end - start) / rate
        estimator.add(
            WindowRecord(
                index=index,
                start_seconds=start / rate,
                end_seconds=end / rate,
                cpu_seconds=seconds,
                phase=0,
            )
        )
        estimator.add(burst_record(histogram, index, first / rate, int(instructions * length)))
    estimator.finish()
    return list(demands_of(estimator.estimate(), cpus=1.0))


def burst_record(
    histogram: ReuseHistogram, window: int, seconds: float, instructions: int
) -> BurstRecord:
    """Return a burst as a session records it, of which only lines and instructions are known."""
    bins, reuses, censored = histogram.to_sparse()
    return BurstRecord(
        window=window,
        phase=0,
        tid=1,
        time_seconds=seconds,
        accesses=histogram.accesses,
        writes=0,
        rows=histogram.accesses,
        instructions=instructions,
        prefetches=0,
        end=BurstEnd.FULL,
        end_detail="",
        cost=BurstCost(),
        bins=bins.astype("<i4").tobytes(),
        reuses=reuses.astype("<i8").tobytes(),
        censored=censored.astype("<i8").tobytes(),
    )


def part_of(trace: Trace, accesses: int, rate: float) -> Part:
    """Look at the beginning of a trace in both ways."""
    lines = trace.lines()[:accesses]
    alone = shared_ratios([lines], CURVE_SIZES_BYTES.tolist())[0]
    curve = MissRatioCurve(CURVE_SIZES_BYTES, alone, alone, alone, "lru", LINE_BYTES, accesses)
    return Part(
        lines=lines,
        rate=rate,
        alone=alone,
        exact=[Demand(1.0, rate, 0.0, curve)],
        seen=seen_live(lines, trace.instructions / trace.accesses, rate),
    )


def score(traces: Sequence[Trace], rates: Sequence[float]) -> Score:
    """Judge what is said of programs that share a cache."""
    counts = taking_part([trace.accesses for trace in traces], rates)
    parts = [part_of(*each) for each in zip(traces, counts, rates, strict=True)]
    truth = shared_ratios([part.lines for part in parts], SIZES_BYTES)
    told = [share_cache([part.seen for part in parts], size) for size in SIZES_BYTES]
    exact = [share_cache([part.exact for part in parts], size) for size in SIZES_BYTES]

    def error(predicted: Floats) -> float:
        return 100 * float(np.abs(predicted - truth).mean())

    def column(table: list[list[SharedMisses]], get: Callable[[SharedMisses], float]) -> Floats:
        return np.array([[get(one) for one in row] for row in table]).T

    def at(sizes_bytes: Sequence[int]) -> Floats:
        return np.array([alone_at(part, sizes_bytes) for part in parts])

    low, high = column(told, lambda one: one.low), column(told, lambda one: one.high)
    excesses = np.mean([division_excess(parts, size) for size in DIVIDED_BYTES], axis=0)
    return Score(
        pair="+".join(trace.name for trace in traces),
        accesses=tuple(counts),
        error=error(column(told, lambda one: one.miss_ratio)),
        exact=error(column(exact, lambda one: one.miss_ratio)),
        alone=error(at(SIZES_BYTES)),
        half=error(at([size // len(parts) for size in SIZES_BYTES])),
        inside=float(((low - 1e-9 <= truth) & (truth <= high + 1e-9)).mean()),
        excess=float(excesses[0]),
        shared_excess=float(excesses[1]),
    )


def alone_at(part: Part, sizes_bytes: Sequence[int]) -> Floats:
    """Return a program's exact miss ratios alone, between the sizes of which they are known."""
    return np.interp(np.log2(sizes_bytes), np.log2(CURVE_SIZES_BYTES), part.alone)


def division_excess(parts: Sequence[Part], size_bytes: int) -> tuple[float, float]:
    """Return misses beyond those of the best division, in percent of these.

    Returns:
        Of the division by lookahead, and of the undivided cache.
    """
    ways_bytes = [size_bytes * ways // WAYS for ways in range(1, WAYS + 1)]
    truth = np.array([part.rate * alone_at(part, ways_bytes) for part in parts])
    costs = np.array([predicted_costs(part, ways_bytes) for part in parts])
    costs = np.pad(costs, ((0, 0), (1, 0)), mode="edge")

    def misses(division: Sequence[int]) -> float:
        return float(sum(row[ways - 1] for row, ways in zip(truth, division, strict=True)))

    each = range(1, WAYS + 1)
    every = (one for one in itertools.product(each, repeat=len(parts)) if sum(one) == WAYS)
    best = min(map(misses, every))
    shared = shared_ratios([part.lines for part in parts], [size_bytes])[:, 0]
    undivided = float(sum(part.rate * ratio for part, ratio in zip(parts, shared, strict=True)))
    found = (misses(lookahead(costs, "misses")), undivided)
    chosen, shared_by_all = (100 * (one / best - 1) if best else 0.0 for one in found)
    return chosen, shared_by_all


def predicted_costs(part: Part, ways_bytes: Sequence[int]) -> list[float]:
    """Return misses a second in so much of a cache, by what memsampd has seen."""
    return [share_cache([part.seen], size)[0].misses_per_second for size in ways_bytes]


def markdown(scores: Sequence[Score]) -> str:
    """Return a table for the documentation."""
    rows = [
        "| pair | M accesses | error | exact curves | as if alone | as if halved | inside bounds % "
        "| excess % | undivided % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows += [
        f"| {one.pair.replace('+', ' + ')} | "
        f"{' + '.join(f'{n / 1e6:.0f}' for n in one.accesses)} | "
        f"{one.error:.2f} | {one.exact:.2f} | {one.alone:.2f} | {one.half:.2f} | "
        f"{100 * one.inside:.0f} | {one.excess:+.1f} | "
        f"{one.shared_excess:+.1f} |"
        for one in scores
    ]
    mean = {key: mean_of(scores, key) for key in FIGURES}
    rows.append(
        f"| **mean** | | {mean['error']:.2f} | {mean['exact']:.2f} | {mean['alone']:.2f} | "
        f"{mean['half']:.2f} | {100 * mean['inside']:.0f} | {mean['excess']:+.1f} | "
        f"{mean['shared_excess']:+.1f} |"
    )
    return f"Measured on {machine_text()}.\n\n" + "\n".join(rows) + "\n"


FIGURES = (
    *("error", "exact", "alone", "half", "inside"),
    *("excess", "shared_excess"),
)


def mean_of(scores: Sequence[Score], key: str) -> float:
    """Return the mean of a figure over pairs."""
    return float(np.mean([getattr(one, key) for one in scores]))


def main() -> int:
    """Judge the pairs."""
    parser = argparse.ArgumentParser(description="Predicted against simulated shared caches.")
    add_options(parser, "two pairs, short stretches")
    parser.add_argument("--pairs", nargs="+", metavar="A+B", help="programs that share a cache")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table in there")
    args = parser.parse_args()
    pairs: Sequence[tuple[str, ...]] = QUICK_PAIRS if args.quick else PAIRS
    if args.pairs:
        pairs = tuple(tuple(pair.split("+")) for pair in args.pairs)
    length = (QUICK_SKIP, QUICK_ACCESSES) if args.quick else (SKIP, ACCESSES)
    scores = []
    for pair in pairs:
        traces = [capture(program, BUILD, *length) for program in find(pair)]
        scores.append(score(traces, [pace(trace) for trace in traces]))
        print(markdown(scores[-1:]).splitlines()[-2], flush=True)
    print(markdown(scores))
    if args.markdown:
        replace_section(args.markdown, "corun", markdown(scores))
    return finish(args.json, scores, missed_goals(scores))


def missed_goals(scores: Sequence[Score]) -> list[str]:
    """Return a line for each goal that was missed; NaN is."""
    mean = {key: mean_of(scores, key) for key in FIGURES}
    goals = (
        ("error", ERROR_GOAL),
        ("exact", PART_OF_BASELINE_GOAL * min(mean["alone"], mean["half"])),
        ("excess", EXCESS_GOAL),
        ("excess", mean["shared_excess"] + OVER_UNDIVIDED_GOAL),
    )
    return [
        f"mean {key} {mean[key]:.2f}, goal {goal:.2f}"
        for key, goal in goals
        if not mean[key] <= goal
    ]


if __name__ == "__main__":
    sys.exit(main())
