"""What the scheduler tells of a thread: for how long it ran and waited, how often it began to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from memsampd.sampler.process.identity import PROC

_MOST = 4  # threads that are asked about: it takes 15 us each
_REMEMBERED = 256  # threads: those that were asked about longest ago are forgotten


class Scheduled(msgspec.Struct, frozen=True):
    """Since a thread began.

    Attributes:
        ran_ns: its CPU time.
        waited_ns: for how long it was ready to run and had no CPU.
        times: how often it was switched to.
    """

    ran_ns: int = 0
    waited_ns: int = 0
    times: int = 0


def read_scheduled(task: int | str = "thread-self", proc: Path = PROC) -> Scheduled | None:
    """Ask about a thread, by its id; None if it is gone, or this kernel does not tell.

    Args:
        task: the thread; by default the one that asks.
        proc: root of the proc file system, or the ``task`` folder of the thread's process.
    """
    try:
        with open(f"{proc}/{task}/schedstat", "rb", buffering=0) as file:
            ran_ns, waited_ns, times = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return Scheduled(ran_ns, waited_ns, times)


class ThreadTimes:
    """CPU time of the threads of a process, as far as it is asked about.

    Args:
        pid: the process.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._tasks = proc / str(pid) / "task"
        self._ran_ns: dict[int, int] = {}

    def since(self, tids: Iterable[int]) -> dict[int, float]:
        """Return the CPU time of threads since these were last asked about, seconds.

        Those that nobody asked about before, and those that are gone, are left out. So are those
        beyond the most that are asked about, now and the next time: what they used meanwhile would
        be told beside what they did since.

        Args:
            tids: threads that did something, each once.
        """
        told: dict[int, float] = {}
        order = sorted(tids, key=lambda tid: tid not in self._ran_ns)
        for tid in order[_MOST:]:
            self._ran_ns.pop(tid, None)
        for tid in order[:_MOST]:
            now = read_scheduled(tid, self._tasks)
            before = self._ran_ns.pop(tid, None)
            if now is not None:
                self._ran_ns[tid] = now.ran_ns  # the last of them
                if before is not None:
                    told[tid] = 1e-9 * (now.ran_ns - before)
        while len(self._ran_ns) > _REMEMBERED:
            self._ran_ns.pop(next(iter(self._ran_ns)))
        return told
