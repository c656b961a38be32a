"""How often predictions came true."""

from __future__ import annotations

from collections import deque


class AccuracyTracker:
    """Share of predictions that came true, overall and of late.

    Args:
        recent: predictions that count as recent.

    Examples:
        >>> tracker = AccuracyTracker(recent=2)
        >>> for predicted, actual in ((0, 1), (1, 1), (1, 1)):
        ...     tracker.update(predicted, actual)
        >>> round(tracker.overall, 2), tracker.recent
        (0.67, 1.0)
    """

    def __init__(self, recent: int = 200) -> None:
        self._recent: deque[bool] = deque(maxlen=recent)
        self._right = 0
        self._total = 0

    def update(self, predicted: int | None, actual: int) -> None:
        """Compare a prediction with what came; no prediction (None) is not counted."""
        if predicted is None:
            return
        self._recent.append(predicted == actual)
        self._right += predicted == actual
        self._total += 1

    @property
    def overall(self) -> float | None:
        """Share of all predictions (0..1); None before the first."""
        return self._right / self._total if self._total else None

    @property
    def recent(self) -> float | None:
        """Share of the last ones (0..1); None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None
