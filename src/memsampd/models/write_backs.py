"""How many of the lines that a write-back cache fetches it writes back later.

A line fetched stays until it is evicted, and is written back if one of its accesses meanwhile was a
store. Bursts tell the share w of accesses that are stores, not which of the lines they go to. Of a
cache with m misses per access this is certain:

- at most m lines per access are written back, as each was fetched before;
- at most w, as each had a store;
- none need be: all stores may go to lines that stay.

Between these, lines are taken to be written back as often as accesses are stores: m·w. That is
right where lines are either only read or only written and stay for as many accesses each (copying,
filling, read-only tables). It is too little where a line is read and then changed, too much where
stores go to few lines that stay (a stack). Lines dirtied independently by each access would be
m·w / (m + w - m·w): programs are far from that (``docs/traffic.md``).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Figures = TypeVar("_Figures", float, NDArray[np.float64])


def written_back(misses: _Figures, write_share: _Figures | float) -> _Figures:
    """Estimate lines written back.

    Args:
        misses: per access, or of any number of accesses.
        write_share: stores among the accesses, 0..1.

    Returns:
        Lines, of as many accesses as the misses.
    """
    return misses * write_share


def most_written_back(miss_ratio: float, write_share: float) -> float:
    """Return what lines written back per access cannot exceed."""
    return min(miss_ratio, write_share)
