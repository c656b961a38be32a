"""Names: our own processes', and those from outside, which others give in whatever bytes."""

from __future__ import annotations

HELPER_PREFIX = "memsampd-"
"""Short names of the processes that memsampd starts for itself begin so."""

_STRANGE = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Make a name from outside safe for terminals, documents and UTF-8."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _STRANGE for letter in text)


def age_words(seconds: float) -> str:
    """An age for people.

    >>> [age_words(each) for each in (40, 7000, 200_000, 1e6)]
    ['40 s', '117 min', '56 h', '12 days']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 96 * 3600 else f"{seconds / 86400:.0f} days"
