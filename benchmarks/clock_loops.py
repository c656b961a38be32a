"""The access clock on loops whose rates are known by construction.

usage: python benchmarks/clock_loops.py [--quick] [--timings N] [--json FILE]

Each loop (``programs/sources/clock_loops.c``) tells its accesses and its CPU time itself. It is
timed by bursts of the replica at random moments, and by the samples about each. The estimate is
the mean of the rates; the truth is what the program counted from before the first burst until after
the last.

Exit status 1 if the estimate of a loop is off by more than 10 %, or none of its bursts could be
timed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clock_target import build, running
from memsampd.errors import CaptureError
from memsampd.sampler.clock.code import often_executed
from memsampd.sampler.clock.progress import ProgressClock
from memsampd.sampler.perf.closely import CloseSampler
from memsampd.sampler.perf.costs import measure_interrupt_seconds
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.rates import Stretch, TimedStretch
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from verdict import add_options, finish

ERROR_GOAL = 10.0
BURST_ROWS = 200_000
_AROUND_SECONDS = 0.1
LOOPS = (
    ("stream 64 MiB", "stream", 64 << 20),
    ("chase 1 MiB", "chase", 1 << 20),
    ("chase 64 MiB", "chase", 64 << 20),
    ("chase 1 GiB", "chase", 1 << 30),
    ("rows 1 MiB", "rows", 1 << 20),
    ("mixed 1 MiB", "mixed", 1 << 20),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One loop: rates in accesses per CPU second, errors in percent of the exact one."""

    loop: str
    exact_rate: float
    estimated_rate: float
    error_percent: float | None
    spread_percent: float
    bursts: int
    timed: int


def stretch_of(burst: Burst) -> Stretch:
    """What the clock is told of a burst that was not streamed."""
    return Stretch(
        burst.time_seconds,
        burst.tid,
        len(burst) * np.array(burst.stretch_shares)[: len(burst.stretch)],
        burst.stretch,
        burst.stretch_ip[: len(burst.stretch)],
        often_executed(burst.code_ip, burst.code_times),
    )


def timed_bursts(
    pid: int, count: int, rng: random.Random, beyond_seconds: float = 0.05
) -> Iterator[TimedStretch | None]:
    """Take bursts at random moments, and time each by the samples before and after it."""
    clock = ProgressClock(measure_interrupt_seconds())
    with (
        open(os.eventfd(0)) as never,
        closing(CloseSampler(never.fileno())) as sampler,
        closing(TaskClockSource(pid)) as samples,
        closing(ReplicaSource(pid)) as source,
    ):
        for _ in range(count):
            clock.add(samples.read(0.0))
            time.sleep(_AROUND_SECONDS * (0.5 + rng.random()))
            with suppress(CaptureError):  # between two rounds it writes
                close = sampler.sample(pid)
                burst = source.capture(BurstRequest(pid, BURST_ROWS, beyond_seconds=beyond_seconds))
                time.sleep(_AROUND_SECONDS)
                clock.add(samples.read(0.0))
                found = clock.measure(stretch_of(burst), close)
                yield None if found is None else found[0]


def measure(program: Path, loop: tuple[str, str, int], timings: int, rng: random.Random) -> Result:
    """Time one loop."""
    name, kind, size_bytes = loop
    with running(program, kind, size_bytes) as target:
        began = target.progress()
        told = list(timed_bursts(target.pid, timings, rng))
        ended = target.progress()
    exact = (ended.accesses - began.accesses) / (ended.cpu_seconds - began.cpu_seconds)
    rates = [each.accesses_per_cpu_second for each in told if each is not None]
    mean = statistics.mean(rates) if rates else 0.0
    return Result(
        loop=name,
        exact_rate=exact,
        estimated_rate=mean,
        error_percent=100 * (mean / exact - 1) if mean else None,
        spread_percent=100 * statistics.pstdev(rates) / mean if mean else 0.0,
        bursts=len(told),
        timed=len(rates),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Time loops of known rates.")
    add_options(parser, "8 timings a loop")
    parser.add_argument("--timings", type=int, default=30, metavar="N", help="a loop")
    parser.add_argument("--loops", nargs="+", default=[], metavar="NAME", help='"chase 1 MiB" ...')
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args()
    timings = 8 if args.quick else args.timings
    loops = [loop for loop in LOOPS if not args.loops or loop[0] in args.loops]
    if timings < 1 or not loops:
        parser.error(f"at least one timing of: {', '.join(loop[0] for loop in LOOPS)}")
    columns = ("exact M/s", "clock M/s", "error %", "spread %", "bursts", "timed")
    print(f"{'loop':<14}" + "".join(f"{column:>10}" for column in columns), flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for loop in loops:
            r = measure(program, loop, timings, random.Random(args.seed))
            results.append(r)
            error = "-" if r.error_percent is None else f"{r.error_percent:+.1f}"
            print(
                f"{r.loop:<14}{1e-6 * r.exact_rate:10.2f}{1e-6 * r.estimated_rate:10.2f}"
                f"{error:>10}{r.spread_percent:10.1f}{r.bursts:10}{r.timed:10}",
                flush=True,
            )
    missed = [
        r.loop for r in results if r.error_percent is None or abs(r.error_percent) > ERROR_GOAL
    ]
    return finish(args.json, {"goal_percent": ERROR_GOAL, "loops": results}, missed)


if __name__ == "__main__":
    sys.exit(main())
