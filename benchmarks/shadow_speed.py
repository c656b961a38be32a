"""How fast a shadow records its accesses, cold and warm, beside what else there is.

usage: python benchmarks/shadow_speed.py [--quick] [--json FILE] [--programs NAME...]

Figures of each program are medians over bursts. "warm" is accesses per second of the shadow's own
run; "x native" compares that run with a native twin's of the same stretch; "cold" is the wall time
of the first burst of a million accesses, of an executor that has translated nothing, all included.
Goals, in the median over programs: at least 300 million accesses a second, at most 3 times native
time; and cc1's cold burst within 0.5 s. What is not known is printed "unknown" and not judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from memsampd.errors import CaptureError
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.lines import line_stream
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.shadow.collectors import Collector
from memsampd.sampler.shadow.executors import Execution, ShadowExecutor
from memsampd.sampler.shadow.snapshots import Shadow
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor
from programs.catalogue import find
from programs.executors import add_option, make_executor
from programs.preparing import PreparationError
from programs.rivals import (
    gdb_instructions_per_second,
    lackey_accesses_per_second,
    memtrace_accesses_per_second,
    none_slowdown,
)
from programs.running import FOLDER, WorkloadError, busiest_threads, running
from programs.workload import Workload

GOAL_ACCESSES_PER_SECOND = 300e6
GOAL_TIMES_NATIVE = 3.0
GOAL_COLD_SECONDS = {"cc1": 0.5}
PROGRAMS = (
    *("xz", "gzip", "sqlite3", "python3", "cc1", "openssl", "openssl-rsa", "bzip2", "perl"),
)

STEPPED_ACCESSES = 3000
NEW_INSTRUCTIONS_MINIMUM = 5000  # with fewer it is the set-up that is measured
WARM_ACCESSES_MINIMUM = 1000  # below that the start is what is measured
BURST_SECONDS = 10.0
ATTEMPT_SECONDS = 60.0
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        cold: first bursts.
        cold_accesses: of each of them.
        warm_up: bursts that are not counted.
        warm: bursts that are.
        accesses: of a warm burst.
        rival_seconds: for each tracer of accesses.
        none: whether to run whole programs under ``valgrind --tool=none``.
    """

    cold: int
    cold_accesses: int
    warm_up: int
    warm: int
    accesses: int
    rival_seconds: float
    none: bool


QUICK = Effort(2, 1_000_000, 4, 6, 1_000_000, rival_seconds=1.0, none=False)
FULL = Effort(5, 1_000_000, 10, 15, 16_000_000, rival_seconds=4.0, none=True)
STEPPING = Effort(1, 10_000, 1, 3, 10_000, rival_seconds=1.0, none=False)  # it takes what it takes


@dataclass(frozen=True, slots=True)
class Speed:
    """What one program came to; None is unknown.

    Attributes:
        cold_seconds: wall time of a first burst, the stop and translation included.
        cold_accesses: how long those bursts were (a system call may have ended them).
        warm_accesses_per_second: of the shadow's run.
        warm_accesses: how long those bursts were.
        times_native: the run's time over that of the native twin, for equal stretches.
        translation_seconds_per_instruction: all that a new instruction costs.
        histogram_accesses_per_second: from a burst's rows to reuse distances.
        stop_seconds: for which the target stood still, a burst.
        steps_per_second: instructions, by single-stepping.
        lackey_accesses_per_second: by ``valgrind --tool=lackey``.
        memtrace_accesses_per_second: by our valgrind tool.
        gdb_instructions_per_second: by gdb's ``record full``.
        none_slowdown: of ``valgrind --tool=none``, times.
    """

    cold_seconds: float | None
    cold_accesses: float | None
    warm_accesses_per_second: float | None
    warm_accesses: float | None
    times_native: float | None
    translation_seconds_per_instruction: float | None
    histogram_accesses_per_second: float | None
    stop_seconds: float | None
    steps_per_second: float | None
    lackey_accesses_per_second: float | None
    memtrace_accesses_per_second: float | None
    gdb_instructions_per_second: float | None
    none_slowdown: float | None


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def times_native(burst: Burst) -> float | None:
    """A run's time over its native twin's, access for access; None without a twin."""
    twin = getattr(burst, "twin", None)
    if twin is None or not len(burst):
        return None
    return float((burst.run_seconds / len(burst)) / (twin.cpu_seconds / twin.accesses))


@runtime_checkable
class Accountable(Protocol):
    """An executor that tells what its runs cost, by name."""

    def costs(self) -> dict[str, float]:
        """Counts and times of all runs."""


