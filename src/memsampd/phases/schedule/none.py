"""No window at all."""

from __future__ import annotations

import random

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule
from memsampd.phases.schedule.budget import BurstShape


class NoBursts(BudgetedSchedule):
    """Profiles nothing: phases without curves, at the cost of their detection.

    Args: see the base.
    """

    name = "none"

    def __init__(
        self,
        rng: random.Random,
        window_seconds: float = 0.1,
        share: float = 0.01,
        allowance_seconds: float = 0.05,
        shape: BurstShape | None = None,
    ) -> None:
        super().__init__(rng, window_seconds, share, allowance_seconds, shape or BurstShape())

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        return Decision(False, "not-due")
