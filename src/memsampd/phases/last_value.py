"""The baseline of all phase predictors: things stay as they are."""

from __future__ import annotations


class LastValue:
    """Predicts that the next window's phase is the last one's.

    Examples:
        >>> predictor = LastValue()
        >>> for phase in (0, 0, 0, 1):
        ...     predictor.observe(phase)
        >>> predictor.predict()
        1
    """

    def __init__(self) -> None:
        self._last: int | None = None

    def observe(self, phase: int) -> None:
        """Learn the phase of the window that just ended."""
        self._last = phase

    def predict(self) -> int | None:
        """Guess the next one's; None before anything was seen."""
        return self._last

    def merge(self, gone: int, into: int) -> None:
        """Forget a phase that turned out to be another."""
        if self._last == gone:
            self._last = into
