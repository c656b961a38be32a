"""The table of docs/metrics.md: ``python -m memsampd.exporters.metrics_page FILE`` renews it."""

from __future__ import annotations

import sys
from pathlib import Path

from memsampd.exporters.catalogue import CATALOGUE

_BEGIN, _END = "<!-- catalogue: begin -->\n", "<!-- catalogue: end -->"


def metrics_table() -> str:
    """Return a line for each metric of the catalogue, in Markdown."""
    rows = (
        f"| `{metric.name}` | {metric.kind} | {metric.unit} "
        f"| {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |\n"
        for metric in CATALOGUE
    )
    return "| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n" + "".join(rows)


def renewed(page: str) -> str:
    """Return a page with the table of now between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"no {_BEGIN.strip()} and {_END} to put the table between")
    return before + begin + metrics_table() + end + after


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
