"""The seam between the evaluation and its experiments: one experiment a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evaluation.bench import Bench
from evaluation.page import Page
from evaluation.results import Case, Row


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that has to be reached.

    Attributes:
        what: what is judged, for people.
        value: what was measured.
        limit: the most that is allowed.
    """

    what: str
    value: float
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether it was reached."""
        return self.value <= self.limit


class Experiment(Protocol):
    """One question.

    Contract: ``measure`` depends on its case and the bench alone, so that a case that was kept need
    not be measured again; ``report`` depends on the kept rows alone, whatever cases they hold.
    """

    @property
    def name(self) -> str:
        """Names its CSV file and its section of the documentation."""

    @property
    def key(self) -> Sequence[str]:
        """Columns that identify a case."""

    @property
    def columns(self) -> Sequence[str]:
        """The other columns."""

    def cases(self, bench: Bench) -> Iterable[Case]:
        """What is to be measured at the bench's scale."""

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Measure one case; the key's columns need not be in the rows."""

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Write tables; returns the goals that this experiment judges."""
