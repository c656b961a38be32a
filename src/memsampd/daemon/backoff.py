"""Pauses after refusals that the next window will not change."""

from __future__ import annotations

_LONGEST_WINDOWS = 64


class BackOff:
    """Doubles the pause with each refusal, in windows, up to a limit; a burst ends it."""

    def __init__(self) -> None:
        self._pause_windows = 0
        self._until_index = 0

    def refused(self, window_index: int) -> None:
        """A burst was refused in or after this window."""
        self._pause_windows = min(max(1, 2 * self._pause_windows), _LONGEST_WINDOWS)
        self._until_index = window_index + self._pause_windows

    def succeeded(self) -> None:
        """A burst was taken."""
        self._pause_windows = self._until_index = 0

    @property
    def is_on(self) -> bool:
        """Whether the last burst that was asked for was refused."""
        return self._pause_windows > 0

    def waits(self, window_index: int) -> bool:
        """Whether no burst is to be asked for after this window."""
        return window_index < self._until_index
