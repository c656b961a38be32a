"""How long a target may be held: the sum of all holds in any short time is bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_PERIOD_SECONDS = 0.1
_SHORTEST_SECONDS = 0.0002


class HoldLimit:
    """Adds up holds in the last 100 ms of wall time.

    Args:
        now: monotonic time, seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._holds: deque[tuple[float, float]] = deque()  # end, seconds

    def add(self, seconds: float) -> None:
        """Note a hold that has just ended."""
        self._holds.append((self._now(), seconds))

    def lately_seconds(self) -> float:
        """The sum of holds that ended in the last 100 ms."""
        oldest = self._now() - _PERIOD_SECONDS
        while self._holds and self._holds[0][0] < oldest:
            self._holds.popleft()
        return sum(seconds for _, seconds in self._holds)

    def wait(self, most_seconds: float, is_cancelled: Callable[[], bool]) -> None:
        """Wait until at least half of what is allowed in 100 ms may be used, or it is cancelled."""
        wanted = min(max(most_seconds / 2, _SHORTEST_SECONDS), most_seconds)
        while most_seconds - self.lately_seconds() < wanted and not is_cancelled():
            self._sleep(max(self._holds[0][0] + _PERIOD_SECONDS - self._now(), 0.0005))
