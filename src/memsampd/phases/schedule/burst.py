"""Windows drawn at random."""

from __future__ import annotations

from memsampd.phases.records import Decision
from memsampd.phases.schedule.base import BudgetedSchedule

_MEAN_GAP = 10.0  # windows


class RandomBursts(BudgetedSchedule):
    """Profiles each window with the same chance, whatever its phase.

    The gaps are geometric, the whole-number kind of exponential: unlike a fixed period they
    cannot fall into step with the program.

    Args: see the base.
    """

    name = "burst"

    def decide(self, window_index: int, predicted_phase: int | None) -> Decision:
        """Say whether the coming window is to be profiled."""
        windows, self._skipped = 1 + self._skipped, 0
        if self._rng.random() < (1 - 1 / _MEAN_GAP) ** windows:
            return Decision(False, "not-due")
        return self._take("random")
