"""Making the target collect dead shadows, so that no zombie stays.

A shadow is a child of the target that sends no signal when it ends and that ordinary ``wait`` does
not see. Only its parent can collect it: a ``wait4`` that names it is injected.
"""

from __future__ import annotations

import errno
import signal
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.process.identity import PROC, read_stat
from memsampd.sampler.process.status import list_threads, read_status
from memsampd.sampler.shadow.site import SiteFinder

SHADOW_NAME = "memsampd-shadow"
_PAUSE_SECONDS = 0.002
_AT_ONCE = 16


def needs_seccomp_suspended(pid: int, proc: Path = PROC) -> bool:
    """Whether a filter could refuse, or punish, injected system calls."""
    try:
        return read_status(pid, proc).seccomp_mode != 0
    except OSError:
        return False


def is_gone(pid: int, proc: Path) -> bool:
    """Whether it really is: in the midst of an exec, a process is unreadable too."""
    try:
        return read_stat(pid, proc).is_dead
    except OSError:
        return True


def _threads_by_state(pid: int, any_state: bool, proc: Path) -> list[tuple[int, bool]]:
    """Threads to try: running ones first; sleeping ones, interruptible only, if allowed."""
    running, sleeping = [], []
    for tid in list_threads(pid, proc):
        try:
            state = read_stat(tid, proc / str(pid) / "task").state
        except OSError:
            continue
        if state == "R":
            running.append((tid, False))
        elif state == "S" and any_state:
            sleeping.append((tid, True))
    return running + sleeping


def collect(
    pid: int,
    ns_pids: Sequence[int],
    finder: SiteFinder,
    *,
    any_state: bool,
    patience_seconds: float,
    proc: Path = PROC,
) -> tuple[list[int], float, int]:
    """Make ``pid`` collect its dead children (as numbered in its own namespace), in one stop.

    Args:
        pid: the target.
        ns_pids: the dead shadows.
        finder: finds where to inject.
        any_state: interrupt a sleeping thread if none runs (its system call is then restarted).
        patience_seconds: how long to wait for a thread in a state that allows it.
        proc: root of the proc file system.

    Returns:
        Those that are left, the seconds for which a thread was stopped, and how often.
    """
    give_up = time.monotonic() + patience_seconds
    stopped_seconds, stops = 0.0, 0
    left = list(ns_pids)
    while True:
        try:
            site = finder.find()
        except CaptureError as error:
            if error.reason == "gone" and is_gone(pid, proc):
                return [], stopped_seconds, stops
            site = None
        suspend = needs_seccomp_suspended(pid, proc)
        threads = _threads_by_state(pid, any_state, proc) if site else []
        for tid, sleeping in threads:
            assert site is not None
            some = array("q", left[:_AT_ONCE])
            status, _, results, seconds = _core.shadow_reap(
                tid, some.tobytes(), site.for_core(), sleeping, suspend
            )
            stopped_seconds += seconds
            stops += seconds > 0
            if status == "ok":
                errors = dict(zip(some, array("q", results), strict=True))
                left = [each for each in left if errors.get(each, -1) not in (0, errno.ECHILD)]
            if not left:
                return [], stopped_seconds, stops
        if time.monotonic() >= give_up:
            return left, stopped_seconds, stops
        time.sleep(_PAUSE_SECONDS)


def leftovers(
    pid: int, proc: Path = PROC, *, since_ticks: int | None = None
) -> list[tuple[int, int]]:
    """Dead shadows that a killed memsampd left with this process: (pid, pid in its namespace).

    They are children that end without a signal, which few programs have, and bear our name. One
    that memsampd did not come to naming ended with a status of its own, or was killed with its
    tracer; or (only for who knows that shadows were due) it was born since.

    Args:
        pid: the target.
        proc: root of the proc file system.
        since_ticks: children born since then (clock ticks since boot) are shadows.
    """
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = read_stat(int(entry.name), proc)
            if stat.parent_pid != pid or stat.state != "Z":
                continue
            if stat.exit_signal != 0:
                continue
            is_named = stat.command == SHADOW_NAME
            ended_so = stat.exit_code in (_core.SHADOW_EXIT_STATUS << 8, signal.SIGKILL)
            is_due = since_ticks is not None and stat.start_ticks >= since_ticks
            if not (is_named or ended_so or is_due):
                continue
            found.append((stat.pid, namespaced_pid(stat.pid, proc)))
        except OSError:
            continue
    return found


def namespaced_pid(pid: int, proc: Path = PROC) -> int:
    """The number of a process in its own, innermost PID namespace."""
    numbers = read_status(pid, proc).ns_pids
    return numbers[-1] if numbers else pid
