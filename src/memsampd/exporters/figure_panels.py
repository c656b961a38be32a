"""The parts of a recording's picture: phases, heat map, curves, table and key, each on its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.analysis import Analysis
from memsampd.exporters.text import by_weight, table_header, table_row
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import format_size
from memsampd.names import printable

# Okabe and Ito's colours, told apart with every common colour blindness; black is left for text.
PHASE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
OTHER_COLOUR = "#9aa0a6"
INK = "#1f2430"
ON_COLOUR = ("#1b1f27", "#fdfdfe")  # dark and light, where the ground is coloured in any theme
MUTED = "#667085"
RULE = "#d5d9e0"
PAPER = "#ffffff"
HATCH = "#8a91a3"
UNKNOWN_COLOUR = "#e4e6ea"
TABLE_ROWS = 8
_UNSURE = 0.1  # of the colour scale: bounds that lie further apart are hatched
_COLOUR_LIMITS = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
_GAP = 0.02  # of the time shown: a longer pause between windows is left empty


@dataclass(frozen=True, slots=True)
class Cells:
    """The heat map's columns: runs of windows of one phase, and pauses between them.

    Attributes:
        edges_seconds: shape (c + 1,).
        miss_ratio: shape (sizes, c); NaN where nothing is known.
        spread: upper less lower bound, shape (sizes, c); infinite where nothing is known.
        phases: phase of each column, None for pauses, length c.
    """

    edges_seconds: NDArray[np.float64]
    miss_ratio: NDArray[np.float64]
    spread: NDArray[np.float64]
    phases: list[int | None]


def phase_colours(analysis: Analysis) -> dict[int, str]:
    """Return a colour for each phase: the heaviest get one of their own, the others grey."""
    heavy = _main_phases(analysis, len(PHASE_COLOURS))
    colours = {phase.id: OTHER_COLOUR for phase in analysis.phases}
    return colours | {phase.id: colour for phase, colour in zip(heavy, PHASE_COLOURS, strict=False)}


def _main_phases(analysis: Analysis, number: int) -> list[PhaseEstimate]:
    """Return so many phases, heaviest first: those of most accesses or most CPU time.

    One that misses much may make few accesses in a long time.
    """
    cpu_seconds = max(analysis.estimate.cpu_seconds, 1e-9)
    found = by_weight(analysis)
    most = sorted(found, key=lambda phase: -max(phase.weight, phase.cpu_seconds / cpu_seconds))
    chosen = {phase.id for phase in most[:number]}
    return [phase for phase in found if phase.id in chosen]


def cells_of(analysis: Analysis) -> Cells:
    """Make columns of windows: those in a row of one phase and curve are one."""
    sizes = len(analysis.sizes_bytes)
    edges, values, spread = [], [], []
    order: list[int | None] = []
    shown: MissRatioCurve | None = None  # in the column before
    windows = analysis.windows
    begin = windows[0].record.start_seconds if windows else 0.0
    end = windows[-1].record.end_seconds if windows else 1.0
    pause = _GAP * (end - begin)
    for index, window in enumerate(windows):
        record = window.record
        following = windows[index + 1].record.start_seconds if index + 1 < len(windows) else end
        curve = window.curve if window.is_known else None
        if order[-1:] != [window.phase] or curve is not shown:  # else it widens that column
            edges.append(record.start_seconds)
            values.append(np.full(sizes, np.nan) if curve is None else curve.miss_ratio)
            spread.append(np.full(sizes, np.inf) if curve is None else curve.high - curve.low)
            order.append(window.phase)
            shown = curve
        if following - record.end_seconds > pause:
            edges.append(record.end_seconds)
            values.append(np.full(sizes, np.nan))
            spread.append(np.zeros(sizes))
            order.append(None)
    if not windows:  # one pause
        edges, values, order = [begin], [np.full(sizes, np.nan)], [None]
        spread = [np.zeros(sizes)]
    edges.append(max(end, begin + 1e-9))
    return Cells(
        np.maximum.accumulate(np.array(edges)),
        np.array(values).reshape(len(order), sizes).T,
        np.array(spread).reshape(len(order), sizes).T,
        order,
    )


def colour_limit(analysis: Analysis) -> float:
    """Return the end of the colour scale: the largest miss ratio, rounded up to read well."""
    known = {id(window.curve): window.curve for window in analysis.windows}
    curves = [curve.miss_ratio for curve in known.values() if curve is not None]
    largest = max((float(curve.max()) for curve in curves), default=1.0)
    return next(limit for limit in _COLOUR_LIMITS if limit >= min(largest, 1.0))


def _octave_edges(analysis: Analysis) -> NDArray[np.float64]:
    """Return the heat map's rows in log2 of bytes, each size in the middle of its row."""
    octaves = np.log2(analysis.sizes_bytes)
    middle = (octaves[1:] + octaves[:-1]) / 2
    return np.concatenate([octaves[:1], middle, octaves[-1:]])


