"""What expanding and counting cost us, a nanosecond an access, beside another checkout of memsampd.

usage: python benchmarks/own_cost.py [--quick] [--json FILE] [--other PATH] [--programs NAME...]

Bursts of real programs are recorded, as a session does it, and what it took to make lines of what
was recorded and to count these is divided by the accesses: CPU time, the least quarter of warm
bursts, as what else runs on the machine only adds. "total" is all of it; "expand" the part up to
the lines; "code" what it takes to tell which instructions ran how often. With --other the same is
done with the package of another checkout, by its own interpreter (PATH/.venv/bin/python): there
the total is the sum of its parts, and what lies between them in Python is not charged to it.
Goal: the median of the totals over programs is at most 4 ns. Exit status 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memsampd.errors import CaptureError
from memsampd.models.counting import LineCounter
from memsampd.sampler.shadow import collectors
from memsampd.sampler.shadow.snapshots import Shadow, Snapshots
from memsampd.sampler.shadow.translating import TranslatingExecutor
from programs.catalogue import find
from programs.preparing import PreparationError
from programs.running import WorkloadError, busiest_threads, running

GOAL_NANOSECONDS = 4.0
PROGRAMS = ("sqlite3", "cc1", "python3", "gzip", "xz", "perl", "numpy", "openssl")
BURST_SECONDS = 10.0
PAUSE_SECONDS = 0.02
PROGRAM_SECONDS = 40.0
WARM_UP = 3  # bursts; code that has just been translated is expanded from cold tables
ACCESSES_MINIMUM = 20_000

Figures = dict[str, float]


def shadows(pid: int) -> Iterator[Shadow]:
    """Stopped copies of a program at moments when it runs."""
    snapshots = Snapshots(pid)
    give_up = time.monotonic() + PROGRAM_SECONDS
    try:
        while time.monotonic() < give_up:
            for tid in busiest_threads(pid, PAUSE_SECONDS)[:1]:
                try:
                    (shadow,) = snapshots.take(tid, 1, 5.0).shadows
                except CaptureError:
                    continue
                try:
                    yield shadow
                finally:
                    snapshots.end(shadow)
    finally:
        snapshots.close()


class Bench:
    """Measures one burst after the other with the package that is imported."""

    def __init__(self) -> None:
        self._executor = TranslatingExecutor()
        self._counter = LineCounter()
        self._is_expanded_only = False

    def measure(self, shadow: Shadow, accesses: int) -> Figures:
        """Nanoseconds an access by name, of one burst; none if it was too short."""
        if not hasattr(collectors, "Counted"):
            return self._in_parts(shadow, accesses)
        self._is_expanded_only = not self._is_expanded_only
        if self._is_expanded_only:
            figures = self._in_parts(shadow, accesses)
            return {"expand": figures["expand"]} if figures else {}
        return self._at_once(shadow, accesses)

    def _at_once(self, shadow: Shadow, accesses: int) -> Figures:
        self._counter.begin()
        collector = collectors.Counted(64, self._counter.core)
        before = self._expansion_seconds()
        self._executor.run(shadow, accesses, BURST_SECONDS, collector, 0)
        expanded = self._expansion_seconds() - before
        started = time.thread_time()
        self._counter.histogram()
        counted = time.thread_time() - started
        started = time.thread_time()
        self._executor._translator.visits()
        code = time.thread_time() - started
        if collector.accesses < ACCESSES_MINIMUM:
            return {}
        each = 1e9 / collector.accesses
        return {
            "total": (expanded + counted) * each,
            "code": code * each,
            "accesses": collector.accesses,
        }

    def _in_parts(self, shadow: Shadow, accesses: int) -> Figures:
        self._counter.begin()
        seconds = 0.0

        def consume(chunk: Any) -> None:
            nonlocal seconds
            started = time.thread_time()
            self._counter.add(chunk.runs if hasattr(chunk, "runs") else chunk.line)
            seconds += time.thread_time() - started

        collector = collectors.Lines(64, consume)
        before = self._expansion_seconds()
        self._executor.run(shadow, accesses, BURST_SECONDS, collector, accesses)
        expanded = self._expansion_seconds() - before
        started = time.thread_time()
        self._counter.histogram()
        seconds += time.thread_time() - started
        if collector.accesses < ACCESSES_MINIMUM:
            return {}
        each = 1e9 / collector.accesses
        return {
            "total": (expanded + seconds) * each,
            "expand": expanded * each,
            "accesses": collector.accesses,
        }

    def _expansion_seconds(self) -> float:
        return self._executor.costs()["expansion_seconds"]


def measure(pid: int, bursts: int, accesses: int) -> Figures:
    """The lower quartile over bursts of a running program; empty if there were none."""
    bench, seen = Bench(), []
    for number, shadow in enumerate(shadows(pid)):
        figures = bench.measure(shadow, accesses)
        if number >= WARM_UP and figures:
            seen.append(figures)
        if len(seen) == bursts:
            break
    if len(seen) < 4:
        return {}
    names = {name for figures in seen for name in figures}
    return {
        name: statistics.quantiles([figures[name] for figures in seen if name in figures])[0]
        for name in sorted(names)
    }


def measure_by(other: Path, pid: int, bursts: int, accesses: int) -> Figures:
    """The same by another checkout."""
    command = [
        *(str(other / ".venv/bin/python"), __file__),
        *("--pid", str(pid), "--bursts", str(bursts), "--accesses", str(accesses)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    answer = subprocess.run(command, check=True, capture_output=True, env=environment)
    return dict(json.loads(answer.stdout))


def row(name: str, own: Figures, other: Figures) -> str:
    """One line of the table."""
    cells = [own.get("accesses"), own.get("total"), own.get("expand"), own.get("code")]
    cells += [other.get("total"), other.get("expand")]
    return f"{name:12}" + "".join(
        f"{'unknown' if cell is None else f'{cell:.{0 if i == 0 else 2}f}':>12}"
        for i, cell in enumerate(cells)
    )


def measure_all(
    names: Sequence[str], bursts: int, accesses: int, other: Path | None
) -> dict[str, dict[str, Figures]]:
    """Measure and print one program after the other; those that cannot run are named."""
    results = {}
    heads = ("accesses", "total ns", "expand", "code", "other total", "expand")
    print(f"{'program':12}" + "".join(f"{head:>12}" for head in heads))
    for workload in find(names):
        problem = workload.lacks()
        try:
            if not problem:
                with running(workload) as pid:
                    own = measure(pid, bursts, accesses)
                    beside = measure_by(other, pid, bursts, accesses) if other else {}
                results[workload.name] = {"own": own, "other": beside}
        except (PreparationError, WorkloadError) as error:
            problem = str(error)
        line = problem and f"{workload.name:12} {problem}"
        print(line or row(workload.name, own, beside), flush=True)
    return results


def main() -> int:
    """Measure all programs and judge the median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer bursts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--other", type=Path, metavar="PATH", help="a checkout to measure beside")
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, metavar="NAME")
    parser.add_argument("--accesses", type=int, default=1_000_000, help="of a burst")
    parser.add_argument("--bursts", type=int, help="of each program")
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)  # only this, as JSON
    args = parser.parse_args()
    bursts = args.bursts or (12 if args.quick else 40)
    if args.pid:
        print(json.dumps(measure(args.pid, bursts, args.accesses)))
        return 0
    results = measure_all(args.programs, bursts, args.accesses, args.other)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    totals = [each["own"]["total"] for each in results.values() if "total" in each["own"]]
    median = statistics.median(totals) if totals else float("nan")
    verdict = "met" if median <= GOAL_NANOSECONDS else "MISSED"
    print(f"median {median:.2f} ns an access, goal {GOAL_NANOSECONDS}: {verdict}")
    return int(verdict != "met")


if __name__ == "__main__":
    sys.exit(main())
