"""What all schedules have in common: paying for bursts and choosing their length and moment."""

from __future__ import annotations

import math
import random

from memsampd.phases.protocols import Schedule
from memsampd.phases.records import Decision
from memsampd.phases.schedule.budget import BurstShape, CostModel, TokenBucket
from memsampd.phases.schedule.lengths import BurstLengths


class BudgetedSchedule(Schedule):
    """Base of the schedules: the budget, the cost model and the random moment in the window.

    Args:
        rng: source of chance.
        window_seconds: CPU time of a window; bursts start at a moment drawn evenly from it.
        share: share of the target's CPU time that bursts may cost; ``inf`` for no limit.
        allowance_seconds: CPU seconds that may be spent at once, see
            :class:`~memsampd.phases.schedule.budget.TokenBucket`.
        shape: length of bursts and initial estimate of their cost.
    """

    takes_bursts = True

    def __init__(
        self,
        rng: random.Random,
        window_seconds: float = 0.1,
        share: float = 0.01,
        allowance_seconds: float = 0.05,
        shape: BurstShape | None = None,
    ) -> None:
        shape = shape or BurstShape()
        self._rng = rng
        self._window_seconds = window_seconds
        self._shape = shape
        self._costs = CostModel(shape)
        self._lengths = BurstLengths(shape)
        self._bucket = TokenBucket(share, allowance_seconds)
        self._skipped = 0  # windows, since somebody asked

    @property
    def balance_seconds(self) -> float:
        """CPU seconds that may be spent now; negative while a debt is worked off."""
        return self._bucket.balance_seconds

    def spend(self, accesses: int, cost_seconds: float) -> None:
        """Pay for a burst.

        Args:
            accesses: its length.
            cost_seconds: what it cost the target.
        """
        self._bucket.spend(cost_seconds)
        self._costs.learn(accesses, cost_seconds)

    def skip(self, phase: int) -> None:
        """Note that a window of this phase is over, and that nobody asked about it."""
        self._skipped += 1

    def windows_left(self, phase: int | None) -> float:
        """Return after how many windows of a phase a burst will be due: that is not known."""
        return math.inf

    def charge(self, cost_seconds: float) -> None:
        """Pay for something else than a burst: it leaves less for these."""
        self._bucket.spend(cost_seconds)

    def elapse(self, cpu_seconds: float) -> None:
        """Tell how much CPU time the target has used since the last call: it feeds the budget."""
        self._bucket.elapse(cpu_seconds, self._savings_seconds())

    @property
    def can_pay(self) -> bool:
        """Whether the budget holds enough for the shortest burst."""
        return self._costs.affordable(self.balance_seconds) > 0

    def is_new(self, phase: int | None) -> bool:
        """Whether a phase has no burst yet. No matter if phases do not."""
        return False

    def restart(self) -> None:
        """Forget all phases: another program runs. What was spent stays spent."""
        self._lengths = BurstLengths(self._shape)

    def _savings_seconds(self) -> float:
        """What may be saved up at most if the allowance is smaller: a full burst."""
        return self._costs.predict(self._shape.max_accesses)

    def _take(
        self,
        reason: str,
        lengths: BurstLengths | None = None,
        reserve_seconds: float = 0.0,
        *,
        may_be_long: bool = True,
    ) -> Decision:
        """Profile if the budget allows.

        Args:
            reason: why the window is wanted.
            lengths: say how long the burst is to be; by default those of the whole session.
            reserve_seconds: what must be left afterwards.
            may_be_long: bursts of the usual length leave something open.
        """
        affordable = self._costs.affordable(self.balance_seconds - reserve_seconds)
        accesses = (lengths or self._lengths).choose(affordable, may_be_long=may_be_long)
        if not accesses:
            return Decision(False, "budget")
        return Decision(True, reason, accesses, self._rng.uniform(0, self._window_seconds))
