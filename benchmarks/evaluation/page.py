"""Where tables and figures go: a section of the documentation, and picture files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Page:
    """Collects the Markdown of one section.

    Args:
        name: of the experiment; names its figures.
        pictures: folder for the figures, as SVG.
        link: path of that folder as the document sees it.
        bitmaps: folder for the same as PNG; None for none.
    """

    def __init__(self, name: str, pictures: Path, link: str, bitmaps: Path | None = None) -> None:
        self._name = name
        self._pictures = pictures
        self._link = link
        self._bitmaps = bitmaps
        self._parts: list[str] = []

    def text(self, text: str) -> None:
        """Write a paragraph."""
        self._parts.append(text.strip() + "\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table; all columns but the first are figures."""
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        self._parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))

    @contextmanager
    def figure(
        self, what: str, title: str, rows: int = 1, columns: int = 1, **options: Any
    ) -> Iterator[Any]:
        """Draw a figure: yields matplotlib's axes, an array of shape (rows, columns).

        Args:
            what: follows the experiment's name in the file's.
            title: its text in the document.
            rows: rows of axes.
            columns: columns of axes.
            options: of ``matplotlib.pyplot.subplots``.
        """
        import matplotlib as mpl

        mpl.use("Agg")
        mpl.rcParams["svg.hashsalt"] = "memsampd"  # the same figure makes the same file
        from matplotlib import pyplot

        options = {"figsize": (4.2 * columns, 2.8 * rows), "layout": "constrained", **options}
        figure, axes = pyplot.subplots(rows, columns, squeeze=False, **options)
        try:
            yield axes
            self._pictures.mkdir(parents=True, exist_ok=True)
            stem = f"{self._name}-{what}"
            figure.savefig(self._pictures / f"{stem}.svg", metadata={"Date": None})
            if self._bitmaps is not None:
                self._bitmaps.mkdir(parents=True, exist_ok=True)
                figure.savefig(self._bitmaps / f"{stem}.png", dpi=110)
        finally:
            pyplot.close(figure)
        self._parts.append(f"![{title}]({self._link}/{stem}.svg)\n")

    @contextmanager
    def figure_by_program(
        self, what: str, title: str, programs: Sequence[str]
    ) -> Iterator[tuple[Any, list[tuple[Any, str]]]]:
        """Draw a figure with axes for each program, four in a row at most.

        Yields:
            All axes, as :meth:`figure`, and the axes of each program with its name, which is their
            title.
        """
        columns = min(4, len(programs))
        with self.figure(what, title, -(-len(programs) // columns), columns) as axes:
            pairs = list(zip(axes.flat, programs, strict=False))
            for at, program in pairs:
                at.set_title(program, fontsize=9)
            yield axes, pairs

    def markdown(self) -> str:
        """Return the section."""
        return "\n".join(self._parts)


def size_text(size_bytes: int) -> str:
    """Return a cache size as its axis shows it."""
    return f"{size_bytes >> 20}M" if size_bytes >= 1 << 20 else f"{size_bytes >> 10}K"
