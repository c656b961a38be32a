"""What the scheduler tells of a thread: for how long it ran and waited, how often it began to."""

from __future__ import annotations

from pathlib import Path

import msgspec

from memsampd.sampler.process.identity import PROC


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
