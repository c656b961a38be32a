"""The pace of a replica: a rough access rate for bursts that could not be timed in the target.

Translated code takes some three times as long as the program's own, and what it runs on was copied
just now, so it waits less for memory. Rates of unlike code differ a hundredfold, so even this says
more than that all code is equally fast; its error is told with it.
"""

from __future__ import annotations

from memsampd.sampler.records import TimedStretch

PACE = "pace"
"""The method of such a stretch."""
# Time of translated code over that of the program: a median over programs; learnt where a burst was
# timed as well.
FIRST_RATIO = 3.0
_SMALLEST_RATIO, _LARGEST_RATIO = 1.0, 10.0
_LEARNING = 0.2
# A page that no burst had touched lately waits for memory in the target, and not in the replica.
_NEW_PAGE_SECONDS = 80e-9
# Where stops take most of a burst nothing is known but that its code is not faster than this.
_FAST_ACCESS_SECONDS = 1e-9
FIRST_ERROR, LEARNT_ERROR = 0.5, 0.25
_LEARNT_AFTER = 3


class Pace:
    """Tells rates of one process's bursts by how long its replica ran."""

    def __init__(self) -> None:
        self._ratio = FIRST_RATIO
        self._learnt = 0

    def learn(self, run_seconds: float, accesses: int, timed: TimedStretch) -> None:
        """Compare a burst that was timed in the target with how long its replica ran.

        Args:
            run_seconds: for which the replica ran.
            accesses: of the burst.
            timed: some of them.
        """
        ratio = run_seconds / accesses * timed.accesses_per_cpu_second
        ratio = min(max(ratio, _SMALLEST_RATIO), _LARGEST_RATIO)
        self._ratio += _LEARNING * (ratio - self._ratio)
        self._learnt += 1

    def estimate(
        self, run_seconds: float | None, accesses: int, pages_missed: int
    ) -> TimedStretch | None:
        """What the target may take for a burst.

        Args:
            run_seconds: for which the replica ran; None: that is not known.
            accesses: of the burst.
            pages_missed: pages that it touched and that no burst had touched lately.

        Returns:
            None for a burst without accesses.
        """
        if accesses == 0:
            return None
        own = accesses * _FAST_ACCESS_SECONDS if run_seconds is None else run_seconds / self._ratio
        seconds = own + pages_missed * _NEW_PAGE_SECONDS
        is_learnt = self._learnt >= _LEARNT_AFTER and run_seconds is not None
        error = LEARNT_ERROR if is_learnt else FIRST_ERROR
        return TimedStretch(accesses, seconds, PACE, error=error)
