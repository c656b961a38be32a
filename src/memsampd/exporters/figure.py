"""The picture of a recording: miss ratio over time and cache size, phases, average curve.

After figures 1 and 2 of Sembrant, Black-Schaffer and Hagersten, "Phase Guided Profiling for Fast
Cache Modeling" (CGO 2012), with what the samples cannot tell made visible.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from memsampd.errors import CapabilityError
from memsampd.exporters.analysis import Analysis
from memsampd.exporters.figure_panels import (
    INK,
    MUTED,
    PAPER,
    RULE,
    TABLE_ROWS,
    cells_of,
    colour_limit,
    draw_bar,
    draw_heat,
    draw_key,
    draw_scale,
    draw_side,
    draw_sides,
    draw_size_axis,
    draw_table,
    phase_colours,
)
from memsampd.exporters.text import subtitle, title

LEFT = 0.95  # inches: where everything begins
_PANEL, _BETWEEN = 4.4, 0.3  # inches: recordings side by side


def draw(analysis: Analysis, format: str, *, table: bool = True) -> bytes:
    """Draw a recording.

    Args:
        analysis: over ascending sizes in equal logarithmic steps.
        format: "png" or "svg".
        table: put the phase table below the picture.

    Raises:
        CapabilityError: matplotlib is not installed.
    """
    rows = min(len(analysis.phases), TABLE_ROWS) + 1 if table and analysis.phases else 0
    notes = analysis.warnings if table else ()
    height = 5.65 + (0.27 * rows + 0.35 if rows else 0) + 0.21 * len(notes)
    height += 0.25 if len(analysis.phases) > TABLE_ROWS else 0
    return _rendered(
        lambda figure: _compose(figure, analysis, rows, notes),
        (11, height),
        format,
        transparent=not table,
    )


def draw_beside(analyses: Sequence[Analysis], format: str) -> bytes:
    """Draw several recordings side by side, on the same axes and colours.

    Args:
        analyses: two or more, over the same ascending sizes in equal logarithmic steps.
        format: "png" or "svg".

    Raises:
        CapabilityError: matplotlib is not installed.
    """
    width = LEFT + len(analyses) * (_PANEL + _BETWEEN) + 2.6
    return _rendered(lambda figure: _compose_beside(figure, analyses), (width, 5.9), format)


def _rendered(
    compose: Callable[[Any], None],
    inches: tuple[float, float],
    format: str,
    *,
    transparent: bool = False,
) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CapabilityError(
            "figures need matplotlib", "install it with: pip install 'memsampd[report]'"
        ) from error
    style: Any = {
        "font.family": "sans-serif",
        "font.size": 9.5,
        "text.color": INK,
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "hatch.color": "#7a8194",
        "hatch.linewidth": 0.6,
        "svg.hashsalt": "memsampd",
        "text.parse_math": False,  # names from outside may hold dollar signs
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=inches, facecolor=PAPER)
        FigureCanvasAgg(figure)
        compose(figure)
        out = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else {}
        figure.savefig(out, format=format, dpi=150, metadata=metadata, transparent=transparent)
    return out.getvalue()


def _compose(figure: Any, analysis: Analysis, rows: int, notes: Sequence[str]) -> None:
    """Place the parts; inches from the top, so that the table does not squeeze the picture."""
    width, height = figure.get_size_inches()

    def box(left: float, top: float, wide: float, high: float) -> Any:
        return figure.add_axes(
            (left / width, 1 - (top + high) / height, wide / width, high / height)
        )

    figure.text(LEFT / width, 1 - 0.42 / height, title(analysis), fontsize=15, fontweight="bold")
    figure.text(LEFT / width, 1 - 0.70 / height, subtitle(analysis), color=MUTED)
    bar, heat = box(LEFT, 0.98, 7.05, 0.26), box(LEFT, 1.30, 7.05, 3.55)
    side, scale = box(8.15, 1.30, 2.05, 3.55), box(LEFT, 5.34, 2.6, 0.11)
    cells = cells_of(analysis)
    top = colour_limit(analysis)
    draw_bar(bar, cells, phase_colours(analysis))
    mesh = draw_heat(heat, cells, analysis, top)
    draw_side(side, analysis)
    for axes in (heat, side):
        draw_size_axis(axes, analysis, labelled=axes is side)
    heat.set_ylabel("cache size", labelpad=2)
    draw_scale(figure, scale, mesh, top)
    draw_key(figure, 4.6 / width, 1 - 5.45 / height, 1 / width, 1 / height)
    if rows:
        draw_table(box(LEFT, 5.8, 9.25, 0.27 * rows), analysis)
    for index, note in enumerate(reversed(notes)):
        y = (0.14 + 0.21 * index) / height
        figure.text(LEFT / width, y, f"warning: {note}", fontsize=8.5, color="#a84300")


def _compose_beside(figure: Any, analyses: Sequence[Analysis]) -> None:
    """Place a panel for each recording, and the curves of all whole runs beside them."""
    width, height = figure.get_size_inches()
    top = max(map(colour_limit, analyses))
    cells = [cells_of(analysis) for analysis in analyses]
    seconds = max(float(each.edges_seconds[-1] - each.edges_seconds[0]) for each in cells)
    mesh = None
    for index, (analysis, each) in enumerate(zip(analyses, cells, strict=True)):
        left = (LEFT + index * (_PANEL + _BETWEEN)) / width
        name = f"{index + 1}  {title(analysis)}"
        figure.text(left, 1 - 0.42 / height, name, fontsize=11, fontweight="bold")
        for line, note in enumerate((_length(analysis), *analysis.warnings[:1])):
            words = note if len(note) <= 64 else f"{note[:63]}…"
            figure.text(left, 1 - (0.65 + 0.2 * line) / height, words, color=MUTED, fontsize=7.5)
        bar = figure.add_axes((left, 1 - 1.3 / height, _PANEL / width, 0.26 / height))
        heat = figure.add_axes((left, 1 - 4.91 / height, _PANEL / width, 3.55 / height))
        draw_bar(bar, each, phase_colours(analysis))
        mesh = draw_heat(heat, each, analysis, top)
        draw_size_axis(heat, analysis, labelled=False)
        begin, end = each.edges_seconds[0], each.edges_seconds[-1]
        heat.axvspan(end, begin + seconds, color=PAPER, linewidth=0, zorder=3)
        for axes in (bar, heat):
            axes.set_xlim(begin, begin + seconds)
        if index:
            bar.set_ylabel("")
            heat.set_yticklabels([])
    left = (LEFT + len(analyses) * (_PANEL + _BETWEEN)) / width
    side = figure.add_axes((left, 1 - 4.91 / height, 1.75 / width, 3.55 / height))
    draw_sides(side, analyses)
    draw_size_axis(side, analyses[0], labelled=True)
    scale = figure.add_axes((LEFT / width, 0.3 / height, 2.6 / width, 0.11 / height))
    draw_scale(figure, scale, mesh, top)
    draw_key(figure, (LEFT + 3.2) / width, 0.3 / height, 1 / width, 1 / height)


def _length(analysis: Analysis) -> str:
    """Return how much was observed, in a few words."""
    estimate = analysis.estimate
    return f"{estimate.windows:,} windows, {estimate.cpu_seconds:,.1f} s of CPU time"
