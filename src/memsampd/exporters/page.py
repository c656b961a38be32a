"""A recording as one self-contained HTML page."""

from __future__ import annotations

import re
from html import escape

from memsampd.exporters.analysis import Analysis
from memsampd.exporters.figure import draw
from memsampd.exporters.figure_panels import INK, MUTED, PAPER, RULE, phase_colours
from memsampd.exporters.text import by_weight, subtitle, table_header, table_row, title

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2430; --muted: #667085; --rule: #d5d9e0 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171d; --ink: #e6e9ef; --muted: #9aa3b2; --rule: #39404d } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem; margin: 0 } p { color: var(--muted); margin: .2rem 0 1rem }
svg { width: 100%; height: auto } .scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--rule) }
th { color: var(--muted); font-weight: 500 }
i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em }
.warning { border-left: 3px solid #e69f00; padding-left: .7rem; color: var(--ink) }
"""


def to_html(analysis: Analysis) -> str:
    """Return a page with the figure, the phase table and the warnings; it loads nothing."""
    colours = phase_colours(analysis)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table_header(analysis))
    rows = "".join(
        f'<tr><td><i style="background:{colours[phase.id]}"></i>'
        + "</td><td>".join(escape(cell) for cell in table_row(phase, analysis))
        + "</td></tr>\n"
        for phase in by_weight(analysis)
    )
    warnings = "".join(f'<p class="warning">{escape(text)}</p>\n' for text in analysis.warnings)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title(analysis))}: miss ratios</title><style>{_STYLE}</style></head>
<body><h1>{escape(title(analysis))}</h1><p>{escape(subtitle(analysis))}</p>
{warnings}{_inline_svg(analysis)}
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>
{rows}</tbody></table></div></body></html>
"""


def _inline_svg(analysis: Analysis) -> str:
    """Return the figure without its prologue, in colours that follow the page's."""
    svg = draw(analysis, "svg", table=False).decode()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (RULE, "rule"), (PAPER, "paper")):
        svg = svg.replace(colour, f"var(--{name})")
    return svg
