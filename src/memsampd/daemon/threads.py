"""Which thread of a process a burst observes, and when it runs."""

from __future__ import annotations

import random
from collections.abc import Mapping

from memsampd.errors import CapabilityError, CaptureError
from memsampd.sampler.perf.sleepers import wait_until_one_runs
from memsampd.sampler.process.identity import PROC, read_stat

# The chosen thread is waited for alone at first, else those that mostly sleep were passed over.
_ALONE_SECONDS = 0.2


def choose_thread(
    pid: int, weights: Mapping[int, float], alive: frozenset[int], rng: random.Random
) -> int:
    """Choose a thread at random, in proportion to how much it has run.

    Args:
        pid: the process; its first thread is chosen where no other is known to have run.
        weights: CPU time of threads lately, in any unit, by id.
        alive: threads that there are now.
        rng: chooses.
    """
    ran = {tid: weight for tid, weight in weights.items() if weight > 0 and tid in alive}
    return rng.choices(list(ran), list(ran.values()))[0] if ran else pid


def wait_for_run(
    pid: int,
    tid: int,
    others: Mapping[int, float],
    alive: frozenset[int],
    seconds: float,
    cancelled_fd: int,
) -> int | None:
    """Wait until the chosen thread runs, or then any of its process; at once if it does now.

    Args:
        pid: the process.
        tid: the chosen thread.
        others: CPU time of threads lately, in any unit, by id: those that used most come first.
        alive: threads that there are now.
        seconds: how long to wait.
        cancelled_fd: ends the wait when there is something to read from it.

    Returns:
        The thread that runs, or has just done so; None if none did.

    Raises:
        CaptureError: they sleep, and cannot be waited for.
    """
    if _runs(pid, tid):
        return tid
    alone_seconds = min(seconds, _ALONE_SECONDS)
    likely = sorted(alive, key=lambda each: -others.get(each, 0.0))
    try:
        found = wait_until_one_runs([tid], alone_seconds, cancelled_fd)
        return found or wait_until_one_runs(likely, seconds - alone_seconds, cancelled_fd)
    except CapabilityError as error:
        cause = f"thread {tid} sleeps, and its next run cannot be waited for: {error.cause}"
        raise CaptureError("not-running", cause, error.remedy) from error


def _runs(pid: int, tid: int) -> bool:
    """Whether a thread runs, or waits for a CPU; one that has ended is nothing to wait for."""
    try:
        return read_stat(tid, PROC / str(pid) / "task").state == "R"
    except OSError:
        return True
