"""What was measured: a CSV file for each experiment; cases are added as soon as they are done.

Beside it a file of the same name, ``.made``, keeps when, where and by which version that was: a
line for each date, machine and version.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from reference.documents import made_text

UNTOLD = "at a time, on a machine and by a version that were not kept"

Case: TypeAlias = tuple[str, ...]
"""What identifies one measurement, in the order of the experiment's key columns."""

Row: TypeAlias = Mapping[str, str | float | None]


class Results:
    """The rows of one experiment.

    Args:
        path: the CSV file; made when the first rows come.
        key: columns that identify a case.
        columns: the other columns.

    Raises:
        ValueError: the file has other columns: it was made by another version.
    """

    def __init__(self, path: Path, key: Sequence[str], columns: Sequence[str]) -> None:
        self.path = path
        self._made_path = path.with_suffix(".made")
        self._key = tuple(key)
        self._columns = tuple(columns)
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                if tuple(reader.fieldnames or ()) != (*self._key, *self._columns):
                    raise ValueError(f"{path} has other columns: remove it to measure anew")
                self.rows = list(reader)

    @property
    def made(self) -> list[str]:
        """When, where and by which version the rows were measured."""
        if not self.rows:
            return []  # a file that is left was of rows that were removed
        if not self._made_path.exists():
            return [UNTOLD]
        return self._made_path.read_text(encoding="utf-8").splitlines()

    def has(self, case: Case) -> bool:
        """Whether a case was measured."""
        return any(self._case(row) == case for row in self.rows)

    def add(self, case: Case, rows: Iterable[Row]) -> None:
        """Keep the rows of a case: all of them or, if this is interrupted, none."""
        named = dict(zip(self._key, case, strict=True))
        new = [
            {column: _text({**named, **row}[column]) for column in (*self._key, *self._columns)}
            for row in rows
        ]
        unfinished = self.path.with_suffix(".new")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, (*self._key, *self._columns), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows + new)
        made = dict.fromkeys((*self.made, made_text()))  # first: no row is without its line
        self._made_path.write_text("".join(f"{line}\n" for line in made), encoding="utf-8")
        os.replace(unfinished, self.path)
        self.rows += new

    def _case(self, row: Mapping[str, str]) -> Case:
        return tuple(row[column] for column in self._key)


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def numbers(rows: Iterable[Mapping[str, str]], column: str, **where: str) -> list[float]:
    """Return the figures of a column, of the rows in which other columns are as asked for."""
    return [
        float(row[column])
        for row in rows
        if row[column] and all(row[key] == value for key, value in where.items())
    ]


def unknown_rows(rows: Iterable[Mapping[str, str]], column: str) -> float:
    """Return how many rows have no figure in a column; NaN if there is no row."""
    are_unknown = [not row[column] or math.isnan(float(row[column])) for row in rows]
    return sum(are_unknown) if are_unknown else math.nan


def distinct(rows: Iterable[Mapping[str, str]], column: str) -> list[str]:
    """Return the values of a column, each once, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def cell(rows: Iterable[Mapping[str, str]], column: str, digits: int = 2, **where: str) -> str:
    """Return the mean of :func:`numbers` for a table; a dash if there are none."""
    found = numbers(rows, column, **where)
    return text_of(sum(found) / len(found) if found else float("nan"), digits)


def text_of(figure: float, digits: int = 2) -> str:
    """Return a figure for a table; a dash for NaN."""
    return "-" if figure != figure else f"{figure:.{digits}f}"
