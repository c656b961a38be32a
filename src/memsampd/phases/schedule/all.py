"""Every window."""

from __future__ import annotations

import random
from typing import Any

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule


class AllWindows(BudgetedSchedule):
    """Profiles every window, without a budget unless one is given: for studies, not for services.

    Args: see the base.
    """

    name = "all"

    def __init__(self, rng: random.Random, *, share: float = float("inf"), **budget: Any) -> None:
        super().__init__(rng, share=share, **budget)

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        return self._take("all")
