"""How often predictions came true."""

from __future__ import annotations


class AccuracyTracker:
    """Share of predictions that came true.

    Examples:
        >>> tracker = AccuracyTracker()
        >>> for predicted, actual in ((0, 1), (1, 1), (1, 1)):
        ...     tracker.update(predicted, actual)
        >>> round(tracker.overall, 2)
        0.67
    """

    def __init__(self) -> None:
        self._right = 0
        self._total = 0

    def update(self, predicted: int | None, actual: int) -> None:
        """Compare a prediction with what came; no prediction (None) is not counted."""
        if predicted is not None:
            self._right += predicted == actual
            self._total += 1

    @property
    def overall(self) -> float | None:
        """Share of all predictions (0..1); None before the first."""
        return self._right / self._total if self._total else None
