"""Distances longer than bursts, measured by watchpoints: against exact ones.

usage: python benchmarks/long_distances.py [--quick] [--only PART...] [--programs NAME...]
                                           [--rounds N] [--keep FOLDER] [--judge FOLDER]
                                           [--markdown FILE] [--json FILE]
                                           [-- MEMSAMPD-RUN-OPTIONS...]

- ``loops``: their lines return after 1e3 to 1e9 accesses (``programs/sources/known_distance.c``):
  words of some lines are watched, and the pauses between hits, in CPU time, are made accesses by
  what the program itself counts.
- ``programs``: programs with exact references (``benchmarks/reference/data``) run under
  ``memsampd run``. Each recording is read twice, with what watchpoints told and without it, and
  compared with the whole run: the survival function of reuse distances at some 1e4 to 1e8
  accesses, and miss ratios of LRU caches of 4 to 64 MiB.

A folder of recordings is judged without running anything (``--judge``; ``--keep`` makes one).

Exit status 1 if a distance from 1e5 on is off by more than 25 %, if no line of a loop was hit
twice, if watches make the mean error of
a survival function or of miss ratios larger, if bounds with them hold less than 95 % of the exact
figures, or are not narrower with them at 1e8 accesses, if there is no recording of a program, or
no watch of it whose line returned.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluation.page import Page
from memsampd.estimate.events import WatchRecord
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording, read_recording
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.perf.watch import WatchOrder
from memsampd.sampler.perf.watchpoints import POINTS, Watchpoints
from memsampd.sampler.process.cputime import process_cpu_ns
from programs.preparing import compiled
from reference import store
from reference.documents import made_text, replace_section
from reference.programs import BUILD, find
from reference.running import run_recorded
from reference.whole_runs import (
    LARGE_BYTES,
    LARGE_PROGRAMS,
    Compared,
    compare_distances,
    compare_sizes,
    nearest_edges,
    without_watches,
)
from reference.windows import LRU_SIZES_BYTES
from verdict import add_options, finish

SIZES_BYTES = tuple(size for size in LRU_SIZES_BYTES if size >= LARGE_BYTES)
DISTANCES = nearest_edges((1e4, 1e5, 1e6, 1e7, 1e8))
QUICK_PROGRAMS = ("sorting", "graph", "solver")
PARTS = ("loops", "programs")
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
    """One loop: medians over pauses, in accesses, the error in percent; None if there were none."""

    exact: int
    measured: float | None
    error: float | None
    pauses: int
    seconds: float | None
    hits: int

    @classmethod
    def of(cls, exact: int, rate: float, pauses_seconds: Sequence[float], hits: int) -> Distance:
        """Take the median of pauses between hits, at so many accesses a CPU second."""
        if not pauses_seconds:
            return cls(exact, None, None, 0, None, hits)
        seconds = statistics.median(pauses_seconds)
        error = 100 * (rate * seconds / exact - 1)
        return cls(exact, rate * seconds, error, len(pauses_seconds), seconds, hits)


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all accesses, exact and as told without watches and with them.

    Attributes:
        at: a distance in accesses, or a size in bytes.
        exact: 0..1.
        without: low bound, estimate, high bound.
        with_watches: the same.
        without_holds: whether these bounds hold the exact share.
        with_holds: the same with watches.
    """

    at: int
    exact: float
    without: tuple[float, float, float]
    with_watches: tuple[float, float, float]
    without_holds: bool
    with_holds: bool


@dataclass(frozen=True, slots=True)
class Score:
    """One run of a program.

    Attributes:
        program: its name.
        own_cpu: what memsampd could use of CPU time, as a share of the program's.
        distances: of the accesses, how many are not repeated within so many others.
        sizes: miss ratios.
        unseen: share of the accesses in code that no burst has seen, 0..1.
        watches: how many there were.
        returned: of these, whose line returned.
        hit_share: CPU time that hits took, of the program's.
    """

    program: str
    own_cpu: float
    distances: list[Share]
    sizes: list[Share]
    unseen: float
    watches: int
    returned: int
    hit_share: float


@dataclass(frozen=True, slots=True)
class Means:
    """Over some shares, without watches and with them; in points, how many hold in percent."""

    error: tuple[float, float]
    width: tuple[float, float]
    held: tuple[float, float]

    @classmethod
    def of(cls, shares: Sequence[Share]) -> Means:
        """Take the means."""
        exact = np.array([each.exact for each in shares])
        told = np.array([(each.without, each.with_watches) for each in shares])
        holds = np.array([(each.without_holds, each.with_holds) for each in shares])
        errors = np.abs(told[:, :, 1] - exact[:, None]).mean(axis=0)
        widths = (told[:, :, 2] - told[:, :, 0]).mean(axis=0)
        pairs = [(100 * float(a), 100 * float(b)) for a, b in (errors, widths, holds.mean(axis=0))]
        return cls(*pairs)


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
    return Distance.of(exact, rate, pauses, hits)


