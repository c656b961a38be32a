"""Every k-th window."""

from __future__ import annotations

import random
from typing import Any

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule


class Periodic(BudgetedSchedule):
    """Profiles every k-th window, whatever its phase. Args: see the base; ``every``: k."""

    name = "periodic"

    def __init__(self, rng: random.Random, *, every: int = 10, **budget: Any) -> None:
        if every < 1:
            raise ValueError("every is at least 1")
        super().__init__(rng, **budget)
        self._every = every

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        since, self._skipped = self._skipped, 0
        if window_index % self._every > since:
            return Decision(False, "not-due")
        return self._take("periodic")
