"""The CPU time that memsampd's own processes may use."""

from __future__ import annotations

import time
from collections.abc import Callable

# At the start there must be something to get the first curves with: as if the target had used so
# much CPU time already. By default that is a second, and all that there is in the first ten.
_GRANTED_TARGET_SECONDS = 20.0
_START_SECONDS = 10.0


class OwnCpu:
    """Keeps account of memsampd's processes: this one and the replica.

    What they use beyond their share is not taken back: bursts wait until the target has used
    enough, and for how long is counted. Sampling and results never wait.

    Args:
        share: CPU seconds that may be used a CPU second of the target.
        now: monotonic time in seconds, injected for tests.
        used: CPU time of this process in seconds, injected for tests.

    Attributes:
        share: as given.
        replica_seconds: CPU time of the replica so far.
    """

    def __init__(
        self,
        share: float,
        now: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self.share = share
        self.replica_seconds = 0.0
        self._now = now
        self._used = used
        self._started_seconds = now()
        self._used_at_start = used()
        self._waited_seconds = 0.0
        self._waiting_since: float | None = None

    @property
    def used_seconds(self) -> float:
        """CPU time of all processes so far."""
        return self._used() - self._used_at_start + self.replica_seconds

    @property
    def waited_seconds(self) -> float:
        """Time for which bursts have waited, until now."""
        if self._waiting_since is None:
            return self._waited_seconds
        return self._waited_seconds + self._now() - self._waiting_since

    @property
    def is_waited_for(self) -> bool:
        """Whether bursts wait at present."""
        return self._waiting_since is not None

    def allows_burst(self, target_cpu_seconds: float) -> bool:
        """Whether a burst may be taken now; from a no to the next yes bursts wait.

        Args:
            target_cpu_seconds: CPU time of the target so far.
        """
        is_early = self._now() - self._started_seconds < _START_SECONDS
        counted_seconds = 0.0 if is_early else target_cpu_seconds
        allowed = self.share * max(counted_seconds, _GRANTED_TARGET_SECONDS)
        if self.used_seconds >= allowed:
            if self._waiting_since is None:
                self._waiting_since = self._now()
            return False
        self._waited_seconds, self._waiting_since = self.waited_seconds, None
        return True
