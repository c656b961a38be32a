"""Accesses per CPU second by phase: a proxy for CPI, as timed in the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.offline import SIZES_BYTES
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct
from evaluation.statistics import deviation, deviation_within
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording


class AccessRateByPhase:
    """How far the rates of timed bursts differ within phases and in the whole run."""

    name = "access_rate"
    key = ("program", "repeat")
    columns = ("timed_bursts", "rate", "variation", "variation_within", "accesses_estimated")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds(bench.scale.repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Look at one recording."""
        run = bench.runs.as_installed(case[0], int(case[1]))
        return [rates(run.read(), bench.reference(case[0]).total_accesses)]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        page.table(
            [
                *("program", "timed bursts", "M accesses a CPU second", "variation"),
                *("variation within phases", "accesses estimated / exact"),
            ],
            [
                [
                    program,
                    cell(rows, "timed_bursts", 0, program=program),
                    cell(rows, "rate", 0, program=program),
                    *(cell(rows, column, program=program) for column in self.columns[2:]),
                ]
                for program in distinct(rows, "program")
            ],
        )
        return ()


def rates(recording: Recording, exact_accesses: int) -> Row:
    """Summarise the rates of a recording's timed bursts.

    Returns:
        Their number, mean rate in millions, the relative standard deviation of the rates over all
        and about the means of their phases, and the session's accesses by its clock over the exact
        ones.
    """
    analysis = analyse(recording, "lru", SIZES_BYTES)
    phase_of = {window.record.index: window.phase for window in analysis.windows}
    timed = [
        (phase_of[burst.window], burst.timed.accesses_per_cpu_second)
        for burst in recording.bursts
        if burst.timed is not None and burst.window in phase_of
    ]
    known = [window.accesses for window in analysis.windows if window.accesses is not None]
    estimated = sum(known) if len(known) == len(analysis.windows) else None
    if not timed:
        return {
            **dict.fromkeys(("rate", "variation", "variation_within"), None),
            "timed_bursts": 0,
            "accesses_estimated": None,
        }
    phases = np.array([phase for phase, _ in timed])
    values = np.array([[rate] for _, rate in timed])
    weights = np.ones(len(values))
    mean = float(values.mean())
    return {
        "timed_bursts": len(timed),
        "rate": mean / 1e6,
        "variation": float(deviation(values, weights)[0]) / mean,
        "variation_within": float(deviation_within(values, weights, phases)[0]) / mean,
        "accesses_estimated": None if estimated is None else estimated / exact_accesses,
    }