class Timed:
    """An executor whose last run is timed as a whole.

    Args:
        inner: does the work.
    """

    def __init__(self, inner: ShadowExecutor) -> None:
        self.name = inner.name
        self.inner = inner
        self.wall_seconds = 0.0

    def run(
        self,
        shadow: Shadow,
        max_accesses: int,
        deadline_seconds: float,
        collector: Collector | None = None,
        course_accesses: int = 0,
    ) -> Execution:
        """As the inner one."""
        started = time.perf_counter()
        execution = self.inner.run(
            shadow, max_accesses, deadline_seconds, collector, course_accesses
        )
        self.wall_seconds = time.perf_counter() - started
        return execution

    def cancel(self) -> None:
        """As the inner one."""
        self.inner.cancel()

    def close(self) -> None:
        """As the inner one."""
        self.inner.close()


@dataclass(frozen=True, slots=True)
class Cold:
    """A first burst.

    Attributes:
        seconds: wall time from the request to its rows: the stop, translation, the run.
        accesses: its length.
        translation_seconds: for each new instruction, all that is neither run nor expansion of
            what was recorded into rows; None if not known.
    """

    seconds: float
    accesses: int
    translation_seconds: float | None


class Bench:
    """Takes bursts of one running program.

    Args:
        pid: the program.
        executor: name of the executor that is judged.
    """

    def __init__(self, pid: int, executor: str) -> None:
        self._pid = pid
        self._executor = executor
        self._source = ShadowSource(pid, make_executor(executor), rate_accesses=0)

    def close(self) -> None:
        """Leave the program."""
        self._source.close()

    def take(self, accesses: int, by: ShadowExecutor | None = None) -> Burst:
        """Take a burst as soon as one can be had, by the warm executor and with a twin, or ``by``.

        Raises:
            WorkloadError: there was none for a minute.
        """
        give_up, reason = time.monotonic() + ATTEMPT_SECONDS, "no thread runs"
        while time.monotonic() < give_up:
            for tid in busiest_threads(self._pid, PAUSE_SECONDS)[:1]:
                try:
                    if by is not None:
                        request = BurstRequest(tid, accesses, BURST_SECONDS)
                        return self._source.capture_by(request, (by,))[0]
                    return self._source.capture(_timed_request(tid, accesses))
                except CaptureError as error:
                    reason = str(error)
        raise WorkloadError(f"no burst for {ATTEMPT_SECONDS:.0f} s: {reason}")

    def cold(self, effort: Effort) -> list[Cold]:
        """First bursts, each by an executor that has translated nothing."""
        return [self._cold(effort.cold_accesses) for _ in range(effort.cold)]

    def _cold(self, accesses: int) -> Cold:
        timed = Timed(make_executor(self._executor))
        burst = self.take(accesses, timed)
        new = translated_instructions(timed.inner)
        beside = timed.wall_seconds - burst.run_seconds - expansion_seconds(timed.inner)
        return Cold(
            timed.wall_seconds + burst.cost.stop_seconds,
            len(burst),
            beside / new if new >= NEW_INSTRUCTIONS_MINIMUM else None,
        )

    def warm(self, effort: Effort) -> list[Burst]:
        """Later bursts."""
        for _ in range(effort.warm_up):
            self.take(effort.accesses)
        return [self.take(effort.accesses) for _ in range(effort.warm)]

    def steps_per_second(self) -> float:
        """Instructions a second of the single-stepper, its decoding done."""
        stepper = SteppingExecutor()
        self.take(STEPPED_ACCESSES, stepper)
        burst = self.take(STEPPED_ACCESSES, stepper)
        return burst.instructions / burst.run_seconds


def _timed_request(tid: int, accesses: int) -> BurstRequest:
    """Ask for a native twin too, where sources can time one."""
    request = BurstRequest(tid, accesses, BURST_SECONDS)
    names = [f.name for f in dataclasses.fields(BurstRequest)]
    known: dict[str, Any] = {"measure_rate": True} if "measure_rate" in names else {}
    return dataclasses.replace(request, **known)


def translated_instructions(executor: ShadowExecutor) -> float:
    """How many instructions an executor has translated; 0 if it translates none."""
    return _costs(executor).get("translated_instructions", 0)


def expansion_seconds(executor: ShadowExecutor) -> float:
    """What it took to make rows of what was recorded; 0 if not known."""
    return _costs(executor).get("expansion_seconds", 0.0)


def _costs(executor: ShadowExecutor) -> dict[str, float]:
    return executor.costs() if isinstance(executor, Accountable) else {}


def _histogram_rate(burst: Burst) -> float:
    started = time.perf_counter()
    ReuseHistogram.from_lines(line_stream(burst.address, burst.size_bytes))
    return len(burst) / (time.perf_counter() - started)


