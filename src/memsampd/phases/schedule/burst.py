"""Windows drawn at random."""

from __future__ import annotations

import random

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import (
    DEFAULT_ALLOWANCE_SECONDS,
    DEFAULT_SHARE,
    DEFAULT_WINDOW_SECONDS,
    BudgetedSchedule,
)
from memsampd.phases.schedule.budget import BurstShape


class RandomBursts(BudgetedSchedule):
    """Profiles each window with the same chance, whatever its phase.

    The gaps are geometric, the whole-number kind of exponential: unlike a fixed period they
    cannot fall into step with the program.

    Args:
        rng, window_seconds, share, allowance_seconds, shape: see the base.
        mean_gap: windows from one burst to the next on average.
    """

    name = "burst"

    def __init__(
        self,
        rng: random.Random,
        window_seconds: float = DEFAULT_WINDOW_SECONDS,
        share: float = DEFAULT_SHARE,
        allowance_seconds: float = DEFAULT_ALLOWANCE_SECONDS,
        shape: BurstShape | None = None,
        mean_gap: float = 10.0,
    ) -> None:
        if mean_gap < 1:
            raise ValueError("mean_gap is at least 1")
        super().__init__(rng, window_seconds, share, allowance_seconds, shape)
        self._chance = 1 / mean_gap

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        windows, self._skipped = 1 + self._skipped, 0
        if self._rng.random() < (1 - self._chance) ** windows:
            return Decision(False, "not-due")
        return self._take("random")
