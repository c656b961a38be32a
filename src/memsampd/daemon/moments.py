"""When a scout is observed, and for how long it stays out: decided while it is."""

from __future__ import annotations

import random
from collections.abc import Iterator

# From one moment to the next on average: not so short that observing takes most of the time, for
# the target does not wait meanwhile.
SHORTEST_GAP_SECONDS = 0.08
LONGEST_GAP_SECONDS = 1.0
# What a stop is worth at least, and the parts that the time to the next one is divided into.
FEWEST_MOMENTS = 16


class Moments:
    """The gaps between the moments of one scout, asked for one by one.

    It stays out until another stop can be paid for: so what runs meanwhile is seen, though no more
    often than time allows. Gaps are random, so as not to fall into step with the program.

    One thread asks, another may set the attributes meanwhile.

    Args:
        rng: draws the gaps.
        most: moments at most, the stop's own among them.
        gap_seconds: mean gap; None: a sixteenth of the time to the next stop, within limits.
        until_next_seconds: until then, as far as is known at the beginning.

    Attributes:
        until_next_seconds: time until another stop can be paid for, as known now.
        is_over: it is to come back now.
    """

    def __init__(
        self,
        rng: random.Random,
        most: int,
        gap_seconds: float | None,
        until_next_seconds: float,
    ) -> None:
        self._rng = rng
        self._most = most
        self._gap_seconds = gap_seconds
        self.until_next_seconds = until_next_seconds
        self.is_over = False

    def __iter__(self) -> Iterator[float]:
        for seen in range(1, self._most):
            if self.is_over or (self.until_next_seconds <= 0 and seen >= FEWEST_MOMENTS):
                return
            yield self._rng.uniform(0.5, 1.5) * self._mean_seconds()

    def _mean_seconds(self) -> float:
        if self._gap_seconds is not None:
            return self._gap_seconds
        wanted = self.until_next_seconds / FEWEST_MOMENTS
        return min(max(wanted, SHORTEST_GAP_SECONDS), LONGEST_GAP_SECONDS)
