"""How often the threads of a process are switched to, and for which share of the time to sample."""

from __future__ import annotations

import math
from pathlib import Path

from memsampd.sampler.perf.costs import SwitchCost
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.schedstat import Scheduled, read_scheduled
from memsampd.sampler.process.status import list_threads

LEAST_SHARE = 1 / 64
_SHORTEST_PERIOD_SECONDS = 1e-4
_ROOM = 0.7  # of what is allowed: only then is the share doubled again

_LOOK_SECONDS, _LOOK_SECONDS_A_THREAD = 1.0, 0.01  # reading takes 15 us a thread
_MEMORY_SECONDS = 10.0
_LEAST_CPU_SECONDS = 0.1
_KNOWN_CPU_SECONDS = 1.0  # what was before the first look counts for so much


def shortened(period_seconds: float, share: float) -> float:
    """Period of samples while they are taken, so that all in all there are as many, if possible."""
    least = min(_SHORTEST_PERIOD_SECONDS, period_seconds)
    return max(period_seconds * share, least)


def planned_share(
    switches_per_cpu_second: float,
    cost: SwitchCost,
    period_seconds: float,
    allowed_share: float,
    present: float = 1.0,
) -> float:
    """For which share of the time a process is to be sampled, by what switches cost it then.

    Args:
        switches_per_cpu_second: how often its threads are switched to, by their CPU time.
        cost: of a switch.
        period_seconds: CPU time between two samples of a thread that is sampled all the time.
        allowed_share: of its CPU time: so much may sampling take at switches.
        present: the share until now.

    Returns:
        1, or a power of 1/2, ``LEAST_SHARE`` at the least: the largest that is allowed, or the
        present one where more is allowed only just.
    """

    def taken(share: float) -> float:
        often = share * switches_per_cpu_second  # events are closed in between
        return often * cost.sampled_seconds(shortened(period_seconds, share))

    share = present
    while share > LEAST_SHARE and taken(share) > allowed_share:
        share /= 2
    while share >= present and share < 1 and taken(2 * share) <= _ROOM * allowed_share:
        share *= 2
    return share


class SwitchCounter:
    """Counts how often the threads of a process are switched to.

    Each is asked about now and then. What a thread does after it was last asked is not known once
    it has ended.

    Args:
        pid: the process.
        proc: root of the proc file system.

    Attributes:
        switches: since the first look.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid, self._proc = pid, proc
        self.switches = 0
        self._told: dict[int, Scheduled] | None = None
        self._looked_seconds = self._due_seconds = -math.inf
        self._lately = self._cpu_seconds = 0.0

    @property
    def per_cpu_second(self) -> float:
        """Switches in a second of its CPU time, lately; at the first look in its life so far.

        Few, where it has hardly used any: that tells little.
        """
        return self._lately / max(self._cpu_seconds, _LEAST_CPU_SECONDS)

    def look(self, now_seconds: float) -> bool:
        """Ask, if it is time to.

        Args:
            now_seconds: monotonic time.

        Returns:
            Whether it was.
        """
        if now_seconds < self._due_seconds:
            return False
        tasks = self._proc / str(self._pid) / "task"
        asked = {tid: read_scheduled(tid, tasks) for tid in list_threads(self._pid, self._proc)}
        told = {tid: each for tid, each in asked.items() if each is not None}
        before = {} if self._told is None else self._told
        new, used_seconds = 0, 0.0
        for tid, now in told.items():
            last = before.get(tid, Scheduled())
            if now.ran_ns < last.ran_ns:  # another thread, of the same number
                last = Scheduled()
            new += now.times - last.times
            used_seconds += 1e-9 * (now.ran_ns - last.ran_ns)
        if self._told is None:
            part = min(_KNOWN_CPU_SECONDS / max(used_seconds, 1e-9), 1.0)
            self._lately, self._cpu_seconds = part * new, part * used_seconds
        else:
            keep = math.exp((self._looked_seconds - now_seconds) / _MEMORY_SECONDS)
            self.switches += new
            self._lately = keep * self._lately + new
            self._cpu_seconds = keep * self._cpu_seconds + used_seconds
        self._told, self._looked_seconds = told, now_seconds
        pause = max(_LOOK_SECONDS, _LOOK_SECONDS_A_THREAD * len(told))
        self._due_seconds = now_seconds + pause
        return True
