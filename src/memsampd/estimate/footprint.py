"""What the memory that a program has allows for: caches that hold all of it miss new lines only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.models.protocols import CacheModel
from memsampd.sampler.process.mapped import MemoryUse

# Lines that return within so many windows are in a cache that holds all memory of these.
_SPANS = (1, 10, 100)


class Footprint:
    """How many accesses of each window may miss at most, by what memory the program has.

    A line that was touched is missed again only if others have taken its place. All lines that a
    program touches within t windows are in pages that it had t windows ago, or was given since. A
    cache that is no smaller than these misses new lines, once each; and, if it is an LRU cache,
    such as return later: each line once in t windows at most. If all memory that the program ever
    had fits into it, no line ever leaves it, whatever the policy.

    Args:
        models: one for each policy.
        sizes_bytes: cache sizes, shape (s,).
        line_bytes: size of a line.
    """

    def __init__(
        self, models: Sequence[CacheModel], sizes_bytes: NDArray[np.int64], line_bytes: int
    ) -> None:
        self._sizes_bytes = sizes_bytes
        self._line_bytes = line_bytes
        self._is_lru = np.array([model.policy == "lru" for model in models], np.bool_)
        self._given_bytes = 0  # so far
        # At the end of each of the latest windows: what was given until then, what it had.
        self._course: deque[tuple[int, int]] = deque(maxlen=_SPANS[-1])

    def add(self, memory: MemoryUse | None) -> NDArray[np.float64]:
        """Take in the next window.

        Args:
            memory: at its end, and what was given since the end of the window before; None if that
                is not known.

        Returns:
            The most misses in it, shape (policies, s); inf where memory tells nothing.
        """
        most = np.full((len(self._is_lru), len(self._sizes_bytes)), np.inf)
        if memory is None:
            return most
        self._given_bytes += memory.mapped_bytes
        new_lines = memory.mapped_bytes / self._line_bytes
        # What was there at the attach is counted to several windows where these ended together.
        ever_bytes = max(self._given_bytes, memory.resident_bytes)
        most[:, self._sizes_bytes >= ever_bytes] = new_lines
        for span in _SPANS:
            if len(self._course) < span:
                break
            given_bytes, had_bytes = self._course[-span]
            touched_bytes = had_bytes + self._given_bytes - given_bytes
            late_lines = memory.resident_bytes / self._line_bytes / span
            fits = np.logical_and.outer(self._is_lru, self._sizes_bytes >= touched_bytes)
            most[fits] = np.minimum(most[fits], new_lines + late_lines)
        self._course.append((self._given_bytes, memory.resident_bytes))
        return most