def draw_bar(axes: Any, cells: Cells, colours: dict[int, str]) -> None:
    """Draw which phase it was when."""
    edges = cells.edges_seconds
    span = edges[-1] - edges[0]
    start = 0
    for phase, run in groupby(cells.phases):
        end = start + len(list(run))
        wide = edges[end] - edges[start]
        if phase is not None:
            span_bar = [(edges[start], wide)]
            axes.broken_barh(span_bar, (0, 1), color=colours[phase], linewidth=0, rasterized=True)
            if wide > 0.035 * span:
                axes.text(
                    (edges[start] + edges[end]) / 2, 0.47, str(phase), ha="center", va="center",
                    fontsize=8.5, fontweight="bold", color=_readable_on(colours[phase]),
                )  # fmt: skip
        start = end
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1), xticks=[], yticks=[])
    axes.set_ylabel("phase", rotation=0, ha="right", va="center", labelpad=6)
    axes.spines[:].set_visible(False)
    axes.patch.set_alpha(0)


def draw_heat(axes: Any, cells: Cells, analysis: Analysis, top: float) -> Any:
    """Draw the miss ratio over time and size; what is hardly known is hatched."""
    edges, octaves = cells.edges_seconds, _octave_edges(analysis)
    axes.set_facecolor(UNKNOWN_COLOUR)
    mesh = axes.pcolormesh(
        edges, octaves, cells.miss_ratio, cmap=_colour_map(), vmin=0, vmax=top, rasterized=True
    )
    from matplotlib.collections import PolyCollection

    unsure = PolyCollection(
        areas_of(cells.spread > _UNSURE * top, edges, octaves),
        facecolor="none",
        edgecolor=HATCH,
        hatch="////",
        linewidth=0,
    )
    axes.add_collection(unsure, autolim=False)
    for index, phase in enumerate(cells.phases):
        if phase is None:
            axes.axvspan(edges[index], edges[index + 1], color=PAPER, linewidth=0, zorder=3)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("time since attach (s)")
    return mesh


def areas_of(
    is_so: NDArray[np.bool_], edges: NDArray[np.float64], octaves: NDArray[np.float64]
) -> list[list[tuple[float, float]]]:
    """Return the corners of rectangles that hold those cells of the heat map of which it is so.

    Args:
        is_so: shape (sizes, c).
        edges: of columns, shape (c + 1,).
        octaves: edges of rows, shape (sizes + 1,).
    """
    areas = []
    start = 0
    for rows, columns in groupby(column.tobytes() for column in is_so.T):
        end = start + len(list(columns))
        left, right = float(edges[start]), float(edges[end])
        padded = np.concatenate([[False], np.frombuffer(rows, bool), [False]])
        for bottom, top in np.flatnonzero(np.diff(padded)).reshape(-1, 2):
            low, high = float(octaves[bottom]), float(octaves[top])
            areas.append([(left, low), (right, low), (right, high), (left, high)])
        start = end
    return areas


