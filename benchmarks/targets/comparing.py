"""Comparing runs alone with runs observed: pairs, medians, goals, tables."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ALONE = "alone"

# Of one run: what was measured, by name; None: it could not be had.
Figures = dict[str, float | None]
# Of one round: figures by variant, "alone" among them.
Round = dict[str, Figures]


class Kind(enum.Enum):
    """What of a figure counts.

    GAIN: median of (observed / alone - 1) over pairs, at most the limit.
    LOSS: the same, at least minus the limit.
    EXCESS: median of (observed - alone) over pairs, at most the limit.
    NEVER_MORE: median of (observed - alone) over pairs, each less the limit, a share of what it is
        alone, or the slack: at most nothing.
    AT_MOST: median observed, at most the limit.
    AT_LEAST: median observed, at least the limit.
    CHARGED: median observed, within a factor (the limit) of the gain of the figure ``cost``.
    SHOWN: nothing.
    """

    GAIN = enum.auto()
    LOSS = enum.auto()
    EXCESS = enum.auto()
    NEVER_MORE = enum.auto()
    AT_MOST = enum.auto()
    AT_LEAST = enum.auto()
    CHARGED = enum.auto()
    SHOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        name: of the figure.
        title: for people.
        scale: by which it is multiplied to be shown.
        digits: behind the point.
        kind: what of it counts.
        limit: the goal.
        cost: for ``Kind.CHARGED``: the figure whose gain is the cost.
        slack: for ``Kind.NEVER_MORE``: so much more is no more, in the figure's unit.
    """

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2
    kind: Kind = Kind.SHOWN
    limit: float = 0.0
    cost: str = ""
    slack: float = 0.0

    def goal(self) -> str:
        """Return the goal in a few characters."""
        return {
            Kind.GAIN: f"<= +{self.limit:.0%}",
            Kind.LOSS: f">= -{self.limit:.0%}",
            Kind.EXCESS: f"<= +{self.limit * self.scale:g}",
            Kind.NEVER_MORE: "no more",
            Kind.AT_MOST: f"<= {self.limit * self.scale:g}",
            Kind.AT_LEAST: f">= {self.limit * self.scale:g}",
            Kind.CHARGED: f"x {self.limit:g}",
            Kind.SHOWN: "",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one figure of one variant came to.

    Attributes:
        median: of the variant's runs; None: never had.
        effect: what counts, in the unit of its kind; None if nothing does or it was not had.
        noise: half the width of an interval that holds the effect, about 95 %.
        is_met: whether the goal is; None: there is none, or it cannot be told.
    """

    median: float | None
    effect: float | None = None
    noise: float | None = None
    is_met: bool | None = None


def values_of(rounds: Sequence[Round], variant: str, name: str) -> list[float]:
    """Return a figure of all runs of a variant that have it."""
    found = (each[variant].get(name) for each in rounds if variant in each)
    return [value for value in found if value is not None]


def pairs_of(rounds: Sequence[Round], variant: str, name: str) -> list[tuple[float, float]]:
    """Return (alone, observed) of the rounds that have both."""
    pairs = []
    for each in rounds:
        alone = each.get(ALONE, {}).get(name)
        seen = each.get(variant, {}).get(name)
        if alone is not None and seen is not None:
            pairs.append((alone, seen))
    return pairs


def gains_of(rounds: Sequence[Round], variant: str, name: str) -> list[float]:
    """Return observed / alone - 1 of each round."""
    return [seen / alone - 1 for alone, seen in pairs_of(rounds, variant, name) if alone > 0]


def noise_of(values: Sequence[float]) -> float | None:
    """Return twice the standard error of the median, from the quartiles; None below 3 values.

    For a normal distribution the quartiles lie 1.35 sigma apart, and the median's standard error is
    1.25 sigma / sqrt(n).
    """
    if len(values) < 3:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return float(2 * 1.25 * (third - first) / 1.35 / len(values) ** 0.5)


def judge(row: Row, rounds: Sequence[Round], variant: str) -> Verdict:
    """Say what a figure of a variant came to."""
    seen = values_of(rounds, variant, row.name)
    median = statistics.median(seen) if seen else None
    if median is None or row.kind is Kind.SHOWN or variant == ALONE:
        return Verdict(median)
    if row.kind is Kind.AT_MOST:
        return Verdict(median, median, noise_of(seen), median <= row.limit)
    if row.kind is Kind.AT_LEAST:
        return Verdict(median, median, noise_of(seen), median >= row.limit)
    if row.kind is Kind.CHARGED:
        return _judge_charged(row, rounds, variant, median)
    pairs = pairs_of(rounds, variant, row.name)
    effects = (
        [seen - alone for alone, seen in pairs]
        if row.kind in (Kind.EXCESS, Kind.NEVER_MORE)
        else gains_of(rounds, variant, row.name)
    )
    if not effects:
        return Verdict(median)
    effect = statistics.median(effects)
    if row.kind is Kind.NEVER_MORE:
        beyond = (seen - alone - max(row.limit * alone, row.slack) for alone, seen in pairs)
        is_met = statistics.median(beyond) <= 0
    else:
        is_met = effect >= -row.limit if row.kind is Kind.LOSS else effect <= row.limit
    return Verdict(median, effect, noise_of(effects), is_met)


def _judge_charged(row: Row, rounds: Sequence[Round], variant: str, charged: float) -> Verdict:
    """Compare what was charged with what was lost, where that stands out of the noise."""
    gains = gains_of(rounds, variant, row.cost)
    noise = noise_of(gains)
    if noise is None:
        return Verdict(charged)
    cost = statistics.median(gains)
    if cost <= noise:  # the charge may be all of it, or nothing
        return Verdict(charged, cost, noise, None)
    # Any cost within the noise that explains the charge will do.
    is_met = (cost - noise) / row.limit <= charged <= (cost + noise) * row.limit
    return Verdict(charged, cost, noise, is_met)


_SHARES = (Kind.GAIN, Kind.LOSS, Kind.CHARGED)
_EFFECTS = (Kind.GAIN, Kind.LOSS, Kind.EXCESS, Kind.NEVER_MORE)


def _cell(row: Row, verdict: Verdict) -> str:
    if verdict.median is None:
        return "-"
    text = _median_text(row, verdict.median)
    if verdict.effect is not None and row.kind not in (Kind.AT_MOST, Kind.AT_LEAST):
        shown = _effect_text(row, verdict.effect, verdict.noise)
        shown += " %" if row.kind in _SHARES else ""
        text += f" (cost {shown})" if row.kind is Kind.CHARGED else f" ({shown})"
    return text + (" MISSED" if verdict.is_met is False else "")


def _median_text(row: Row, median: float) -> str:
    return f"{median * row.scale:,.{row.digits}f}"


def _effect_text(row: Row, effect: float, noise: float | None) -> str:
    """Return an effect with its noise, in percent or in the unit of the figure."""
    scale, digits = (100, 1) if row.kind in _SHARES else (row.scale, row.digits)
    spread = f" ± {noise * scale:.{digits}f}" if noise is not None else ""
    return f"{effect * scale:+,.{digits}f}{spread}"


def document_cell(row: Row, rounds: Sequence[Round], variant: str) -> str:
    """Return what being observed makes of a figure, for a document; bold if that misses its goal.

    That is the effect, where there is one, else the median.
    """
    verdict = judge(row, rounds, variant)
    if verdict.median is None:
        return ""
    if verdict.effect is None or row.kind not in _EFFECTS:
        text = _median_text(row, verdict.median)
    else:
        text = _effect_text(row, verdict.effect, verdict.noise)
    return f"**{text}**" if verdict.is_met is False else text


def table(rows: Sequence[Row], rounds: Sequence[Round], variants: Sequence[str]) -> list[str]:
    """Return a table as lines: a figure a line, a variant a column, "alone" first."""
    columns = (ALONE, *variants)
    cells = [["", "goal", *columns]]
    for row in rows:
        verdicts = [judge(row, rounds, variant) for variant in columns]
        if any(verdict.median is not None for verdict in verdicts):
            shown = (_cell(row, verdict) for verdict in verdicts)
            cells.append([row.title, row.goal(), *shown])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def charged_row(cost: str, *, is_busy: bool) -> Row:
    """Return the row of what memsampd says that it took, judged by a figure's gain.

    Beside busy loops a gain tells of these: there it is only shown.
    """
    kind = Kind.SHOWN if is_busy else Kind.CHARGED
    return Row("charged_share", "charged, %", 100, 2, kind, 1.5, cost=cost)


def report(
    heading: str, rows: Sequence[Row], rounds: Sequence[Round], variants: Sequence[str]
) -> list[str]:
    """Print a target's table; returns the titles of what the first variant missed."""
    print(f"\n{heading} ({len(rounds)} rounds)")
    print("\n".join(f"  {line}" for line in table(rows, rounds, variants)), flush=True)
    return missed(rows, rounds, variants[0])


def missed(rows: Sequence[Row], rounds: Sequence[Round], variant: str) -> list[str]:
    """Return the titles of what a variant missed, and of what was judged but not measured."""
    found = []
    for row in rows:
        verdict = judge(row, rounds, variant)
        # Whether a charge within the noise is right cannot be told: no miss, if there is a charge.
        is_untold = (verdict.median if row.kind is Kind.CHARGED else verdict.is_met) is None
        if verdict.is_met is False:
            found.append(row.title.strip())
        elif row.kind is not Kind.SHOWN and is_untold:
            found.append(f"{row.title.strip()}: not measured")
    return found
