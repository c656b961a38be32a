"""Distances longer than bursts, measured by watchpoints: against exact ones.

usage: python benchmarks/long_distances.py [--quick] [--programs NAME...] [--rounds N]
                                           [--keep FOLDER] [--judge FOLDER] [--json FILE]
                                           [-- MEMSAMPD-RUN-OPTIONS...]

First loops whose lines return after 1e3 to 1e9 accesses (``programs/sources/known_distance.c``):
words of some lines are watched, and the pauses between hits, in CPU time, are made accesses by what
the program itself counts.

Then programs with exact references (``benchmarks/reference/data``) run under ``memsampd run``. Each
recording is read twice, with what watchpoints told and without it, and compared with the exact
miss ratio of the whole run at 4 to 64 MiB: error, width of the bounds, how much of that width are
accesses of code that no burst has seen (0 to 100 %, whatever watchpoints tell of other code), and
whether bounds hold it. A folder of recordings is judged without running anything (``--judge``).

Exit status 1 if a distance from 1e5 on is off by more than 25 %, if watches make the mean error
larger, or if bounds with them hold less than 95 % of the exact figures.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import EstimatorEvent, WatchRecord
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording, read_recording
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.perf.watchpoints import POINTS, WatchOrder, Watchpoints
from memsampd.sampler.process.cputime import process_cpu_ns
from programs.preparing import compiled
from reference import store
from reference.judging import bounds_hold
from reference.programs import BUILD, find
from reference.running import run_recorded
from reference.windows import LRU_SIZES_BYTES
from verdict import add_options, finish

SIZES_BYTES = tuple(size for size in LRU_SIZES_BYTES if size >= 4 << 20)
PROGRAMS = ("sorting", "fft", "hashjoin", "graph", "pagerank", "solver", "zstd", "sqlite3")
QUICK_PROGRAMS = ("sorting", "graph", "solver")


LOOPS = (  # lines, near accesses between any two
    (1_000, 0),
    (10_000, 0),
    (100_000, 0),
    (1_000_000, 0),
    (1_000_000, 9),
    (1_000_000, 99),
    (1_000_000, 999),
)
LINES_WATCHED = 12
RATE_SECONDS = 2.0  # of the loop, for its rate
PATIENCE_SECONDS = 20.0
LINE_BYTES = 64
# Goals.
FROM_DISTANCE, DISTANCE_ERROR = 1e5, 25.0
HELD_GOAL = 95.0


@dataclass(frozen=True, slots=True)
class Distance:
    """One loop: medians over pauses, in accesses; the error in percent."""

    exact: int
    measured: float
    error: float
    pauses: int
    seconds: float
    hits: int


@dataclass(frozen=True, slots=True)
class Judged:
    """One way to read a recording; means over sizes, in percent."""

    error: float
    band: float
    unseen: float  # of the band: code that no burst has seen
    held: float


@dataclass(frozen=True, slots=True)
class Score:
    """One run of a program."""

    program: str
    without: Judged
    with_watches: Judged
    watches: int
    returned: int
    hit_share: float
    estimate: list[float]
    low: list[float]
    high: list[float]
    exact: list[float]


def build(folder: Path) -> Path:
    """Compile the loop."""
    return compiled(folder, "known_distance.c", "known_distance", ("cc", "-O2"))


@contextmanager
def looping(program: Path, lines: int, near: int) -> Iterator[tuple[int, int, Path]]:
    """Run the loop: its pid, the address of its lines, and where it tells its accesses."""
    told = program.with_name(f"told-{lines}-{near}")
    command = [str(program), str(lines), str(near), str(told)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline()), told
    finally:
        process.kill()
        process.communicate()


def progress(pid: int, told: Path) -> tuple[int, float]:
    """Accesses and CPU seconds so far; the accesses are a million short at most."""
    return int.from_bytes(told.read_bytes()[:8], "little"), process_cpu_ns(pid) * 1e-9


def measure_distance(program: Path, lines: int, near: int, rng: random.Random) -> Distance:
    """Watch some lines of a loop."""
    exact = lines * (near + 1) - 1
    with (
        looping(program, lines, near) as (pid, base, told),
        closing(Watchpoints(PATIENCE_SECONDS)) as points,
    ):
        time.sleep(0.5)
        began, cpu_began = progress(pid, told)
        time.sleep(RATE_SECONDS)
        pauses: list[float] = []
        hits = 0
        wanted = rng.sample(range(lines), LINES_WATCHED)
        while wanted or points.free < POINTS:
            while wanted and points.free:
                points.start(WatchOrder((base + LINE_BYTES * wanted.pop(),), pid, 0.0))
            time.sleep(0.01)
            for watched in points.poll():
                hits += len(watched.hit_words)
                pauses += np.diff(watched.cpu_seconds)[1:-1].tolist()
        ended, cpu_ended = progress(pid, told)
    rate = (ended - began) / (cpu_ended - cpu_began - hits * HIT_SECONDS)
    seconds = statistics.median(pauses)
    measured = rate * seconds
    return Distance(exact, measured, 100 * (measured / exact - 1), len(pauses), seconds, hits)


def exact_ratios(name: str) -> NDArray[np.float64]:
    """Miss ratios of the whole run at ``SIZES_BYTES``."""
    reference = store.load(store.path_of(name))
    columns = [LRU_SIZES_BYTES.index(size) for size in SIZES_BYTES]
    return np.asarray(reference.lru[:, columns].sum(axis=0) / reference.total_accesses)


def judge(recording: Recording, exact: NDArray[np.float64]) -> tuple[Judged, NDArray[np.float64]]:
    """Compare; and the estimate with its bounds, shape (3, s)."""
    analysis = analyse(recording, "lru", np.array(SIZES_BYTES, np.int64))
    curve = analysis.overall
    if curve is None:
        raise SystemExit("a run without a burst: try again")
    error = 100 * float(np.mean(np.abs(curve.miss_ratio - exact)))
    band = 100 * float(np.mean(curve.high - curve.low))
    held = 100 * float(np.mean(bounds_hold(curve.low, curve.high, exact)))
    weight = np.array([each.weight for each in analysis.windows])
    is_unseen = np.array([not each.is_known for each in analysis.windows])
    unseen = 100 * float(weight[is_unseen].sum() / weight.sum())
    return Judged(error, band, unseen, held), np.array([curve.miss_ratio, curve.low, curve.high])


def without_watches(recording: Recording) -> Recording:
    """The same, as if there were no watchpoints."""
    kept: list[EstimatorEvent] = [
        event for event in recording.events if not isinstance(event, WatchRecord)
    ]
    return replace(recording, events=kept)


def measure(name: str, folder: Path, options: Sequence[str]) -> Score:
    """Run a program once."""
    (program,) = find([name])
    path = folder / f"{name}.mem"
    run_recorded(program.command(BUILD / "programs"), path, BUILD, ("--force", *options))
    return score(name, read_recording(path))


def score(name: str, recording: Recording) -> Score:
    """Judge a recording."""
    exact = exact_ratios(name)
    watches = [event for event in recording.events if isinstance(event, WatchRecord)]
    judged, told = judge(recording, exact)
    cpu_seconds = sum(getattr(event, "cpu_seconds", 0.0) for event in recording.windows)
    return Score(
        program=name,
        without=judge(without_watches(recording), exact)[0],
        with_watches=judged,
        watches=len(watches),
        returned=sum(each.end == "returned" for each in watches),
        hit_share=sum(each.hit_seconds for each in watches) / cpu_seconds,
        estimate=told[0].tolist(),
        low=told[1].tolist(),
        high=told[2].tolist(),
        exact=exact.tolist(),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure distances longer than bursts.")
    add_options(parser, "three programs")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the recordings there")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge recordings from there")
    parser.add_argument("options", nargs="*", metavar="OPTION")
    args = parser.parse_args()
    names = args.programs or (QUICK_PROGRAMS if args.quick else PROGRAMS)
    scores = []
    with tempfile.TemporaryDirectory(prefix="memsampd-long-") as temporary:
        distances = [] if args.programs or args.judge else measure_loops(Path(temporary))
        for name in [each for each in names for _ in range(args.rounds)]:
            if args.judge:
                each = score(name, read_recording(args.judge / f"{name}.mem"))
            else:
                each = measure(name, args.keep or Path(temporary), args.options)
            scores.append(each)
            print(line(each), flush=True)
    told = {"loops": distances, "programs": scores}
    return finish(args.json, told, missed_goals(distances, scores))


def measure_loops(folder: Path) -> list[Distance]:
    """Measure all loops, and print a line for each."""
    program, found = build(folder), []
    for lines, near in LOOPS:
        each = measure_distance(program, lines, near, random.Random(lines + near))
        found.append(each)
        print(
            f"distance {each.exact:13,}  measured {each.measured:13,.0f}  {each.error:+6.1f} %  "
            f"{each.seconds * 1e3:8.2f} ms, {each.pauses} pauses, {each.hits} hits",
            flush=True,
        )
    return found


def missed_goals(distances: Sequence[Distance], scores: Sequence[Score]) -> list[str]:
    """Print means; returns the goals that are missed."""
    far = [abs(each.error) for each in distances if each.exact >= FROM_DISTANCE - 1]
    before, after = (
        [
            statistics.mean(getattr(getattr(each, way), figure) for each in scores)
            for figure in ("error", "band", "unseen", "held")
        ]
        for way in ("without", "with_watches")
    )
    print(
        f"mean       error {before[0]:5.2f} -> {after[0]:5.2f}  band {before[1]:5.1f} -> "
        f"{after[1]:5.1f}  (unseen {before[2]:.1f})  held {before[3]:3.0f} -> {after[3]:3.0f}"
    )
    goals = {
        "a distance": max(far, default=0.0) <= DISTANCE_ERROR,
        "error with watches": after[0] <= before[0],
        "bounds that hold": after[3] >= HELD_GOAL,
    }
    return [goal for goal, is_met in goals.items() if not is_met]


def line(score: Score) -> str:
    """A row of the table."""
    before, after = score.without, score.with_watches
    figures = " ".join(
        f"{100 * low:.1f}<{100 * middle:.1f}({100 * exact:.1f})<{100 * high:.1f}"
        for low, middle, exact, high in zip(
            score.low, score.estimate, score.exact, score.high, strict=True
        )
    )
    return (
        f"{score.program:10} error {before.error:5.2f} -> {after.error:5.2f}  "
        f"band {before.band:5.1f} -> {after.band:5.1f} (unseen {before.unseen:4.1f})  "
        f"held {before.held:3.0f} -> {after.held:3.0f}  "
        f"{score.watches} watches, {score.returned} returned, "
        f"{100 * score.hit_share:.2f} % of its CPU time  {figures}"
    )


if __name__ == "__main__":
    sys.exit(main())
