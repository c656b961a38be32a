"""Windows that have ended, and which of them a burst belongs to: bursts end after they began."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass

from memsampd.phases.records import Window

_WINDOWS_REMEMBERED = 4096


@dataclass(slots=True)
class ClosedWindow:
    """A window that a burst may still turn out to belong to.

    Attributes:
        index: of the window.
        phase: its phase, merges applied.
        start_seconds: CLOCK_MONOTONIC time of its first sample.
        end_seconds: CLOCK_MONOTONIC time of its last sample.
        cpu_seconds: CPU time that it covers.
        end_cpu_seconds: CPU time of the target until its end, since the first window.
    """

    index: int
    phase: int
    start_seconds: float
    end_seconds: float
    cpu_seconds: float
    end_cpu_seconds: float

    def cpu_seconds_at(self, time_seconds: float) -> float:
        """CPU time of the target until some time in the window."""
        length_seconds = max(self.end_seconds - self.start_seconds, 1e-9)
        left = min(max((self.end_seconds - time_seconds) / length_seconds, 0.0), 1.0)
        return self.end_cpu_seconds - left * self.cpu_seconds


class ClosedWindows:
    """Remembers the latest windows."""

    def __init__(self) -> None:
        self._windows: deque[ClosedWindow] = deque(maxlen=_WINDOWS_REMEMBERED)
        self._cpu_seconds = 0.0

    def add(self, window: Window, phase: int) -> None:
        """Remember the window that has just ended."""
        self._cpu_seconds += window.cpu_seconds
        self._windows.append(
            ClosedWindow(
                window.index,
                phase,
                window.start_seconds,
                window.end_seconds,
                window.cpu_seconds,
                self._cpu_seconds,
            )
        )

    def merge(self, gone: int, into: int) -> None:
        """Make two phases one."""
        for window in self._windows:
            if window.phase == gone:
                window.phase = into

    def find(self, time_seconds: float, ahead_seconds: float = 0.0) -> ClosedWindow | None:
        """Return the window in which the target did what a burst shows.

        Args:
            time_seconds: CLOCK_MONOTONIC time of the burst's stop.
            ahead_seconds: CPU time from there to the burst.

        Returns:
            The window; None if it has not ended yet.
        """
        stopped_in = self._first_from([w.end_seconds for w in self._windows], time_seconds)
        if stopped_in is None or ahead_seconds == 0:
            return stopped_in
        return self._first_from(
            [window.end_cpu_seconds for window in self._windows],
            stopped_in.cpu_seconds_at(time_seconds) + ahead_seconds,
        )

    def _first_from(self, ends: list[float], moment: float) -> ClosedWindow | None:
        at = bisect.bisect_left(ends, moment)
        return self._windows[at] if at < len(ends) else None
