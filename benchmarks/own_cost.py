"""What expanding and counting cost us, a nanosecond an access.

usage: python benchmarks/own_cost.py [--quick] [--json FILE] [--programs NAME...]

Bursts of real programs are recorded, as a session does it, and what it took to make lines of what
was recorded and to count these is divided by the accesses: CPU time, the least quarter of warm
bursts, as what else runs on the machine only adds. "code" is what it takes to tell which
instructions ran how often. Goals: the median of the totals over programs is at most 4 ns, and there
is one of each program. Exit status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from memsampd.errors import CaptureError
from memsampd.models.counting import LineCounter
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from programs.catalogue import find
from programs.preparing import PreparationError
from programs.running import WorkloadError, busiest_threads, running
from verdict import add_options, finish

GOAL_NANOSECONDS = 4.0
PROGRAMS = ("sqlite3", "cc1", "python3", "gzip", "xz", "perl", "numpy", "openssl")
PAUSE_SECONDS = 0.02
PROGRAM_SECONDS = 40.0
MAX_STOP_SECONDS = 0.02
WARM_UP = 3  # bursts; code that has just been translated is expanded from cold tables
ACCESSES_MINIMUM = 20_000

Figures = dict[str, float]


def measure(pid: int, bursts: int, accesses: int) -> Figures:
    """The lower quartile over bursts of a running program; empty if there were none."""
    counter = LineCounter()
    seen: list[Figures] = []
    give_up = time.monotonic() + PROGRAM_SECONDS
    with closing(ReplicaSource(pid)) as source:
        while len(seen) < bursts + WARM_UP and time.monotonic() < give_up:
            for tid in busiest_threads(pid, PAUSE_SECONDS)[:1]:
                figures = _one(source, counter, BurstRequest(tid, accesses, MAX_STOP_SECONDS))
                seen += [figures] if figures else []
    warm = seen[WARM_UP:]
    if len(warm) < 4:
        return {}
    return {name: statistics.quantiles([each[name] for each in warm])[0] for name in warm[0]}


def _one(source: ReplicaSource, counter: LineCounter, request: BurstRequest) -> Figures:
    before = source.costs()
    counter.begin()
    try:
        burst = source.count_lines(request, 64, counter.core)
    except CaptureError:
        return {}
    started = time.thread_time()
    counted = counter.histogram().accesses
    histogram_seconds = time.thread_time() - started
    after = source.costs()
    if burst.accesses < ACCESSES_MINIMUM:
        return {}
    each = 1e9 / counted
    expanded = after["expansion_seconds"] - before["expansion_seconds"]
    return {
        "accesses": counted,
        "total": (expanded + histogram_seconds) * each,
        "code": (after["visits_seconds"] - before["visits_seconds"]) * each,
    }


def row(name: str, own: Figures) -> str:
    """One line of the table."""
    cells = (own.get("accesses"), own.get("total"), own.get("code"))
    return f"{name:12}" + "".join(
        f"{'unknown' if cell is None else f'{cell:.{0 if i == 0 else 2}f}':>12}"
        for i, cell in enumerate(cells)
    )


def measure_all(
    names: Sequence[str], bursts: int, accesses: int
) -> tuple[dict[str, Figures], list[str]]:
    """Measure and print one program after the other; returns also what failed, and why."""
    results, problems = {}, []
    heads = ("accesses", "total ns", "code")
    print(f"{'program':12}" + "".join(f"{head:>12}" for head in heads))
    for workload in find(names):
        problem = workload.lacks()
        try:
            if not problem:
                with running(workload) as pid:
                    results[workload.name] = measure(pid, bursts, accesses)
        except (PreparationError, WorkloadError, CaptureError) as error:
            problem = str(error)
        if not problem and not results[workload.name]:
            problem = "too few bursts"
        if problem:
            problems.append(f"{workload.name}: {problem}")
        line = problem and f"{workload.name:12} {problem}"
        print(line or row(workload.name, results[workload.name]), flush=True)
    return results, problems


def main() -> int:
    """Measure all programs and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, "fewer bursts")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, metavar="NAME")
    parser.add_argument("--accesses", type=int, default=1_000_000, help="of a burst")
    parser.add_argument("--bursts", type=int, help="of each program")
    args = parser.parse_args()
    bursts = args.bursts or (12 if args.quick else 40)
    results, problems = measure_all(args.programs, bursts, args.accesses)
    totals = [each["total"] for each in results.values() if "total" in each]
    median = statistics.median(totals) if totals else float("nan")
    told = f"median {median:.2f} ns an access, goal {GOAL_NANOSECONDS}"
    print(told)
    return finish(args.json, results, problems + ([] if median <= GOAL_NANOSECONDS else [told]))


if __name__ == "__main__":
    sys.exit(main())
