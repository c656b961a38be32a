"""Analyses as JSON and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import numpy as np

from memsampd.exporters.analysis import Analysis
from memsampd.exporters.documents import phase_fields
from memsampd.models.records import MissRatioCurve

_POINT_COLUMNS = ("size_bytes", "miss_ratio", "low", "high")


def to_json(analysis: Analysis) -> str:
    """Return the analysis as JSON (docs/recording.md says what each key means)."""
    return msgspec.json.format(msgspec.json.encode(_document(analysis)), indent=1).decode() + "\n"


def to_csv(analysis: Analysis) -> str:
    """Return one row a window and size: tidy, with empty fields where nothing is known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [*("window", "start_seconds", "cpu_seconds", "accesses", "phase"), *_POINT_COLUMNS]
    )
    for window in analysis.windows:
        record = window.record
        known = window.accesses if window.is_rate_known else None
        row = [record.index, record.start_seconds, record.cpu_seconds, known]
        curve = _curve(window.curve, analysis)
        points = zip(curve["miss_ratio"], curve["low"], curve["high"], strict=True)
        for size_bytes, point in zip(analysis.sizes_bytes.tolist(), points, strict=True):
            writer.writerow([*row, window.phase, size_bytes, *point])
    return out.getvalue()


def _document(analysis: Analysis) -> dict[str, Any]:
    recording = analysis.recording
    header, summary = recording.header, recording.summary
    return {
        "line_bytes": header.line_bytes,
        "policy": analysis.policy,
        "sizes_bytes": analysis.sizes_bytes.tolist(),
        "windows": [
            {
                "start_seconds": window.record.start_seconds,
                "cpu_seconds": window.record.cpu_seconds,
                "accesses": window.accesses if window.is_rate_known else None,
                "accesses_guess": None if window.is_rate_known else window.accesses,
                "phase": window.phase,
                **_curve(window.curve, analysis),
            }
            for window in analysis.windows
        ],
        "phases": [
            {**phase_fields(phase), **_curve(analysis.curve(phase), analysis)}
            for phase in analysis.phases
        ],
        "overall": _curve(analysis.overall, analysis),
        "overhead": msgspec.to_builtins(summary.overhead) if summary else {},
        "bursts": msgspec.to_builtins(summary.tally) if summary else {},
        "backend": header.backend,
        "target": msgspec.to_builtins(recording.target),
        "cache_sizes_bytes": header.cache_sizes_bytes,
        "weighting": analysis.weighting,
        "rate_known_share": analysis.estimate.rate_known_share,
        "unknown_cpu_seconds": analysis.estimate.unknown_cpu_seconds,
        "warnings": analysis.warnings,
    }


def _curve(curve: MissRatioCurve | None, analysis: Analysis) -> dict[str, list[float | None]]:
    """Return a curve's three lists; without one, nothing is known but that ratios are ratios."""
    if curve is None:
        sizes = len(analysis.sizes_bytes)
        return {"miss_ratio": [None] * sizes, "low": [0.0] * sizes, "high": [1.0] * sizes}
    return {key: np.round(getattr(curve, key), 9).tolist() for key in ("miss_ratio", "low", "high")}
