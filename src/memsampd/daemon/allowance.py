"""What memsampd's own processes may use, and what of that is taken from the target."""

from __future__ import annotations

# At the start there must be something to get the first curves with: as if the target had used so
# much CPU time already. By default that is a second.
_GRANTED_TARGET_SECONDS = 20.0
# A program with as many busy threads as CPUs took 6 % longer for what memsampd used. So of what is
# granted half may be taken from the target, and later bursts may take as much as they may cost it
# otherwise. (Were turns part of that, nothing would be left for bursts of many programs.)
_TAKEN_PART = 0.5


class Allowance:
    """Adds up what the target's CPU time allows.

    Where no CPU is idle, what memsampd uses is taken from all who run, from the target as much as
    is its part of the CPUs. Less is allowed then. What was allowed once stays so: whether CPUs are
    idle changes.

    Args:
        own_cpu_share: CPU seconds that memsampd may use a CPU second of the target.
        budget_share: share of the target's CPU time that bursts may take from it.
        cpus: that memsampd may run on.

    Attributes:
        taken_seconds: own CPU time that was taken from the target so far.
        earned_seconds: own CPU time that the target's allows so far.
    """

    def __init__(self, own_cpu_share: float, budget_share: float, cpus: float) -> None:
        self._own_cpu_share = self._present_share = own_cpu_share
        self._budget_share = budget_share
        self._cpus = cpus
        self._used_seconds = self._turns_seconds = 0.0
        self._granted_part, self._granted_for_seconds = 1.0, 0.0
        self.taken_seconds = self.earned_seconds = 0.0

    @property
    def granted_seconds(self) -> float:
        """Own CPU time that there is at the start, and in any case."""
        return self._granted_part * self._own_cpu_share * _GRANTED_TARGET_SECONDS

    def earned_after(self, target_cpu_seconds: float) -> float:
        """What will have been earned when the target has used so much more."""
        return self.earned_seconds + self._present_share * target_cpu_seconds

    def tell(
        self,
        passed_seconds: float,
        target_cpu_seconds: float,
        used_seconds: float,
        turns_seconds: float,
        target_cpus: float,
    ) -> None:
        """Note what has happened since the last time.

        Args:
            passed_seconds: wall time since then.
            target_cpu_seconds: what the target has used since then.
            used_seconds: CPU time of memsampd's so far.
            turns_seconds: of that, the start and the turns.
            target_cpus: how many CPUs the target keeps busy; 0 while a CPU is idle.
        """
        part = min(target_cpus / self._cpus, 1.0)
        self.taken_seconds += part * (used_seconds - self._used_seconds)
        self._present_share, granted_part = self._own_cpu_share, 1.0
        earned = self._own_cpu_share * target_cpu_seconds
        if part > 0:
            granted_part = min(_TAKEN_PART / part, 1.0)
            self._present_share = min(self._budget_share / part, self._own_cpu_share)
            turns = turns_seconds - self._turns_seconds
            earned = min(self._present_share * target_cpu_seconds + turns, earned)
        self.earned_seconds += earned
        self._granted_for_seconds += passed_seconds
        weight = passed_seconds / self._granted_for_seconds if self._granted_for_seconds else 1.0
        self._granted_part += weight * (granted_part - self._granted_part)
        self._used_seconds, self._turns_seconds = used_seconds, turns_seconds