def paired(without: Compared, with_watches: Compared) -> list[Share]:
    """Put the same points of both ways to read a recording side by side."""
    told = [
        np.column_stack([way.low, way.estimate, way.high]).tolist()
        for way in (without, with_watches)
    ]
    return [
        Share(at, exact, tuple(before), tuple(after), before_holds, after_holds)
        for at, exact, before, after, before_holds, after_holds in zip(
            without.points.tolist(),
            without.exact.tolist(),
            *told,
            without.holds.tolist(),
            with_watches.holds.tolist(),
            strict=True,
        )
    ]


def measure_all(
    names: Sequence[str], rounds: int, folder: Path, options: Sequence[str]
) -> Iterator[Score]:
    """Run each program so many times; recordings stay in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in find(names):
        command = program.command(BUILD / "programs")
        for number in range(rounds):
            path = folder.resolve() / f"{program.name}-{number}.mem"
            run_recorded(command, path, BUILD, ("--force", *options))
            yield score(store.load(store.path_of(program.name)), read_recording(path))


def judge_all(names: Sequence[str], folder: Path) -> Iterator[Score]:
    """Judge recordings that were kept."""
    for name in names:
        for path in sorted(folder.glob(f"{name}-*.mem")):
            yield score(store.load(store.path_of(name)), read_recording(path))


def score(reference: store.Reference, recording: Recording) -> Score:
    """Judge a recording, read without its watches and with them."""
    watches = [event for event in recording.events if isinstance(event, WatchRecord)]
    cpu_seconds = sum(window.cpu_seconds for window in recording.windows)
    ways = (without_watches(recording), recording)
    return Score(
        program=reference.name,
        own_cpu=recording.header.config["own_cpu_share"],
        distances=paired(*(compare_distances(way, reference, DISTANCES) for way in ways)),
        sizes=paired(*(compare_sizes(way, reference, SIZES_BYTES) for way in ways)),
        unseen=unseen_share(recording),
        watches=len(watches),
        returned=sum(each.end == "returned" for each in watches),
        hit_share=sum(each.hit_seconds for each in watches) / cpu_seconds,
    )


def unseen_share(recording: Recording) -> float:
    """Of the accesses, how many are of windows whose code no burst has seen, 0..1."""
    windows = analyse(recording, "lru", np.array(SIZES_BYTES, np.int64)).windows
    weight = np.array([each.weight for each in windows])
    is_known = np.array([each.is_known for each in windows])
    return float(weight[~is_known].sum() / weight.sum())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure distances longer than bursts.")
    add_options(parser, "three programs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the recordings there")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge recordings from there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the tables there")
    parser.add_argument("options", nargs="*", metavar="OPTION")
    args = parser.parse_args(argv)
    names = args.programs or (QUICK_PROGRAMS if args.quick else LARGE_PROGRAMS)
    distances: list[Distance] = []
    scores: list[Score] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="memsampd-long-") as temporary:
        if "loops" in args.only and not args.judge:
            distances = measure_loops(Path(temporary))
        if "programs" in args.only:
            if args.judge:
                found = judge_all(names, args.judge)
            else:
                folder = args.keep or Path(temporary)
                found = measure_all(names, args.rounds, folder, args.options)
            for each in found:
                scores.append(each)
                print(*lines_of(each), sep="\n", flush=True)
            scored = {each.program for each in scores}
            missing = [f"{name}: no recording" for name in names if name not in scored]
    if args.markdown:
        when = f"Judged {made_text()}" if args.judge else f"Measured {made_text()}"
        write_tables(args.markdown, distances, scores, when)
    told = {"loops": distances, "programs": scores}
    return finish(args.json, told, missing + missed_goals(distances, scores))


def measure_loops(folder: Path) -> list[Distance]:
    """Measure all loops, and print a line for each."""
    program, found = build(folder), []
    for lines, near in LOOPS:
        each = measure_distance(program, lines, near, random.Random(lines + near))
        found.append(each)
        print(f"distance {each.exact:13,}  {told_of(each)}, {each.hits} hits", flush=True)
    return found


def told_of(distance: Distance) -> str:
    """What is printed of a loop."""
    if distance.measured is None or distance.error is None or distance.seconds is None:
        return "no pause seen"
    return (
        f"measured {distance.measured:13,.0f}  {distance.error:+6.1f} %  "
        f"{distance.seconds * 1e3:8.2f} ms, {distance.pauses} pauses"
    )


def wrong_with(distance: Distance) -> str:
    """Which goal is missed by a loop; empty if none is."""
    if distance.error is None:
        return "no pause seen"
    is_off = distance.exact >= FROM_DISTANCE - 1 and abs(distance.error) > DISTANCE_ERROR
    return f"{distance.error:+.0f} %" if is_off else ""


def missed_goals(distances: Sequence[Distance], scores: Sequence[Score]) -> list[str]:
    """Print means; returns the goals that are missed."""
    goals = {
        f"distance {each.exact:,}: {wrong_with(each)}": not wrong_with(each) for each in distances
    }
    for name in dict.fromkeys(each.program for each in scores):
        returned = sum(each.returned for each in scores if each.program == name)
        goals[f"{name}: no line that was watched returned"] = returned > 0
    if scores:
        farthest = Means.of([each.distances[-1] for each in scores]).width
        goals["bounds at 1e8 accesses that watches make narrower"] = farthest[1] < farthest[0]
    parts = {
        "survival functions": [share for each in scores for share in each.distances],
        "miss ratios": [share for each in scores for share in each.sizes],
    }
    for name, shares in parts.items():
        if not shares:
            continue
        means = Means.of(shares)
        print(f"mean of {name}: {_means_line(means)}")
        goals[f"error of {name} with watches"] = means.error[1] <= means.error[0]
        goals[f"bounds of {name} that hold"] = means.held[1] >= HELD_GOAL
    return [goal for goal, is_met in goals.items() if not is_met]


def _means_line(means: Means) -> str:
    return (
        "error {:.2f} -> {:.2f}".format(*means.error)
        + "  width {:.1f} -> {:.1f}".format(*means.width)
        + "  held {:.0f} -> {:.0f} %".format(*means.held)
    )


def lines_of(score: Score) -> list[str]:
    """What is printed of a program."""
    return [
        f"{score.program:10} sizes: {_means_line(Means.of(score.sizes))}  "
        f"unseen {100 * score.unseen:.1f} %  {score.watches} watches, {score.returned} returned, "
        f"{100 * score.hit_share:.2f} % of its CPU time",
        *(
            f"{'':10} {share.at:11,}  exact {100 * share.exact:6.2f}  "
            f"without {_bounded(share.without)}  with {_bounded(share.with_watches)}"
            for share in score.distances
        ),
    ]


def _bounded(told: tuple[float, float, float]) -> str:
    low, middle, high = (100 * each for each in told)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


# -- tables --------------------------------------------------------------------------------------


def write_tables(
    path: Path, distances: Sequence[Distance], scores: Sequence[Score], when: str
) -> None:
    """Replace the sections of a document of which there are figures; each tells when that was."""
    pages: dict[str, Page] = {}
    if distances:
        pages["loops"] = loops_page(distances, when)
    if scores:
        pages |= {"distances": distances_page(scores, when), "sizes": sizes_page(scores, when)}
    for name, page in pages.items():
        replace_section(path, name, page.markdown())


def _dated_page(when: str, scores: Sequence[Score] = ()) -> Page:
    page = Page()
    settings = sorted({f"--own-cpu {each.own_cpu:g}" for each in scores})
    with_them = f", with {', '.join(settings)}" if settings else ""
    page.text(f"{when}{with_them}.")
    return page


def loops_page(distances: Sequence[Distance], when: str) -> Page:
    """Write the table of loops."""
    page = _dated_page(when)
    page.table(
        ("exact distance", "measured", "error, %", "pauses", "hits"),
        [
            (
                f"{each.exact:,}",
                "" if each.measured is None else f"{each.measured:,.0f}",
                "" if each.error is None else f"{each.error:+.1f}",
                str(each.pauses),
                str(each.hits),
            )
            for each in distances
        ],
    )
    return page


def distances_page(scores: Sequence[Score], when: str) -> Page:
    """Write the table of survival functions: means by distance."""
    page = _dated_page(when, scores)
    means = [
        (f"{distance:,}", *_paired_cells([each.distances[at] for each in scores]))
        for at, distance in enumerate(DISTANCES.tolist())
    ]
    everything = _paired_cells([share for each in scores for share in each.distances])
    page.table(("distance", *_PAIRED), [*means, ("**mean**", *everything)])
    return page


def sizes_page(scores: Sequence[Score], when: str) -> Page:
    """Write the table of miss ratios."""
    page = _dated_page(when, scores)
    rows = [
        (
            each.program,
            *_paired_cells(each.sizes),
            f"{100 * each.unseen:.1f}",
            str(each.watches),
            f"{100 * each.hit_share:.2f}",
        )
        for each in scores
    ]
    everything = _paired_cells([share for each in scores for share in each.sizes])
    page.table(
        ("program", *_PAIRED, "unseen code, %", "watches", "hits, % of CPU time"),
        [*rows, ("**mean**", *everything, "", "", "")],
    )
    return page


_PAIRED = (
    *("error without watches", "with them", "width without", "with them"),
    *("held without, %", "with them, %"),
)


def _paired_cells(shares: Sequence[Share]) -> list[str]:
    means = Means.of(shares)
    return [
        *(f"{each:.2f}" for each in means.error),
        *(f"{each:.1f}" for each in means.width),
        *(f"{each:.0f}" for each in means.held),
    ]


if __name__ == "__main__":
    sys.exit(main())
