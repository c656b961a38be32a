"""What reading a target's pages does to its speed: it brings them near."""

from __future__ import annotations

import numpy as np

from memsampd.sampler.clock.records import Rows

_LINE_SHIFT = np.uint64(6)
# What a line from memory takes that our reading has brought near, and how much of that is borne.
_WARMED_SECONDS = 100e-9
_MAX_WARMED = 0.1


def waiting_lines(rows: Rows, first: int, last: int) -> int:
    """How many lines are touched between two rows, and not before, and none beside them.

    Lines side by side are fetched ahead by any CPU: nobody waits for them.
    """
    line = rows.address[:last] >> _LINE_SHIFT
    changes = np.flatnonzero(np.diff(line)) + 1
    before = changes[: np.searchsorted(changes, first)]
    known = np.unique(np.concatenate([line[:1], line[before]]))
    seen = np.unique(np.concatenate([known, line[changes[len(before) :]]]))
    has_neighbour = np.zeros(len(seen), np.bool_)
    is_next = np.diff(seen) == 1
    has_neighbour[1:] |= is_next
    has_neighbour[:-1] |= is_next
    return int(np.count_nonzero(~has_neighbour & ~np.isin(seen, known, assume_unique=True)))


def is_warmed(rows: Rows, first: int, last: int, cpu_seconds: float) -> bool:
    """Whether reading its pages may have made a stretch of so many seconds notably faster."""
    return waiting_lines(rows, first, last) * _WARMED_SECONDS > _MAX_WARMED * cpu_seconds
