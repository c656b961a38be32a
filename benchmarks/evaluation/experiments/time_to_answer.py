"""Seconds from attach until the current phase's curve is within 1 % of its final one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.offline import SIZES_BYTES
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct, numbers
from evaluation.statistics import bootstrap
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import EstimatorEvent, WindowRecord
from memsampd.estimate.records import Estimate
from memsampd.exporters.recording import Recording
from memsampd.models.statstack import StatStack

NEAR = 0.01


class TimeToAnswer:
    """From the recordings: a burst counts from the moment at which it was recorded."""

    name = "time_to_answer"
    key = ("program", "repeat")
    columns = ("first_curve_seconds", "near_seconds", "near_share")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds(bench.scale.repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Look at one recording."""
        run = bench.runs.as_installed(case[0], int(case[1]))
        return [answer_times(run.read())]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()

        def seconds(column: str, program: str) -> str:
            found = numbers(rows, column, program=program)
            return bootstrap(found).text() if found else "never"

        page.table(
            [
                *("program", "first curve of the current phase, s"),
                *("within 1 % of its final one, s", "windows with such a curve, share"),
            ],
            [
                [
                    program,
                    seconds("first_curve_seconds", program),
                    seconds("near_seconds", program),
                    cell(rows, "near_share", program=program),
                ]
                for program in distinct(rows, "program")
            ],
        )
        return ()


def answer_times(recording: Recording) -> Row:
    """Find when the current phase first had a curve, and one that stays near its final one.

    Returns:
        ``first_curve_seconds`` and ``near_seconds`` since the attach, None if that never came, and
        ``near_share``, the share of windows at whose end their phase had a near curve.
    """
    at_end = estimator_of(recording)
    for event in recording.events:
        at_end.add(event)
    final = {each.id: each.curves["lru"] for each in at_end.estimate().phases if each.curves}
    first: float | None = None
    near: float | None = None
    windows = near_windows = 0
    for event, estimate in replayed(recording):
        if not isinstance(event, WindowRecord):
            continue
        windows += 1
        moment = event.end_seconds
        known = {phase.id: phase.curves.get("lru") for phase in estimate.phases}
        curve, last = known.get(event.phase), final.get(at_end.phase_now(event.phase))
        if curve is None or last is None:
            continue
        first = moment if first is None else first
        if float(np.mean(np.abs(curve.miss_ratio - last.miss_ratio))) <= NEAR:
            near = moment if near is None else near
            near_windows += 1
    return {
        "first_curve_seconds": first,
        "near_seconds": near,
        "near_share": near_windows / max(windows, 1),
    }


def estimator_of(recording: Recording) -> Estimator:
    """Return an estimator that has been told nothing, for the machine that was observed."""
    header = recording.header
    return Estimator(SIZES_BYTES, header.line_bytes, (StatStack(),), header.cache_sizes_bytes)


def replayed(recording: Recording) -> Iterator[tuple[EstimatorEvent, Estimate]]:
    """Yield each event with what was known after it: live, too, for it is the same estimator."""
    estimator = estimator_of(recording)
    for event in recording.events:
        estimator.add(event)
        yield event, estimator.estimate()
