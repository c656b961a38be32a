"""Analyses for the terminal: the phase table and the curve of the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memsampd.estimate.events import BurstRecord
from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.analysis import Analysis
from memsampd.exporters.curves import CurvePoint, at_size
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import format_size
from memsampd.names import printable
from memsampd.sampler.rates import AccessRate

BAR_COLUMNS = 40
UNKNOWN = "-"


def table_header(analysis: Analysis) -> list[str]:
    """Return the titles of the phase table's columns."""
    levels = analysis.recording.header.cache_sizes_bytes
    return [
        "phase",
        "windows",
        "weight",
        "sampled",
        "censored",
        "M acc/s",
        *(["CPI"] if _has_cpi(analysis) else []),
        *(f"miss {name}" for name in levels),
    ]


def table_row(phase: PhaseEstimate, analysis: Analysis) -> list[str]:
    """Return a phase's row of the phase table, as text."""
    curve = analysis.curve(phase)
    return [
        str(phase.id),
        f"{phase.windows:,}",
        f"{phase.weight:.1%}",
        f"{phase.sampled_accesses:,}",
        f"{phase.censored_share:.2%}" if phase.sampled_accesses else UNKNOWN,
        _rate_cell(phase.rate),
        *([_cpi_cell(phase)] if _has_cpi(analysis) else []),
        *(
            _level_cell(curve, size_bytes)
            for size_bytes in analysis.recording.header.cache_sizes_bytes.values()
        ),
    ]


def _has_cpi(analysis: Analysis) -> bool:
    """Whether counters told cycles an instruction: elsewhere there is no column for it."""
    return any(phase.cycles_per_instruction is not None for phase in analysis.phases)


def _cpi_cell(phase: PhaseEstimate) -> str:
    cpi = phase.cycles_per_instruction
    return UNKNOWN if cpi is None else f"{cpi:.2f}"


def by_weight(analysis: Analysis) -> list[PhaseEstimate]:
    """Return the phases, heaviest first."""
    return sorted(analysis.phases, key=lambda phase: (-phase.weight, phase.id))


def title(analysis: Analysis) -> str:
    """Return what was observed, in a few words."""
    target = analysis.recording.target
    return f"{printable(target.command)} (pid {target.pid})"


def subtitle(analysis: Analysis) -> str:
    """Return how much was observed, in a line."""
    windows = analysis.windows
    events = analysis.recording.last_program  # as the windows
    bursts = [event for event in events if isinstance(event, BurstRecord)]
    stored = sum(burst.is_stored for burst in bursts)
    taken = sum(burst.part == 0 for burst in bursts if not burst.is_stored)
    known = f" and {stored:,} known from before" if stored else ""
    cpu_seconds = sum(window.record.cpu_seconds for window in windows)
    return (
        f"{len(windows):,} windows, {cpu_seconds:,.1f} s of CPU time, "
        f"{taken:,} bursts{known}, "
        f"{sum(burst.accesses for burst in bursts):,} sampled accesses, "
        f"{'LRU' if analysis.policy == 'lru' else 'random'} replacement, "
        f"weighted by {analysis.weighting.replace('cpu_seconds', 'CPU time')}"
    )


def to_text(analysis: Analysis) -> str:
    """Return phase table and curve as text."""
    rows = [table_row(phase, analysis) for phase in by_weight(analysis)]
    parts = [
        f"{title(analysis)}\n{subtitle(analysis)}\n",
        aligned([table_header(analysis), *rows]),
        _curve_lines(analysis),
        "".join(f"warning: {warning}\n" for warning in analysis.warnings),
    ]
    return "\n".join(part for part in parts if part)


def _rate_cell(rate: AccessRate) -> str:
    """Million accesses a CPU second, with the spread where it is known."""
    if rate.accesses_per_cpu_second is None:
        return UNKNOWN
    spread = "" if rate.spread is None else f" ±{rate.spread:.0%}"
    return f"{1e-6 * rate.accesses_per_cpu_second:,.0f}{spread}"


def _level_cell(curve: MissRatioCurve | None, size_bytes: int) -> str:
    point = None if curve is None else at_size(curve, size_bytes)
    if point is None:
        return UNKNOWN
    return _bounds(point) if point.is_uncertain else f"{point.miss_ratio:.2%}"


def _bounds(point: CurvePoint) -> str:
    return f"{point.low:.1%}…{point.high:.1%}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of columns, right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return _lines(lines)


def _curve_lines(analysis: Analysis) -> str:
    curve = analysis.overall
    if curve is None:
        return ""
    lines = ["whole run: misses per access ('░': between the bounds, not known)"]
    for size_bytes, *values in zip(
        curve.sizes_bytes, curve.miss_ratio, curve.low, curve.high, strict=True
    ):
        point = CurvePoint(*values)
        sure, maybe = round(point.low * BAR_COLUMNS), round(point.high * BAR_COLUMNS)
        bar = "█" * sure + "░" * (maybe - sure)
        bounds = f"  {_bounds(point)}" if point.is_uncertain else ""
        lines.append(f"{format_size(size_bytes):>8}  {point.miss_ratio:>7.2%}  {bar}{bounds}")
    return _lines(lines)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
