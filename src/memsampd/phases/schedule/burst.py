"""Windows drawn at random."""

from __future__ import annotations

import random
from typing import Any

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule


class RandomBursts(BudgetedSchedule):
    """Profiles each window with the same chance, whatever its phase.

    The gaps are geometric, the whole-number kind of exponential: unlike a fixed period they
    cannot fall into step with the program.

    Args:
        mean_gap: windows from one burst to the next on average.
        rng, budget: see the base.
    """

    name = "burst"

    def __init__(self, rng: random.Random, *, mean_gap: float = 10.0, **budget: Any) -> None:
        if mean_gap < 1:
            raise ValueError("mean_gap is at least 1")
        super().__init__(rng, **budget)
        self._chance = 1 / mean_gap

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        windows, self._skipped = 1 + self._skipped, 0
        if self._rng.random() < (1 - self._chance) ** windows:
            return Decision(False, "not-due")
        return self._take("random")
