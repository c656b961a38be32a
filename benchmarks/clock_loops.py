"""The access clock on loops whose rates are known by construction.

usage: python benchmarks/clock_loops.py [--quick] [--timings N] [--json FILE]

Each loop (``programs/sources/clock_loops.c``) tells its accesses and its CPU time itself. It is
timed by bursts of the replica at random moments. The estimate is the mean of the rates; the truth
is what the program counted in the tenths of seconds before the bursts.

Exit status 1 if the estimate of a loop is off by more than 10 %. One without a timing is no miss.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clock_target import build, running
from memsampd.errors import CaptureError
from memsampd.sampler.burst_clock import BurstClock
from memsampd.sampler.clock.costs import measure_costs
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

ERROR_GOAL = 10.0
BURST_ROWS = 1_000_000
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
    timed: int
    untimed: dict[str, int]
    ways: dict[str, int]
    hit_microseconds: float


def measure(program: Path, loop: tuple[str, str, int], timings: int, rng: random.Random) -> Result:
    """Time one loop."""
    name, kind, size_bytes = loop
    bursts: list[Burst] = []
    accesses, seconds = 0, 0.0
    with running(program, kind, size_bytes) as target, closing(ReplicaSource(target.pid)) as source:
        for _ in range(timings):
            began = target.progress()
            time.sleep(_AROUND_SECONDS * (0.5 + rng.random()))
            ended = target.progress()  # before the burst: it is not to be in its truth
            accesses += ended.accesses - began.accesses
            seconds += ended.cpu_seconds - began.cpu_seconds
            request = BurstRequest(target.pid, BURST_ROWS, measure_rate=True)
            with suppress(CaptureError):  # between two rounds it writes
                bursts.append(source.capture(request))
        untimed = source.untimed()
    exact = accesses / seconds
    stretches = [burst.timed for burst in bursts if burst.timed is not None]
    rates = [each.accesses_per_cpu_second for each in stretches]
    mean = BurstClock().measure(bursts).accesses_per_cpu_second or 0.0  # as a session does
    return Result(
        loop=name,
        exact_rate=exact,
        estimated_rate=mean,
        error_percent=100 * (mean / exact - 1) if mean else None,
        spread_percent=100 * statistics.pstdev(rates) / mean if mean else 0.0,
        timed=len(stretches),
        untimed=untimed,
        ways=dict(collections.Counter(each.method for each in stretches)),
        hit_microseconds=1e6 * statistics.mean(burst.cost.hit_seconds for burst in bursts),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Time loops of known rates.")
    parser.add_argument("--quick", action="store_true", help="8 timings a loop")
    parser.add_argument("--timings", type=int, default=30, metavar="N", help="a loop")
    parser.add_argument("--loops", nargs="+", default=[], metavar="NAME", help='"chase 1 MiB" ...')
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    timings = 8 if args.quick else args.timings
    loops = [loop for loop in LOOPS if not args.loops or loop[0] in args.loops]
    if timings < 1 or not loops:
        parser.error(f"at least one timing of: {', '.join(loop[0] for loop in LOOPS)}")
    costs = measure_costs()
    print("costs, µs:", ", ".join(f"{name} {1e6 * us:.1f}" for name, us in asdict(costs).items()))
    columns = ("exact M/s", "clock M/s", "error %", "spread %", "timed", "lost µs")
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
                f"{error:>10}{r.spread_percent:10.1f}{r.timed:10}{r.hit_microseconds:10.1f}"
                f"  {r.ways} {r.untimed}",
                flush=True,
            )
    if args.json:
        kept = {"goal_percent": ERROR_GOAL, "loops": [asdict(each) for each in results]}
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [
        r.loop for r in results if r.error_percent is None or abs(r.error_percent) > ERROR_GOAL
    ]
    print(f"missed: {', '.join(missed)}" if missed else "all within the goal")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
