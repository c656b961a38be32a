"""Every tenth window."""

from __future__ import annotations

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule

_EVERY = 10


class Periodic(BudgetedSchedule):
    """Profiles every tenth window, whatever its phase.

    Args: see the base.
    """

    name = "periodic"

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        since, self._skipped = self._skipped, 0
        if window_index % _EVERY > since:
            return Decision(False, "not-due")
        return self._take("periodic")
