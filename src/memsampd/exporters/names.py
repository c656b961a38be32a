"""Names from outside: processes, files and reasons are named by others, in whatever bytes."""

from __future__ import annotations

_STRANGE = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Make a name from outside safe for terminals, documents and UTF-8."""
    return "".join(letter if letter.isprintable() else _STRANGE for letter in text)
