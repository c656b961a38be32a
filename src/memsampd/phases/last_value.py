"""The baseline of all phase predictors: things stay as they are."""

from __future__ import annotations

from memsampd.phases.records import Prediction


class LastValue:
    """Predicts that the next window's phase is the last one's.

    Examples:
        >>> predictor = LastValue()
        >>> for phase in (0, 0, 0, 1):
        ...     predictor.observe(phase)
        >>> predictor.predict()
        Prediction(phase=1, confidence=0.6666666666666666, method='last-value')
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._seen = 0
        self._stayed = 0

    def observe(self, phase: int) -> None:
        """Learn the phase of the window that just ended."""
        if self._last is not None:
            self._seen += 1
            self._stayed += phase == self._last
        self._last = phase

    def predict(self) -> Prediction:
        """Guess the next one's; its confidence is the share of windows that stayed so far."""
        confidence = self._stayed / self._seen if self._seen else 0.0
        return Prediction(self._last, confidence, "last-value")

    def merge(self, gone: int, into: int) -> None:
        """Forget a phase that turned out to be another."""
        if self._last == gone:
            self._last = into
