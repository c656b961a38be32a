"""Seconds from attach until the current phase's curve is within 1 % of its final one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.offline import SIZES_BYTES
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct, numbers
from evaluation.statistics import bootstrap
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
from memsampd.models.running import RunningCurve
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction

NEAR = 0.01


class TimeToAnswer:
    """From the recordings: a burst counts from the moment at which it was analysed."""

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
    final = analyse(recording, "lru", SIZES_BYTES)
    phase_of = {window.record.index: window.phase for window in final.windows}
    histories = {phase: _history(recording, phase_of, phase) for phase in {*phase_of.values()}}
    first: float | None = None
    near: float | None = None
    near_windows = 0
    for window in final.windows:
        moment = window.record.end_seconds
        past = [curve for ready, curve in histories[window.phase] if ready <= moment]
        if not past:
            continue
        first = moment if first is None else first
        last = histories[window.phase][-1][1]
        if float(np.mean(np.abs(past[-1].miss_ratio - last.miss_ratio))) <= NEAR:
            near = moment if near is None else near
            near_windows += 1
    return {
        "first_curve_seconds": first,
        "near_seconds": near,
        "near_share": near_windows / len(final.windows),
    }


def _history(
    recording: Recording, phase_of: Mapping[int, int], phase: int
) -> list[tuple[float, MissRatioCurve]]:
    """Return a phase's curve after each of its bursts, with the moment at which it was known."""
    running, pooled = RunningCurve(), ReuseHistogram.empty()
    history: list[tuple[float, MissRatioCurve]] = []
    windows = iter(sorted(index for index, owner in phase_of.items() if owner == phase))
    at = -1
    for burst in recording.bursts:
        if phase_of.get(burst.window) != phase or not burst.accesses:
            continue
        while at < burst.window:
            running.add_window()
            at = next(windows)
        pooled += burst.histogram()
        survival = SurvivalFunction.from_histogram(burst.histogram()).continued_by(
            SurvivalFunction.from_histogram(pooled)
        )
        running.add_burst(StatStack().curve(survival, SIZES_BYTES))
        curve = running.curve
        assert curve is not None
        assert burst.analysed_seconds is not None
        history.append((burst.analysed_seconds, curve))
    return history
