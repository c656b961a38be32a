"""Every window."""

from __future__ import annotations

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule


class AllWindows(BudgetedSchedule):
    """Profiles every window: for studies, not for services.

    Args: see the base.
    """

    name = "all"

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        return self._take("all")
