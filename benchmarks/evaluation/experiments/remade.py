"""One reference, chosen by rotation, is made again and compared with the one that is kept."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.results import Case, Row
from make_references import make
from reference import store
from reference.comparison import TOLERANCE_PERCENT, compare, due
from reference.programs import find


class RemadeReference:
    """Kept references are what they claim to be: a run made anew has their miss ratios."""

    name = "remade"
    key = ("program",)
    columns = ("date", "same", "accesses", "whole_run", "windows")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """The program of the day."""
        programs = [find([name])[0] for name in bench.offline_names()]
        if not programs or not bench.scale.remade_references:
            return []
        return [(due(programs, datetime.date.today()).name,)]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Make it again, beside the kept one."""
        (program,) = find([case[0]])
        kept = bench.reference(case[0])
        with TemporaryDirectory(prefix="memsampd-evaluation-") as folder:
            path = Path(folder) / store.path_of(case[0]).name
            make(program, path)
            difference = compare(kept, store.load(path))
        return [
            {
                "date": datetime.date.today().isoformat(),
                "same": "yes" if difference.same else "no",
                "accesses": 100 * difference.accesses,
                "whole_run": difference.whole_run,
                "windows": difference.windows,
            }
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        page.table(
            ["program", "date", "all counts equal", *("accesses, %", "whole run, %", "windows, %")],
            [
                [
                    *(row[column] for column in ("program", "date", "same")),
                    *(f"{float(row[column]):.4f}" for column in self.columns[2:]),
                ]
                for row in rows
            ],
        )
        return [
            Goal(
                f"{row['program']}: difference of the reference made again, %",
                max(float(row["whole_run"]), float(row["windows"])),
                TOLERANCE_PERCENT,
            )
            for row in rows
        ]
