"""How much a process runs."""

from __future__ import annotations

import math

IDLE_LOOK_SECONDS = 2.0
"""For so long it has to use next to nothing to be taken to be idle."""
_IDLE_CPU_SECONDS = 0.002
# How long its CPU use is remembered, where targets are compared by it.
_MEMORY_SECONDS = 30.0


class CpuUse:
    """Follows the CPU time of a process.

    Args:
        now_seconds: monotonic time.

    Attributes:
        share: of a CPU, lately.
        usual_share: of a CPU, over a longer time.
        is_idle: whether it ran between the last two looks.
        ran_seconds: when it was seen to have run last.
    """

    def __init__(self, now_seconds: float) -> None:
        self.share = self.usual_share = 0.0
        self.is_idle = False
        self.ran_seconds = -math.inf
        self.begin(0.0, now_seconds)

    def begin(self, cpu_seconds: float, now_seconds: float) -> None:
        """Follow it from now on.

        Args:
            cpu_seconds: CPU time that it had used by then.
            now_seconds: monotonic time.
        """
        self._seen_cpu_seconds = cpu_seconds
        self._seen_seconds = self._began_seconds = now_seconds

    def look(self, cpu_seconds: float, now_seconds: float) -> bool:
        """Whether it has run since the last look; the same units as for :meth:`begin`."""
        elapsed, used = now_seconds - self._seen_seconds, cpu_seconds - self._seen_cpu_seconds
        if used < _IDLE_CPU_SECONDS and elapsed < IDLE_LOOK_SECONDS:
            return not self.is_idle
        if elapsed > 0:
            self.share = used / elapsed
            part = elapsed / min(now_seconds - self._began_seconds, _MEMORY_SECONDS)
            self.usual_share += min(part, 1.0) * (self.share - self.usual_share)
        self._seen_seconds, self._seen_cpu_seconds = now_seconds, cpu_seconds
        self.is_idle = used < _IDLE_CPU_SECONDS
        if not self.is_idle:
            self.ran_seconds = now_seconds
        return not self.is_idle
