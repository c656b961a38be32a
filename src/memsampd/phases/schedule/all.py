"""Every window."""

from __future__ import annotations

import random

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import (
    DEFAULT_ALLOWANCE_SECONDS,
    DEFAULT_WINDOW_SECONDS,
    BudgetedSchedule,
)
from memsampd.phases.schedule.budget import BurstShape


class AllWindows(BudgetedSchedule):
    """Profiles every window, without a budget unless one is given: for studies, not for services.

    Args: see the base.
    """

    name = "all"

    def __init__(
        self,
        rng: random.Random,
        window_seconds: float = DEFAULT_WINDOW_SECONDS,
        share: float = float("inf"),
        allowance_seconds: float = DEFAULT_ALLOWANCE_SECONDS,
        shape: BurstShape | None = None,
    ) -> None:
        super().__init__(rng, window_seconds, share, allowance_seconds, shape)

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        return self._take("all")
