"""Accuracy against overhead over schedules and budgets (Sembrant et al. 2012, Fig. 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.experiments.accuracy import figures, over_programs
from evaluation.live import SWEEP
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct

KINDS = {"phase-guided": "C0-o", "periodic": "C1--s", "bursts": "C2^"}


class Tradeoff:
    """Rounds of runs alone, with each schedule at each budget and with other bursts."""

    name = "tradeoff"
    key = ("program", "repeat")
    columns = (
        "setting",
        "whole_run_error",
        "cdf_error",
        "slowdown",
        "spent",
        "bursts",
        "extra_cpu",
    )

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds(bench.scale.sweep_repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Run one round and judge it."""
        runs = bench.runs.round("sweep", case[0], int(case[1]))
        reference = bench.reference(case[0])
        return [
            {key: value for key, value in judged.items() if key in self.columns}
            for judged in (figures(runs, setting.name, reference) for setting in SWEEP)
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Means over programs: a point a setting."""
        if not rows:
            return ()
        with page.figure("points", "accuracy against overhead", 1, 2) as axes:
            for at, column, label in (
                (axes[0, 0], "slowdown", "slowdown of the program, %"),
                (axes[0, 1], "spent", "cost that memsampd itself accounts for, %"),
            ):
                for kind, style in KINDS.items():
                    names = [each.name for each in SWEEP if each.name.startswith(kind)]
                    costs = [over_programs(rows, column, name).value for name in names]
                    errors = [over_programs(rows, "cdf_error", name).value for name in names]
                    at.plot(costs, errors, style, ms=4, label=kind)
                    for name, cost, error in zip(names, costs, errors, strict=True):
                        at.annotate(name.removeprefix(kind).strip(", "), (cost, error), fontsize=6)
                at.set_xlabel(label)
                at.set_ylim(bottom=0)
            axes[0, 0].set_ylabel("CDF error, %")
            axes[0, 0].legend(fontsize=7)
        settings = distinct(rows, "setting")
        page.table(
            [
                "schedule and budget %",
                "whole run %",
                "CDF %",
                "slowdown %",
                "accounted %",
                "bursts",
            ],
            [
                [
                    setting,
                    *(
                        cell(rows, column, setting=setting)
                        for column in (
                            "whole_run_error",
                            "cdf_error",
                            "slowdown",
                            "spent",
                            "bursts",
                        )
                    ),
                ]
                for setting in settings
            ],
        )
        return ()
