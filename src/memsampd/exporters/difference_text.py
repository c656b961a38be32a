"""Differences for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from memsampd.exporters.analysis import Analysis
from memsampd.exporters.difference import Change, Difference, Range
from memsampd.exporters.text import UNKNOWN, aligned, subtitle, title
from memsampd.models.sizes import format_size
from memsampd.names import printable

VERSION = 1
_WORTH_A_RANGE = 0.1  # of the value
_PHASES_SHOWN = 12


def to_text(difference: Difference, before: Analysis, after: Analysis) -> str:
    """Return the difference as text."""
    parts = [
        _head("before", before) + _head("after ", after),
        _table(
            f"whole run, misses per access ({'LRU' if before.policy == 'lru' else 'random'})",
            [
                (format_size(size), change, _ratio)
                for size, change in zip(
                    difference.sizes_bytes.tolist(), difference.whole, strict=True
                )
            ],
        ),
        _table(
            "per CPU second, and the knee (90 % of what more cache saves)",
            [
                ("M accesses", difference.accesses, lambda value: f"{1e-6 * value:,.0f}"),
                *(
                    (f"MB to {printable(name)}", change, lambda value: f"{1e-6 * value:,.0f}")
                    for name, change in difference.traffic.items()
                ),
                ("knee", difference.knee, lambda value: format_size(int(value))),
            ],
        ),
        _phase_lines(difference),
        "".join(
            f"warning: {name}: {warning}\n"
            for name, analysis in (("before", before), ("after", after))
            for warning in analysis.warnings
        ),
    ]
    return "\n".join(part for part in parts if part)


def to_document(difference: Difference, before: Analysis, after: Analysis) -> dict[str, Any]:
    """Return the difference as a JSON document; a change has before, after and a verdict."""
    return {
        "version": VERSION,
        "policy": before.policy,
        "targets": [msgspec.to_builtins(analysis.recording.target) for analysis in (before, after)],
        "sizes_bytes": difference.sizes_bytes.tolist(),
        "miss_ratio": [_change(change) for change in difference.whole],
        "caches": _changes(difference.caches),
        "bytes_per_cpu_second": _changes(difference.traffic),
        "accesses_per_cpu_second": _change(difference.accesses),
        "knee_bytes": _change(difference.knee),
        "phases_matched_by": difference.matched_by,
        "phases": [
            {
                "before": phase.before,
                "after": phase.after,
                "likeness": phase.likeness,
                "weight": list(phase.weight),
                "caches": _changes(phase.caches),
            }
            for phase in difference.phases
        ],
        "phases_gone": list(difference.gone),
        "phases_new": list(difference.new),
        "warnings": {"before": list(before.warnings), "after": list(after.warnings)},
    }


def _change(change: Change) -> dict[str, Any]:
    return {**msgspec.to_builtins(change), "verdict": change.verdict}


def _changes(changes: Mapping[str, Change]) -> dict[str, Any]:
    return {name: _change(change) for name, change in changes.items()}


def _head(name: str, analysis: Analysis) -> str:
    return f"{name}: {title(analysis)}: {subtitle(analysis)}\n"


Row = tuple[str, Change, Callable[[float], str]]


def _table(heading: str, rows: Sequence[Row]) -> str:
    lines = [
        [name, _cell(change.before, write), _cell(change.after, write), _verdict(change)]
        for name, change, write in rows
    ]
    return f"{heading}\n{aligned([['', 'before', 'after', ''], *lines])}"


def _cell(range_: Range, write: Callable[[float], str]) -> str:
    if range_.value is None:
        return UNKNOWN
    if range_.low is None or range_.high is None:
        return f"{write(range_.value)} (bounds not known)"
    if range_.high - range_.low <= _WORTH_A_RANGE * range_.value:
        return write(range_.value)
    return f"{write(range_.value)} ({write(range_.low)}..{write(range_.high)})"


def _verdict(change: Change) -> str:
    before, after = change.before.value, change.after.value
    if change.verdict not in ("more", "fewer") or not before or after is None:
        return change.verdict
    return f"{change.verdict}: {100 * (after / before - 1):+.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.2%}"


def _phase_lines(difference: Difference) -> str:
    names = list(difference.caches)
    head = ["before", "after", "like", "weight", *(f"miss {printable(name)}" for name in names)]
    rows = [
        [
            str(phase.before),
            str(phase.after),
            f"{phase.likeness:.0%}",
            f"{phase.weight[0]:.0%} > {phase.weight[1]:.0%}",
            *(_both(phase.caches[name]) for name in names),
        ]
        for phase in difference.phases[:_PHASES_SHOWN]
    ]
    heading = f"phases, matched by {difference.matched_by}"
    table = (
        f"{heading}\n{aligned([head, *rows])}" if rows else "no phase of the one is in the other\n"
    )
    hidden = len(difference.phases) - _PHASES_SHOWN
    more = f"and {hidden} lighter ones\n" if hidden > 0 else ""
    gone = f"only before: {_ids(difference.gone)}\n" if difference.gone else ""
    new = f"only after: {_ids(difference.new)}\n" if difference.new else ""
    return table + more + gone + new


def _both(change: Change) -> str:
    if change.before.value is None or change.after.value is None:
        return UNKNOWN
    doubt = "" if change.verdict in ("more", "fewer") else " ?"
    return f"{change.before.value:.2%} > {change.after.value:.2%}{doubt}"


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
