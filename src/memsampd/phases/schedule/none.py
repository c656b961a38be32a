"""No window at all."""

from __future__ import annotations

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule


class NoBursts(BudgetedSchedule):
    """Profiles nothing: phases without curves, at the cost of their detection.

    Args: see the base.
    """

    name = "none"
    takes_bursts = False

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        return Decision(False, "not-due")
