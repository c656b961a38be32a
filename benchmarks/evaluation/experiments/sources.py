"""Accesses by each source, judged at sizes up to 64 MiB: error, bounds, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct, numbers, unknown_rows
from memsampd.estimate.events import WatchRecord
from memsampd.exporters.recording import Recording
from reference.store import Reference
from reference.whole_runs import LARGE_BYTES, LARGE_PROGRAMS, UntoldError, compare_sizes

BURSTS, BOTH, WALKS = "bursts", "bursts + watchpoints", "walks + watchpoints"
SOURCES = {
    BURSTS: ("--accesses", "bursts", "--no-watchpoints"),
    BOTH: ("--accesses", "bursts"),
    WALKS: ("--accesses", "watchpoints"),
}
OWN_CPU = ("0.05", "0.2")
"""What memsampd may use of CPU time, as a share of the target's: by default, and four times that.

With the default, runs this short have hardly any watches: bursts use it up.
"""
BOUNDS_BROKEN_GOAL = 5.0
WIDTH_RATIO_GOAL = 0.5
WALKS_SMALL_ERROR_GOAL, WALKS_LARGE_ERROR_GOAL = 5.0, 10.0


class Sources:
    """Programs that touch 25 to 183 MB, run with each source, by default and with more CPU time."""

    name = "sources"
    key = ("program", "repeat", "source", "own_cpu")
    columns = (
        *("small_error", "large_error", "small_width", "large_width"),
        *("small_held", "large_held", "held"),
        *("hold_share", "hit_share", "own_seconds", "own_share", "bursts", "watches"),
    )

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program, round, source and share of own CPU time."""
        rounds = [case for case in bench.rounds() if case[0] in LARGE_PROGRAMS]
        return [
            (*case, source, own_cpu) for case in rounds for own_cpu in OWN_CPU for source in SOURCES
        ]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Run a program with a source and judge the recording."""
        program, repeat, source, own_cpu = case
        kind = f"sources/{source.replace(' + ', '-')}-{own_cpu}"
        options = (*SOURCES[source], "--own-cpu", own_cpu)
        recording = bench.runs.recorded(program, int(repeat), kind, options)
        return [figures(recording, bench.reference(program))]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table of means, and one of all programs."""
        if not rows:
            return ()
        ways = [(source, own_cpu) for own_cpu in OWN_CPU for source in SOURCES]
        page.table(
            ("mean of programs", "--own-cpu", *_SHOWN.values()),
            [(*way, *_cells(rows, source=way[0], own_cpu=way[1])) for way in ways],
        )
        page.table(
            ("program", "source", "--own-cpu", *_SHOWN.values()),
            [
                (program, *way, *_cells(rows, program=program, source=way[0], own_cpu=way[1]))
                for program in distinct(rows, "program")
                for way in ways
            ],
        )
        return [goal for own_cpu in OWN_CPU for goal in goals(rows, own_cpu)]


_SHOWN = {  # column, digits: heading
    ("small_error", 2): "error to 2 MiB",
    ("large_error", 2): "4 to 64 MiB",
    ("small_width", 1): "width to 2 MiB",
    ("large_width", 1): "4 to 64 MiB",
    ("held", 1): "held %",
    ("large_held", 1): "4 to 64 MiB",
    ("hold_share", 2): "holds %",
    ("hit_share", 2): "hits %",
    ("own_share", 1): "own CPU %",
    ("own_seconds", 2): "own CPU s",
    ("bursts", 0): "bursts or walks",
    ("watches", 0): "watches",
}


def _cells(rows: Sequence[Mapping[str, str]], **where: str) -> list[str]:
    return [cell(rows, column, digits, **where) for column, digits in _SHOWN]


def figures(recording: Recording, reference: Reference) -> Row:
    """Judge one run.

    Args:
        recording: of a session that ended by itself.
        reference: of the same program.

    Returns:
        The columns of :class:`Sources`: errors and widths in points of the miss ratio, means over
        sizes; sizes whose bounds hold, in percent; holds, hits and memsampd's own CPU time as
        shares of the program's CPU time, in percent, and the latter in seconds. What speaks of
        misses is None if the recording tells nothing.

    Raises:
        ValueError: it has no end.
    """
    if recording.summary is None:
        raise ValueError("the recording has no summary")
    cost = recording.summary.overhead
    share = 100 / cost.target_cpu_seconds
    row: dict[str, str | float | None] = dict.fromkeys(Sources.columns)
    row |= {
        "hold_share": share * cost.stop_seconds,
        "hit_share": share * cost.hit_seconds,
        "own_seconds": cost.own_cpu_seconds,
        "own_share": share * cost.own_cpu_seconds,
        "bursts": len(recording.bursts),
        "watches": sum(isinstance(event, WatchRecord) for event in recording.events),
    }
    try:
        compared = compare_sizes(recording, reference)
    except UntoldError:
        return row
    is_large = compared.points >= LARGE_BYTES
    small, large = compared.at(~is_large), compared.at(is_large)
    return row | {
        "small_error": float(np.mean(small.errors)),
        "large_error": float(np.mean(large.errors)),
        "small_width": float(np.mean(small.widths)),
        "large_width": float(np.mean(large.widths)),
        "small_held": small.held,
        "large_held": large.held,
        "held": compared.held,
    }


def goals(rows: Sequence[Mapping[str, str]], own_cpu: str) -> list[Goal]:
    """Judge bounds and errors.

    Args:
        rows: of the experiment.
        own_cpu: what memsampd could use of CPU time, one of ``OWN_CPU``.

    Returns:
        Goals whose value is NaN where a source was not measured.
    """

    def mean(column: str, source: str) -> float:
        found = numbers(rows, column, source=source, own_cpu=own_cpu)
        return float(np.mean(found)) if found else float("nan")

    def goal(what: str, value: float, limit: float) -> Goal:
        return Goal(f"--own-cpu {own_cpu}, {what}", value, limit)

    def untold(source: str) -> float:
        mine = [row for row in rows if (row["source"], row["own_cpu"]) == (source, own_cpu)]
        return unknown_rows(mine, "held")

    with_watches, alone = mean("large_width", BOTH), mean("large_width", BURSTS)
    ratio = with_watches / alone if alone > 0 else float("nan")
    return [
        *(goal(f"{each}: rounds of which nothing was told", untold(each), 0) for each in SOURCES),
        *(
            goal(f"{each}: bounds broken, %", 100 - mean("held", each), BOUNDS_BROKEN_GOAL)
            for each in SOURCES
        ),
        goal("width at 4 to 64 MiB, with watchpoints over without", ratio, WIDTH_RATIO_GOAL),
        goal(f"{WALKS}: error to 2 MiB", mean("small_error", WALKS), WALKS_SMALL_ERROR_GOAL),
        goal(f"{WALKS}: error at 4 to 64 MiB", mean("large_error", WALKS), WALKS_LARGE_ERROR_GOAL),
    ]
