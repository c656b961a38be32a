"""How long the passes of a loop take."""

from __future__ import annotations

from collections import deque

_MINUTE_SECONDS = 60.0


class LongestPass:
    """Knows how long the longest pass of the last minute took."""

    def __init__(self) -> None:
        # When they ended and what they took; each took less than the one before it.
        self._passes: deque[tuple[float, float]] = deque()

    def note(self, now_seconds: float, seconds: float) -> None:
        """A pass has ended.

        Args:
            now_seconds: monotonic time.
            seconds: what it took.
        """
        while self._passes and self._passes[-1][1] <= seconds:
            self._passes.pop()
        self._passes.append((now_seconds, seconds))
        while self._passes[0][0] < now_seconds - _MINUTE_SECONDS:
            self._passes.popleft()

    @property
    def seconds(self) -> float:
        """What it took; 0 before the first one has ended."""
        return self._passes[0][1] if self._passes else 0.0
