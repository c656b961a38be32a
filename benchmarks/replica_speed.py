"""How fast a replica records accesses, what its target is held for, and what it costs us.

usage: python benchmarks/replica_speed.py [--quick] [--json FILE] [--programs NAME...]
                                          [--max-stop SECONDS] [--beyond SECONDS]

Bursts of 100,000, 200,000 and 1,000,000 accesses, as a session takes them: their lines are counted
as they are made. Figures are medians over the bursts of one length but for the longest hold.

  first    wall time until the first burst of 100,000 accesses or more had come, all included, and
           how many bursts that took
  got      accesses of a burst: a call, a fault or the hold's limit may end it
  M/s      accesses a second while the replica runs, page faults included
  hold     for which the target is held; worst: the longest single hold of all bursts
  pages    predicted, and missed: supplied when they were touched
  own ms   CPU time of ours for a burst, replica and tracing included
  ns       the same an access; count: of that, to expand what was recorded and to count reuse
           distances

Goals, in the median over programs: 300 M accesses a second and 4 ns of counting at 1,000,000
accesses, no single hold longer than the limit by more than 1 ms, and bursts of each program and
length.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.models.histogram import ReuseHistogram
from memsampd.sampler.records import Burst, BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from programs.catalogue import find
from programs.preparing import PreparationError
from programs.running import WorkloadError, busiest_threads, running
from programs.workload import Workload
from verdict import add_options, finish

LENGTHS = (100_000, 200_000, 1_000_000)
FULL_SHARE = 0.9  # of what was asked for: a burst's buffer ends near it, not at it
LINE_BYTES = 64
WARM_UP = 10
BURSTS, QUICK_BURSTS = 40, 10
FEWEST_ACCESSES = 1000  # of a burst that tells of speed
FIRST_SECONDS = 20.0
LENGTH_SECONDS = 30.0
LOOK_SECONDS = 0.02

GOAL_ACCESSES_PER_SECOND = 300e6
GOAL_COUNTING_SECONDS = 4e-9
GOAL_HOLD_EXCESS_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Taken:
    """One burst, and what it took.

    Attributes:
        burst: without its rows.
        run_seconds: while its replica ran.
        counting_seconds: CPU time for expanding and counting what it recorded.
    """

    burst: Burst
    run_seconds: float
    counting_seconds: float

    @property
    def own_cpu_seconds(self) -> float:
        """CPU time of memsampd and its replica."""
        return self.burst.cost.own_cpu_seconds


@dataclass(frozen=True, slots=True)
class Length:
    """Bursts of one length; None is unknown.

    Attributes:
        bursts: how many there were.
        full_share: of these, that came to what they were asked for.
        accesses: of a burst.
        accesses_per_second: while the replica ran.
        hold_seconds: of a burst, all its holds together.
        longest_hold_seconds: the longest single hold of all bursts.
        pages_predicted: of a burst.
        pages_missed: of a burst.
        own_seconds: CPU time of ours for a burst.
        own_seconds_per_access: CPU time of ours.
        counting_seconds_per_access: the part of it for expanding and counting.
        ends: why the bursts ended.
    """

    bursts: int
    full_share: float | None
    accesses: float | None
    accesses_per_second: float | None
    hold_seconds: float | None
    longest_hold_seconds: float | None
    pages_predicted: float | None
    pages_missed: float | None
    own_seconds: float | None
    own_seconds_per_access: float | None
    counting_seconds_per_access: float | None
    ends: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Speed:
    """What one program came to.

    Attributes:
        first_seconds: wall time until the first burst of 100,000 accesses; None if none came.
        first_bursts: how many bursts that took.
        lengths: by the accesses asked for.
    """

    first_seconds: float | None
    first_bursts: int
    lengths: dict[int, Length]


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def summarise(taken: Sequence[Taken], wanted: int) -> Length:
    """Summarise bursts that were asked for so many accesses."""
    bursts = [each.burst for each in taken]
    telling = [each for each in taken if each.burst.accesses >= FEWEST_ACCESSES]
    full = [burst.accesses >= FULL_SHARE * wanted for burst in bursts]
    return Length(
        bursts=len(bursts),
        full_share=statistics.mean(full) if full else None,
        accesses=median(burst.accesses for burst in bursts),
        accesses_per_second=median(
            each.burst.accesses / each.run_seconds for each in telling if each.run_seconds > 0
        ),
        hold_seconds=median(burst.cost.stop_seconds for burst in bursts),
        longest_hold_seconds=max((b.cost.longest_stop_seconds for b in bursts), default=None),
        pages_predicted=median(burst.pages_predicted for burst in bursts),
        pages_missed=median(burst.pages_missed for burst in bursts),
        own_seconds=median(each.own_cpu_seconds for each in taken),
        own_seconds_per_access=median(e.own_cpu_seconds / e.burst.accesses for e in telling),
        counting_seconds_per_access=median(
            each.counting_seconds / each.burst.accesses for each in telling
        ),
        ends=dict(Counter(f"{burst.end} {burst.end_detail}".rstrip() for burst in bursts)),
    )


class Bench:
    """Takes bursts of one running program, as a session does.

    Args:
        pid: the program.
        max_stop_seconds: how long a burst may hold it.
        beyond_seconds: for how long it goes on when that is over.
    """

    def __init__(self, pid: int, max_stop_seconds: float, beyond_seconds: float) -> None:
        self._pid = pid
        self._beyond_seconds = beyond_seconds
        self._max_stop_seconds = max_stop_seconds
        self._counter = _core.ReuseCounter()
        self._source = ReplicaSource(pid)

    def close(self) -> None:
        """Leave the program."""
        self._source.close()

    def take(self, accesses: int) -> Taken | None:
        """Take a burst of its busiest thread; None if there was none just now."""
        tids = busiest_threads(self._pid, LOOK_SECONDS)
        if not tids:
            return None
        self._counter.begin()
        request = BurstRequest(
            tids[0],
            accesses,
            max_stop_seconds=self._max_stop_seconds,
            beyond_seconds=self._beyond_seconds,
        )
        ran, worked = self._source.costs()["run_seconds"], time.thread_time()
        try:
            burst = self._source.count_lines(request, LINE_BYTES, self._counter)
        except CaptureError:
            return None
        ReuseHistogram.from_counter(self._counter)
        return Taken(
            burst,
            self._source.costs()["run_seconds"] - ran,
            time.thread_time() - worked,
        )

    def until(
        self, is_enough: Callable[[list[Taken]], bool], accesses: int, seconds: float
    ) -> list[Taken]:
        """Take bursts until there are enough or the time is up."""
        found: list[Taken] = []
        give_up = time.monotonic() + seconds
        while not is_enough(found) and time.monotonic() < give_up:
            if (taken := self.take(accesses)) is not None:
                found.append(taken)
        return found


def measure(
    workload: Workload, bursts: int, max_stop_seconds: float, beyond_seconds: float
) -> Speed:
    """Measure one program."""
    with running(workload) as pid:
        started = time.monotonic()
        with closing(Bench(pid, max_stop_seconds, beyond_seconds)) as bench:
            first = bench.until(_has_one, LENGTHS[1], FIRST_SECONDS)
            first_seconds = time.monotonic() - started if _has_one(first) else None
            bench.until(lambda found: len(found) >= WARM_UP, LENGTHS[1], LENGTH_SECONDS)
            lengths = {
                accesses: summarise(
                    bench.until(lambda found: len(found) >= bursts, accesses, LENGTH_SECONDS),
                    accesses,
                )
                for accesses in LENGTHS
            }
    return Speed(first_seconds, len(first), lengths)


def _has_one(found: Sequence[Taken]) -> bool:
    return any(each.burst.accesses >= LENGTHS[0] for each in found)


# Heading, attribute, factor, digits: one column each.
COLUMNS = (
    ("bursts", "bursts", 1.0, 0),
    ("full %", "full_share", 100.0, 0),
    ("got k", "accesses", 1e-3, 0),
    ("M/s", "accesses_per_second", 1e-6, 0),
    ("hold ms", "hold_seconds", 1e3, 2),
    ("worst", "longest_hold_seconds", 1e3, 2),
    ("predicted", "pages_predicted", 1.0, 0),
    ("missed", "pages_missed", 1.0, 0),
    ("own ms", "own_seconds", 1e3, 2),
    ("ns", "own_seconds_per_access", 1e9, 1),
    ("count", "counting_seconds_per_access", 1e9, 1),
)


def heading() -> str:
    """The head of the table."""
    return f"{'program':12} {'first':>9} {'asked k':>7} " + " ".join(
        f"{text:>{max(len(text), 6)}}" for text, *_ in COLUMNS
    )


def rows(name: str, speed: Speed) -> list[str]:
    """The lines of one program."""
    first = "none" if speed.first_seconds is None else f"{speed.first_seconds:.2f}s"
    start = f"{name:12} {f'{first} {speed.first_bursts:2d}':>9}"
    lines = []
    for accesses, length in speed.lengths.items():
        cells = []
        for text, attribute, factor, digits in COLUMNS:
            value = getattr(length, attribute)
            cell = "-" if value is None else f"{value * factor:.{digits}f}"
            cells.append(f"{cell:>{max(len(text), 6)}}")
        ends = sorted(length.ends.items(), key=lambda end: -end[1])[:2]
        told = ", ".join(f"{end} {count}" for end, count in ends)
        lines.append(f"{start:22} {accesses / 1e3:7.0f} {' '.join(cells)}  {told}")
        start = ""
    return lines


def missed_goals(results: dict[str, Speed], max_stop_seconds: float) -> list[str]:
    """What falls short, for people; what is unknown is not judged, but no burst is a miss."""
    missed = []
    longest = [speed.lengths[LENGTHS[-1]] for speed in results.values()]
    rate = median(length.accesses_per_second for length in longest)
    if rate is None or rate < GOAL_ACCESSES_PER_SECOND:
        goal = GOAL_ACCESSES_PER_SECOND / 1e6
        missed.append(f"{(rate or 0) / 1e6:.1f} M accesses/s < {goal:.0f}")
    counting = median(length.counting_seconds_per_access for length in longest)
    if counting is not None and counting > GOAL_COUNTING_SECONDS:
        missed.append(f"counting {counting * 1e9:.1f} ns > {GOAL_COUNTING_SECONDS * 1e9:.0f}")
    limit = max_stop_seconds + GOAL_HOLD_EXCESS_SECONDS
    for name, speed in results.items():
        missed += [
            f"{name}: no burst of {n:,}" for n, each in speed.lengths.items() if not each.bursts
        ]
        hold = max((each.longest_hold_seconds or 0.0 for each in speed.lengths.values()), default=0)
        if hold > limit:
            missed.append(f"{name} held for {hold * 1e3:.1f} ms > {limit * 1e3:.1f}")
    return missed


def measure_all(
    workloads: Sequence[Workload], bursts: int, max_stop_seconds: float, beyond_seconds: float
) -> tuple[dict[str, Speed], list[str]]:
    """Measure and print one after the other; returns also what failed, and why."""
    results, problems = {}, []
    print(heading())
    for workload in workloads:
        problem = workload.lacks()
        try:
            if not problem:
                results[workload.name] = measure(workload, bursts, max_stop_seconds, beyond_seconds)
        except (PreparationError, WorkloadError, CaptureError) as error:
            problem = str(error)
        if problem:
            problems.append(f"{workload.name}: {problem}")
            print(f"{workload.name:12} {problem}", flush=True)
        else:
            print(*rows(workload.name, results[workload.name]), sep="\n", flush=True)
    return results, problems


def main() -> int:
    """Measure all programs and judge them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add_options(parser, "fewer bursts")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME", help="these only")
    parser.add_argument(
        "--max-stop", type=float, default=0.005, metavar="SECONDS", help="hold of a burst"
    )
    parser.add_argument(
        "--beyond",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for which a burst goes on then",
    )
    args = parser.parse_args()
    try:
        workloads = find(args.programs)
    except KeyError as error:
        parser.error(f"no program {error}; see benchmarks/list_programs.py")
    bursts = QUICK_BURSTS if args.quick else BURSTS
    results, problems = measure_all(workloads, bursts, args.max_stop, args.beyond)
    return finish(args.json, results, problems + missed_goals(results, args.max_stop))


if __name__ == "__main__":
    sys.exit(main())
