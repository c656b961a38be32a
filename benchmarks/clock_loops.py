"""The access clock on loops whose rates are known by construction.

usage: python benchmarks/clock_loops.py [--quick] [--timings N] [--json FILE]

Each loop (``programs/sources/clock_loops.c``) tells its accesses and its CPU time itself. It is
timed again and again while it runs, at random moments: from a burst of it, as a replica gets one
within a hold, the clock chooses its way. The estimate is the mean of the rates; the truth is what
the program counted in the tenths of seconds around the timings. "held" is the clock that is armed
during a hold, tried beside the others.

Exit status 1 if the estimate of a loop is off by more than 10 %.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from clock_target import LoopReplayer, LoopTarget, Progress, build, running
from memsampd.sampler.clock.choosing import TYPICAL_RATE, choose_way, time_now
from memsampd.sampler.clock.costs import HitCosts, measure_costs
from memsampd.sampler.clock.held import HeldClock, find_milestones
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.records import TimedStretch

ERROR_GOAL = 10.0
BURST_ROWS = 200_000
# A hold of 5 ms supplies no more at 3.7 µs a page.
BURST_PAGES = 1300
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
    error_percent: float
    spread_percent: float
    timed: int
    untimed: dict[str, int]
    ways: dict[str, int]
    hits: float
    hit_microseconds: float
    held_error_percent: float | None
    held_untimed: dict[str, int]


class WaitingReplayer(LoopReplayer):
    """Asks the program how far it is before it begins to burden the machine."""

    asked: Progress | None = None

    def rows_from(self, registers: bytes, max_rows: int) -> Rows:
        """Run a replay, as its super class does."""
        self.asked = wait_and_ask(self._target)
        return super().rows_from(registers, max_rows)


def wait_and_ask(target: LoopTarget) -> Progress:
    """Its figures after some time in which we do nothing."""
    time.sleep(_AROUND_SECONDS)
    return target.progress()


def take_burst(target: LoopTarget, registers: bytes) -> Rows:
    """What a hold shows: cut where its pages take too long."""
    rows = target.rows_from(registers, BURST_ROWS)
    pages, first = np.unique(rows.address >> np.uint64(12), return_index=True)
    end = len(rows) if len(pages) <= BURST_PAGES else int(np.sort(first)[BURST_PAGES])
    return Rows(rows.ip[:end], rows.address[:end], rows.size_bytes[:end])


def time_held(target: LoopTarget, costs: HitCosts) -> TimedStretch | Untimed:
    """Time the next accesses of the target by breakpoints armed while it is held."""
    with HeldClock(target.pid) as clock:
        with target.held() as registers:
            if not target.is_in_loop(registers):
                return Untimed("not-in-loop", "between two rounds")
            rows = take_burst(target, registers)
            target.read_pages(rows)
            milestones = find_milestones(rows)
            if len(milestones) < 2:
                return Untimed("no-milestones", "no new lines")
            clock.arm(milestones)
        return clock.finish(rows, milestones, costs)


def measure(
    program: Path, loop: tuple[str, str, int], costs: HitCosts, timings: int, rng: random.Random
) -> Result:
    """Time one loop."""
    name, kind, size_bytes = loop
    timed: list[TimedStretch | Untimed] = []
    held: list[TimedStretch | Untimed] = []
    rate = TYPICAL_RATE
    accesses, seconds = 0, 0.0
    with running(program, kind, size_bytes) as target:
        for _ in range(timings):
            choice = choose_way(
                take_burst(target, target.moment().registers), costs, expected_rate=rate
            )
            # What we do ourselves on the same CPUs is not to be in what the timing is held against.
            time.sleep(0.1)
            began = target.progress()
            time.sleep(_AROUND_SECONDS * rng.random())
            replayer = WaitingReplayer(target)
            found = time_now(target.pid, choice, costs, replayer)
            ended = replayer.asked or wait_and_ask(target)
            accesses += ended.accesses - began.accesses
            seconds += ended.cpu_seconds - began.cpu_seconds
            timed.append(found)
            if isinstance(found, TimedStretch):
                rate = found.accesses_per_cpu_second
            held.append(time_held(target, costs))
    exact = accesses / seconds
    rates = [each.accesses_per_cpu_second for each in timed if isinstance(each, TimedStretch)]
    held_rates = [each.accesses_per_cpu_second for each in held if isinstance(each, TimedStretch)]
    mean = statistics.mean(rates) if rates else 0.0
    return Result(
        loop=name,
        exact_rate=exact,
        estimated_rate=mean,
        error_percent=100 * (mean / exact - 1),
        spread_percent=100 * statistics.pstdev(rates) / mean if rates else 0.0,
        timed=len(rates),
        untimed=reasons(timed),
        ways=dict(collections.Counter(t.method for t in timed if isinstance(t, TimedStretch))),
        hits=statistics.mean(each.hits for each in timed),
        hit_microseconds=1e6 * statistics.mean(each.hit_seconds for each in timed),
        held_error_percent=100 * (statistics.mean(held_rates) / exact - 1) if held_rates else None,
        held_untimed=reasons(held),
    )


def reasons(timings: Sequence[TimedStretch | Untimed]) -> dict[str, int]:
    """How often each reason was given."""
    return dict(collections.Counter(t.reason for t in timings if isinstance(t, Untimed)))


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
    columns = ("exact M/s", "clock M/s", "error %", "spread %", "timed", "hits", "lost µs")
    print(f"{'loop':<14}" + "".join(f"{column:>10}" for column in (*columns, "held %")), flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for loop in loops:
            r = measure(program, loop, costs, timings, random.Random(args.seed))
            results.append(r)
            held = "-" if r.held_error_percent is None else f"{r.held_error_percent:+.1f}"
            print(
                f"{r.loop:<14}{1e-6 * r.exact_rate:10.2f}{1e-6 * r.estimated_rate:10.2f}"
                f"{r.error_percent:+10.1f}{r.spread_percent:10.1f}{r.timed:10}{r.hits:10.1f}"
                f"{r.hit_microseconds:10.1f}{held:>10}  {r.ways} {r.untimed}; held: "
                f"{r.held_untimed}",
                flush=True,
            )
    if args.json:
        kept = {"goal_percent": ERROR_GOAL, "loops": [asdict(each) for each in results]}
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [r.loop for r in results if not abs(r.error_percent) <= ERROR_GOAL]
    print(f"missed: {', '.join(missed)}" if missed else "all within the goal")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