def draw_sides(axes: Any, analyses: Sequence[Analysis]) -> None:
    """Draw the curves of whole runs over each other, each with its bounds."""
    axes.patch.set_alpha(0)
    axes.set_title("whole runs", fontsize=9.5, color=MUTED, pad=6)
    top = 0.001
    for index, analysis in enumerate(analyses):
        curve, colour = analysis.overall, PHASE_COLOURS[index % len(PHASE_COLOURS)]
        if curve is None:
            continue
        octaves = np.log2(curve.sizes_bytes)
        axes.fill_betweenx(octaves, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(curve.miss_ratio, octaves, color=colour, linewidth=1.8, label=str(index + 1))
        top = max(top, float(curve.high.max()))
    axes.legend(
        title="recording", fontsize=8, title_fontsize=8, loc="upper right",
        facecolor=PAPER, framealpha=1, edgecolor="none",
    ).set_zorder(5)  # fmt: skip
    _finish_side(axes, top)


def draw_side(axes: Any, analysis: Analysis) -> None:
    """Draw the curve of the whole run, with its bounds."""
    axes.patch.set_alpha(0)
    axes.set_title("whole run", fontsize=9.5, color=MUTED, pad=6)
    curve, top = analysis.overall, 1.0
    if curve is not None:
        octaves = np.log2(curve.sizes_bytes)
        axes.fill_betweenx(octaves, curve.low, curve.high, color="#c9cede", linewidth=0)
        axes.fill_betweenx(
            octaves, curve.low, curve.high, facecolor="none", edgecolor=HATCH, hatch="////",
            linewidth=0,
        )  # fmt: skip
        axes.plot(curve.miss_ratio, octaves, color="#b3204d", linewidth=2, solid_capstyle="round")
        top = float(curve.high.max())
    _finish_side(axes, max(top, 0.001))


def _finish_side(axes: Any, top: float) -> None:
    axes.set_xlim(0, top * 1.08)
    axes.xaxis.set_major_formatter(_percent)
    axes.xaxis.get_major_locator().set_params(nbins=4)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("miss ratio")


def draw_size_axis(axes: Any, analysis: Analysis, *, labelled: bool) -> None:
    """Draw the axis of sizes, with this machine's caches across (named at the right panel)."""
    octaves = np.log2(analysis.sizes_bytes)
    axes.set_ylim(octaves[0], octaves[-1])
    ticks = np.arange(np.ceil(octaves[0]), octaves[-1] + 0.01, 2)
    axes.set_yticks(ticks, [] if labelled else [format_size(int(2**tick)) for tick in ticks])
    axes.tick_params(length=0 if labelled else 3)
    axes.spines[["top", "right"]].set_visible(False)
    for level, size_bytes in analysis.recording.header.cache_sizes_bytes.items():
        octave = np.log2(size_bytes) if size_bytes > 0 else -1
        if octaves[0] <= octave <= octaves[-1]:
            ink = INK if labelled else ON_COLOUR[0]
            axes.axhline(octave, color=ink, linewidth=0.9, linestyle=(0, (4, 2.5)), zorder=4)
            if labelled:
                label = f"{printable(level)} {format_size(size_bytes)}"
                axes.annotate(
                    label, (1, octave), (4, 0), ("axes fraction", "data"), "offset points",
                    va="center", fontsize=8, annotation_clip=False,
                )  # fmt: skip


def draw_scale(figure: Any, axes: Any, mesh: Any, top: float) -> None:
    """Draw which colour is which miss ratio, up to the largest."""
    bar = figure.colorbar(mesh, cax=axes, orientation="horizontal", format=_percent)
    bar.set_ticks(np.linspace(0, top, 5))
    bar.outline.set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.set_title("miss ratio", fontsize=8.5, color=MUTED, loc="left", pad=3)


def draw_key(figure: Any, x: float, y: float, inch_wide: float, inch_high: float) -> None:
    """Say what hatching and grey mean."""
    from matplotlib.patches import Rectangle

    for offset, colour, hatch, text in (
        (0.0, PAPER, "/////", "bounds over a tenth of the scale apart"),
        (3.3, UNKNOWN_COLOUR, "/////", "no burst in this phase: not known"),
    ):
        corner = (x + offset * inch_wide, y)
        size = (0.24 * inch_wide, 0.13 * inch_high)
        figure.add_artist(
            Rectangle(corner, *size, facecolor=colour, edgecolor=HATCH, hatch=hatch, linewidth=0.6)
        )
        figure.text(corner[0] + 0.32 * inch_wide, y, text, fontsize=8.5, color=MUTED)


def draw_table(axes: Any, analysis: Analysis) -> None:
    """Draw the table of the heaviest phases."""
    axes.set_axis_off()
    shown = _main_phases(analysis, TABLE_ROWS)
    header = table_header(analysis)
    colours = phase_colours(analysis)
    lines = [header, *(table_row(phase, analysis) for phase in shown)]
    right = np.linspace(0.62, 9.25, len(header))
    axes.set(xlim=(0, 9.25), ylim=(len(lines), 0))
    for index, line in enumerate(lines):
        for x, cell in zip(right, line, strict=True):
            colour = MUTED if index == 0 else INK
            axes.text(x, index + 0.5, cell, ha="right", va="center", fontsize=8.8, color=colour)
        if index:
            colour = colours[shown[index - 1].id]
            axes.plot([0.1], [index + 0.5], marker="s", markersize=6.5, color=colour)
        axes.axhline(index + 1, color=RULE, linewidth=0.6)
    hidden = len(analysis.phases) - len(shown)
    if hidden:
        axes.text(0, len(lines) + 0.5, f"and {hidden} lighter phases", color=MUTED, va="center")


def _colour_map() -> Any:
    """Light for hits to dark for misses, even to the eye and without hue traps."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["magma_r"](np.linspace(0.02, 0.88, 256)))


def _percent(value: float, _position: int | None = None) -> str:
    return f"{value * 100:.3g}%"


def _readable_on(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return ON_COLOUR[0.299 * red + 0.587 * green + 0.114 * blue <= 140]
