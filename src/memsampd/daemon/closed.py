"""Windows that have ended, and which of them a burst belongs to: bursts end after they began."""

from __future__ import annotations

import bisect
from collections import deque

import msgspec

from memsampd.phases.records import Window

_WINDOWS_REMEMBERED = 4096


class ClosedWindow(msgspec.Struct):
    """A window that a burst may still turn out to belong to.

    Attributes:
        index: of the window.
        phase: its phase, merges applied.
        end_seconds: CLOCK_MONOTONIC time of its last sample.
    """

    index: int
    phase: int
    end_seconds: float


class ClosedWindows:
    """Remembers the latest windows."""

    def __init__(self) -> None:
        self._windows: deque[ClosedWindow] = deque(maxlen=_WINDOWS_REMEMBERED)

    def add(self, window: Window, phase: int) -> None:
        """Remember the window that has just ended."""
        self._windows.append(ClosedWindow(window.index, phase, window.end_seconds))

    def merge(self, gone: int, into: int) -> None:
        """Make two phases one."""
        for window in self._windows:
            if window.phase == gone:
                window.phase = into

    def find(self, time_seconds: float) -> ClosedWindow | None:
        """Return the window of a moment, CLOCK_MONOTONIC; None if it has not ended yet."""
        at = bisect.bisect_left(self._windows, time_seconds, key=lambda each: each.end_seconds)
        return self._windows[at] if at < len(self._windows) else None
