"""The access clock against full traces: accesses per CPU second, from native twins and exactly.

usage: python benchmarks/access_clock.py [--quick] [--programs NAME...] [--stops N] [--rounds N]
                                         [--json FILE]

Each round runs a program once alone, for its user CPU time, and once with memsampd attached: at
random moments it is halted until a burst is taken and its native twin timed. The estimate is the
mean of the twins' rates, each weighted by the CPU time of the program that lies nearest to it. The
truth is the number of accesses that a full trace counted (``benchmarks/reference/data``), divided
by the median user CPU time of the runs alone ("attached": the median of the others).

Exit status 1 if the estimate of a program is off by more than 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memsampd.errors import CaptureError, TargetError
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.records import BurstRequest, TwinMeasurement
from memsampd.sampler.shadow.executors import Execution
from memsampd.sampler.shadow.snapshots import Shadow
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.translating import TranslatingExecutor
from reference import store
from reference.programs import PROGRAMS, environment, find

ERROR_GOAL = 5.0
ACCESSES = 500_000
QUICK_PROGRAMS = ("bzip2", "python3")
MEASURED_PROGRAMS = ("gzip", "bzip2", "xz", "sqlite3", "cc1", "python3", "graph", "hashjoin")
BUILD = Path(__file__).resolve().parents[1] / "build" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Stop:
    """One moment at which a twin was timed.

    Attributes:
        at_seconds: CPU time of the program by then.
        twin: the measurement; None if there was no point to stop at.
    """

    at_seconds: float
    twin: TwinMeasurement | None


@dataclass(frozen=True, slots=True)
class Result:
    """One program: rates in accesses per CPU second, the rest as the names say."""

    program: str
    exact_rate: float
    estimated_rate: float
    error_percent: float
    spread_percent: float
    stops: int
    timed: int
    twin_milliseconds: float
    faults: float
    user_seconds: float
    attached_seconds: float


def run_alone(command: Sequence[str]) -> float:
    """User CPU seconds of a run without memsampd."""
    process = start(command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    if status != 0:
        raise RuntimeError(f"{command[0]} failed")
    return used.ru_utime


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment(),
        cwd=BUILD,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


class HaltingExecutor(TranslatingExecutor):
    """Halts the target from the moment that its shadows are made.

    Stops are hundreds of times as dense here as in a session: a target that went on meanwhile would
    not be the program any more that ran alone.
    """

    def run(self, shadow: Shadow, *args: Any, **kwargs: Any) -> Execution:
        """Run a shadow, as its super class does."""
        os.kill(shadow.tid, signal.SIGSTOP)
        return super().run(shadow, *args, **kwargs)


def run_measured(
    command: Sequence[str],
    executor: HaltingExecutor,
    gap_seconds: float,
    rng: random.Random,
) -> tuple[list[Stop], float]:
    """Run a program and time twins at random moments, so many seconds apart on average.

    Returns:
        The stops, and user CPU seconds of the run.
    """
    process = start(command)
    stops: list[Stop] = []
    source = None
    try:
        while not has_ended(process.pid):
            try:
                source = source or ShadowSource(process.pid, executor)
                time.sleep(2 * gap_seconds * rng.random())
                at_seconds = 1e-9 * process_cpu_ns(process.pid)
                burst = source.capture(BurstRequest(process.pid, ACCESSES, 10.0, measure_rate=True))
                stops.append(Stop(at_seconds, burst.twin))
            except (CaptureError, TargetError):
                time.sleep(0.002)  # it has not come to its own code yet, or is about to end
            finally:
                os.kill(process.pid, signal.SIGCONT)
        if source is not None:
            source.close()
    finally:
        os.kill(process.pid, signal.SIGKILL)  # not by Popen, which would collect it
        _, process.returncode, used = os.wait4(process.pid, 0)
    return stops, used.ru_utime


def has_ended(pid: int) -> bool:
    """Whether a child has, without taking its resource usage away."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cell_weights(at_seconds: Sequence[float], total_seconds: float) -> list[float]:
    """CPU time of a run that lies nearest to each of these moments (ascending)."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(at_seconds)]
    edges = [0.0, *middles, max(total_seconds, at_seconds[-1])]
    return [b - a for a, b in itertools.pairwise(edges)]


def estimate(runs: Sequence[Sequence[Stop]], total_seconds: float) -> tuple[float, float]:
    """Mean rate over CPU time of all runs, and its relative standard error between stops."""
    rates: list[float] = []
    weights: list[float] = []
    for stops in runs:
        timed = [(stop.at_seconds, stop.twin) for stop in stops if stop.twin is not None]
        if timed:
            rates += [twin.accesses / twin.cpu_seconds for _, twin in timed]
            weights += cell_weights([at for at, _ in timed], total_seconds)
    if not rates:
        return 0.0, math.inf
    mean = float(np.average(rates, weights=weights))
    variance = float(np.average(np.square(np.subtract(rates, mean)), weights=weights))
    return mean, math.sqrt(variance / len(rates)) / mean


def measure(name: str, args: argparse.Namespace, rng: random.Random) -> Result:
    """Measure one program."""
    command = find([name])[0].command(BUILD / "programs")
    run_alone(command)  # files into the page cache
    executor = HaltingExecutor()
    users: list[float] = []
    attached: list[float] = []
    runs: list[list[Stop]] = []
    for _ in range(args.rounds):
        users.append(run_alone(command))
        stops, seconds = run_measured(command, executor, users[-1] / args.stops, rng)
        runs.append(stops)
        attached.append(seconds)
    users.append(run_alone(command))
    user_seconds = statistics.median(users)
    exact = store.load(store.path_of(name)).total_accesses / user_seconds
    estimated, spread = estimate(runs, user_seconds)
    twins = [stop.twin for stops in runs for stop in stops if stop.twin is not None]
    return Result(
        program=name,
        exact_rate=exact,
        estimated_rate=estimated,
        error_percent=100 * (estimated / exact - 1),
        spread_percent=100 * spread,
        stops=sum(map(len, runs)),
        timed=len(twins),
        twin_milliseconds=1e3 * statistics.median(t.cpu_seconds for t in twins) if twins else 0.0,
        faults=statistics.mean(twin.faults for twin in twins) if twins else 0.0,
        user_seconds=user_seconds,
        attached_seconds=statistics.median(attached),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare native twins' access rates with full traces.",
        epilog=f"programs: {', '.join(program.name for program in PROGRAMS)}",
    )
    parser.add_argument("--quick", action="store_true", help="one round of two programs")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--stops", type=int, default=25, metavar="N", help="twins a run")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs a program")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    names = args.programs or (QUICK_PROGRAMS if args.quick else MEASURED_PROGRAMS)
    if args.rounds < 1 or args.stops < 1:
        parser.error("--rounds and --stops need at least 1")
    try:
        find(names)
    except KeyError as error:
        parser.error(f"no program is called {error}")
    columns = ("program", "exact M/s", "twin M/s", "error %", "spread %", "stops", "timed")
    print(
        "".join(f"{c:>10}" for c in (*columns, "twin ms", "faults", "user s", "attached")),
        flush=True,
    )
    results = []
    for name in names:
        r = measure(name, args, random.Random(args.seed))
        results.append(r)
        print(
            f"{r.program:>10}{1e-6 * r.exact_rate:10.1f}{1e-6 * r.estimated_rate:10.1f}"
            f"{r.error_percent:+10.1f}{r.spread_percent:10.1f}{r.stops:10}{r.timed:10}"
            f"{r.twin_milliseconds:10.2f}{r.faults:10.1f}{r.user_seconds:10.2f}"
            f"{r.attached_seconds:10.2f}",
            flush=True,
        )
    if args.json:
        kept = {"goal_percent": ERROR_GOAL, "programs": [asdict(each) for each in results]}
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [r.program for r in results if not abs(r.error_percent) <= ERROR_GOAL]
    print(f"missed: {', '.join(missed)}" if missed else "all within the goal")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
