"""A section of the documentation: paragraphs and tables."""

from __future__ import annotations

from collections.abc import Sequence


class Page:
    """Collects the Markdown of one section."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def text(self, text: str) -> None:
        """Write a paragraph."""
        self._parts.append(text.strip() + "\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write a table; all columns but the first are figures."""
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        self._parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))

    def markdown(self) -> str:
        """Return the section."""
        return "\n".join(self._parts)
