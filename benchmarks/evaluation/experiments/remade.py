"""One reference, chosen by rotation, is made again and compared with the one that is kept."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.results import Case, Row
from make_references import make
from reference import store
from reference.judging import exact_overall
from reference.programs import find

LARGEST_DIFFERENCE = 0.05


class RemadeReference:
    """Kept references are what they claim to be: a run made anew has their miss ratios."""

    name = "remade"
    key = ("program",)
    columns = ("date", "accesses_kept", "accesses_made", "largest_difference")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """The program of the day."""
        names = bench.live_names()
        today = datetime.date.today().toordinal()
        count = min(bench.scale.remade_references, len(names))
        return [(names[(today + turn) % len(names)],) for turn in range(count)]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Make it again, beside the kept one."""
        (program,) = find([case[0]])
        kept = bench.reference(case[0])
        with TemporaryDirectory(prefix="memsampd-evaluation-") as folder:
            path = Path(folder) / store.path_of(case[0]).name
            make(program, path)
            made = store.load(path)
        difference = np.abs(exact_overall(made, "lru") - exact_overall(kept, "lru"))
        return [
            {
                "date": datetime.date.today().isoformat(),
                "accesses_kept": kept.total_accesses,
                "accesses_made": made.total_accesses,
                "largest_difference": 100 * float(difference.max()),
            }
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        page.table(
            [
                "program",
                "date",
                "accesses kept",
                "made again",
                "largest difference of miss ratio %",
            ],
            [
                [
                    row["program"],
                    row["date"],
                    row["accesses_kept"],
                    row["accesses_made"],
                    f"{float(row['largest_difference']):.4f}",
                ]
                for row in rows
            ],
        )
        return [
            Goal(
                f"{row['program']}: miss ratio of the reference made again, difference in %",
                float(row["largest_difference"]),
                LARGEST_DIFFERENCE,
            )
            for row in rows
        ]