def measure(workload: Workload, executor: str, effort: Effort) -> Speed:
    """Measure one program, and the rivals on it."""
    with running(workload) as pid:
        bench = Bench(pid, executor)
        try:
            cold = bench.cold(effort)
            warm = bench.warm(effort)
            steps = bench.steps_per_second()
        finally:
            bench.close()
        gdb = gdb_instructions_per_second(pid, FOLDER)
    seconds = effort.rival_seconds
    full = [c for c in cold if c.accesses >= effort.cold_accesses] or cold
    long = [burst for burst in warm if len(burst) >= WARM_ACCESSES_MINIMUM]
    return Speed(
        cold_seconds=median(c.seconds for c in full),
        cold_accesses=median(c.accesses for c in full),
        warm_accesses_per_second=median(len(burst) / burst.run_seconds for burst in long),
        warm_accesses=median(len(burst) for burst in warm),
        times_native=median(times_native(burst) for burst in long),
        translation_seconds_per_instruction=median(c.translation_seconds for c in full),
        histogram_accesses_per_second=median(_histogram_rate(burst) for burst in long),
        stop_seconds=median(burst.cost.stop_seconds for burst in warm),
        steps_per_second=steps,
        lackey_accesses_per_second=lackey_accesses_per_second(workload, seconds),
        memtrace_accesses_per_second=memtrace_accesses_per_second(workload, FOLDER.parent, seconds),
        gdb_instructions_per_second=gdb,
        none_slowdown=none_slowdown(workload, FOLDER) if effort.none else None,
    )


# Heading, field, factor, digits: one column each.
COLUMNS = (
    ("cold s", "cold_seconds", 1.0, 3),
    ("of M", "cold_accesses", 1e-6, 2),
    ("warm M/s", "warm_accesses_per_second", 1e-6, 1),
    ("of M", "warm_accesses", 1e-6, 2),
    ("x native", "times_native", 1.0, 2),
    ("us/new", "translation_seconds_per_instruction", 1e6, 2),
    ("histo M/s", "histogram_accesses_per_second", 1e-6, 1),
    ("stop ms", "stop_seconds", 1e3, 2),
    ("| step k/s", "steps_per_second", 1e-3, 1),
    ("lackey M/s", "lackey_accesses_per_second", 1e-6, 2),
    ("memtrace M/s", "memtrace_accesses_per_second", 1e-6, 1),
    ("gdb k/s", "gdb_instructions_per_second", 1e-3, 1),
    ("none x", "none_slowdown", 1.0, 1),
)


def row(name: str, speed: Speed) -> str:
    """One line of the table."""
    cells = []
    for heading, attribute, factor, digits in COLUMNS:
        value = getattr(speed, attribute)
        text = "unknown" if value is None else f"{value * factor:.{digits}f}"
        cells.append(f"{text:>{max(len(heading), 7)}}")
    return f"{name:12} " + " ".join(cells)


def heading() -> str:
    """The head of the table."""
    return f"{'program':12} " + " ".join(f"{text:>{max(len(text), 7)}}" for text, *_ in COLUMNS)


def missed_goals(results: dict[str, Speed]) -> list[str]:
    """What falls short, for people; what is unknown is not judged, but no rate at all is a miss."""
    missed = []
    rate = median(speed.warm_accesses_per_second for speed in results.values())
    if rate is None or rate < GOAL_ACCESSES_PER_SECOND:
        missed.append(
            f"{(rate or 0) / 1e6:.1f} M accesses/s < {GOAL_ACCESSES_PER_SECOND / 1e6:.0f}"
        )
    ratio = median(speed.times_native for speed in results.values())
    if ratio is not None and ratio > GOAL_TIMES_NATIVE:
        missed.append(f"{ratio:.2f} times native > {GOAL_TIMES_NATIVE}")
    for name, goal in GOAL_COLD_SECONDS.items():
        seconds = results[name].cold_seconds if name in results else None
        if seconds is not None and seconds > goal:
            missed.append(f"{name} cold {seconds:.2f} s > {goal} s")
    return missed


def measure_all(workloads: Sequence[Workload], executor: str, effort: Effort) -> dict[str, Speed]:
    """Measure and print one after the other; those that cannot run are named."""
    results = {}
    print(heading())
    for workload in workloads:
        problem = workload.lacks()
        try:
            if not problem:
                results[workload.name] = measure(workload, executor, effort)
        except (PreparationError, WorkloadError) as error:
            problem = str(error)
        line = problem and f"{workload.name:12} {problem}"
        print(line or row(workload.name, results[workload.name]), flush=True)
    return results


def main() -> int:
    """Measure all programs and judge the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter bursts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--programs", nargs="+", default=PROGRAMS, metavar="NAME", help="these only"
    )
    add_option(parser)
    args = parser.parse_args()
    try:
        workloads = find(args.programs)
    except KeyError as error:
        parser.error(f"no program {error}; see benchmarks/list_programs.py")
    effort = STEPPING if args.executor == "step" else QUICK if args.quick else FULL
    results = measure_all(workloads, args.executor, effort)
    if args.json:
        figures = {name: dataclasses.asdict(speed) for name, speed in results.items()}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    missed = missed_goals(results)
    print(f"goals: {'MISSED: ' + '; '.join(missed) if missed else 'met'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
