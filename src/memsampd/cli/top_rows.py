"""Target documents as rows of ``memsampd top``: what fits into 80 columns, and how it is sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memsampd.exporters.curves import CurvePoint
from memsampd.names import printable

Document = Mapping[str, Any]
"""A target document, as :func:`memsampd.exporters.documents.target_document` makes it."""

UNKNOWN = "?"
_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 8
_NAMES = 3  # levels shown: the lowest two and the last


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        title: of at most ``width`` characters.
        width: characters.
        key: what sorts by it.
        is_text: aligned to the left, ascending.
    """

    title: str
    width: int
    key: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A target.

    Attributes:
        target: its name.
        cells: as text, one for each column.
        values: what each column sorts by; None: not known, and last.
        details: sentences on what is not known of it.
    """

    target: str
    cells: tuple[str, ...]
    values: tuple[float | str | None, ...]
    details: tuple[str, ...]


class History:
    """The last ratios of each target at the last-level cache, for sparklines."""

    def __init__(self) -> None:
        self._ratios: dict[str, list[float]] = {}

    def add(self, targets: Iterable[Document]) -> None:
        """Take in how they are now; those that are gone are forgotten."""
        kept: dict[str, list[float]] = {}
        for target in targets:
            name, caches = target["target"], target.get("caches_now")
            ratio = caches[-1]["miss_ratio"] if caches else None
            points = self._ratios.get(name, [])
            kept[name] = [*points, *([] if ratio is None else [ratio])][-_SPARK_POINTS:]
        self._ratios = kept

    def spark(self, target: str) -> str:
        """Return one character a look, relative to the largest of them; padded on the left."""
        ratios = self._ratios.get(target, [])
        largest = max(ratios, default=0.0)
        steps = (
            min(int(each / largest * len(_BARS)), len(_BARS) - 1) if largest else 0
            for each in ratios
        )
        return "".join(_BARS[step] for step in steps).rjust(_SPARK_POINTS)


def levels_of(targets: Sequence[Document]) -> list[str]:
    """Return the caches to show: those that the targets tell of, three at most."""
    names = list(
        dict.fromkeys(cache["name"] for target in targets for cache in target.get("caches", ()))
    )
    return names if len(names) <= _NAMES else [*names[: _NAMES - 1], names[-1]]


def columns_of(levels: Sequence[str]) -> list[Column]:
    """Return the columns, 79 characters with the spaces between them for three levels."""
    return [
        Column("PID", 7, "p"),
        Column("COMMAND", 12, "c", is_text=True),
        Column("PHASE", 6, "h"),
        *(Column(f"{name[:5]} %", 9, str(index + 1)) for index, name in enumerate(levels)),
        Column("MB/s", 7, "b"),
        Column("TREND", _SPARK_POINTS, "t"),
        Column("UNKN", 4, "u"),
    ]


def rows_of(
    targets: Sequence[Document], levels: Sequence[str], history: History, now: bool
) -> list[Row]:
    """Return a row for each target.

    Args:
        targets: their documents.
        levels: caches shown.
        history: of their ratios.
        now: show the present phase, not the whole run.
    """
    return [_row(target, levels, history, now) for target in targets]


def sorted_rows(rows: Iterable[Row], column: int, is_text: bool, reverse: bool) -> list[Row]:
    """Return rows by a column: text ascending, figures descending; what is not known comes last."""
    rows = list(rows)
    known = [row for row in rows if row.values[column] is not None]
    unknown = [row for row in rows if row.values[column] is None]
    order: Callable[[Row], Any] = lambda row: row.values[column]  # noqa: E731
    return [*sorted(known, key=order, reverse=is_text == reverse), *unknown]


def table_lines(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Return header and rows as text."""
    return [
        " ".join(fitted(each.title, each) for each in columns).rstrip(),
        *(
            " ".join(
                fitted(cell, each) for cell, each in zip(row.cells, columns, strict=True)
            ).rstrip()
            for row in rows
        ),
    ]


def fitted(text: str, column: Column) -> str:
    """Return a text as wide as its column, cut visibly if it is longer."""
    if len(text) > column.width:
        text = f"{text[: column.width - 1]}…"
    return text.ljust(column.width) if column.is_text else text.rjust(column.width)


def _row(target: Document, levels: Sequence[str], history: History, now: bool) -> Row:
    if "caches" not in target:
        return _bare_row(target, levels)
    caches = {cache["name"]: cache for cache in target["caches_now" if now else "caches"]}
    last = next(reversed(caches.values()), None)
    fill = None if last is None else last["fill_bytes_per_cpu_second"]
    share = _unknown_share(target)
    trend = target["caches_now"][-1:]  # whatever is shown: the sparkline is of the present phase
    spark = history.spark(target["target"])
    ratios = [ratio_cell(caches.get(name)) for name in levels]
    points = [caches.get(name, {}).get("miss_ratio") for name in levels]
    return Row(
        target=target["target"],
        cells=(
            str(target["pid"]),
            printable(target["command"]),
            _phase(target),
            *ratios,
            UNKNOWN if fill is None else f"{1e-6 * fill:,.0f}",
            spark,
            f"{share:.0%}",
        ),
        values=(
            float(target["pid"]),
            target["command"],
            target["phase"],
            *points,
            fill,
            trend[0]["miss_ratio"] if trend else None,
            share,
        ),
        details=tuple(sentence(each) for each in target["not_known"]),
    )


def _bare_row(target: Document, levels: Sequence[str]) -> Row:
    """Return the row of a target that a daemon does not observe, or has not yet looked at."""
    columns = len(columns_of(levels))
    name, state = printable(target["command"]), target["state"]
    blanks = ("",) * (columns - 3)
    why = "; ".join(filter(None, (target["reason"], target["remedy"])))
    return Row(
        target=target["target"],
        cells=(str(target["pid"]), name, state, *blanks),
        values=(float(target["pid"]), target["command"], *(None,) * (columns - 2)),
        details=(printable(f"{state}: {why}" if why else state),),
    )


def _phase(target: Document) -> str:
    if not target["alive"]:
        return "ended"
    if not target.get("attached", True):
        return "let go"
    if target["idle"]:
        return "idle"
    return UNKNOWN if target["phase"] is None else str(target["phase"])


def ratio_cell(cache: Document | None) -> str:
    """Return a miss ratio in per cent, as a band where that matters."""
    if cache is None or cache["miss_ratio"] is None:
        return UNKNOWN
    point = CurvePoint(cache["miss_ratio"], cache["low"], cache["high"])
    if point.is_uncertain:
        return f"{_percent(point.low)}..{_percent(point.high)}"
    return f"{100 * point.miss_ratio:.2f}"


def _percent(ratio: float) -> str:
    """A bound in four characters."""
    return f"{100 * ratio:.1f}" if ratio < 0.0995 else f"{100 * ratio:.0f}"


def _unknown_share(target: Document) -> float:
    """Return the share of its CPU time of which no miss ratio is known, 0..1."""
    shares = [
        each["share"] for each in target["not_known"] if each["what"] in ("windows", "curves")
    ]
    return max((share for share in shares if share is not None), default=0.0)


def sentence(unknown: Document) -> str:
    """Return one thing that is not known of a target, as text."""
    share = "" if unknown["share"] is None else f" ({unknown['share']:.0%})"
    return printable(f"{unknown['what']}{share}: {unknown['why']}")
