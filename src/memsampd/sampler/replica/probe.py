"""Whether bursts can be taken on this machine: tried on a busy child of our own."""

from __future__ import annotations

import os

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.process.cgroup import read_limits
from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.precedence import Precedence, quota_words, try_precedence
from memsampd.sampler.replica.source import ReplicaSource

_TRIAL = BurstRequest(tid=0, max_accesses=1000, max_stop_seconds=0.02)
_TRIES = 5
_WHERE_REAL_TIME = f"in holds of {_core.HURRIED_MILLISECONDS} ms at most, in real time"
_NOBODY = 65534


def probe() -> list[tuple[str, bool, str]]:
    """Make a replica and take a burst.

    Returns:
        What was tried, whether it works, and what was found: "replica process" (with the part of it
        that could not be had), "replica user", "replica priority", "replica quota", "burst",
        "read-only pages", "kept pages", "procmap_query".
    """
    with busy_child() as child:
        try:
            source = ReplicaSource(child.pid)
        except (OSError, CaptureError) as error:
            return [("replica process", False, str(error))]
        try:
            precedence = try_precedence(source.process())
            found = [
                ("replica process", True, "made, and confined"),
                _look_at_user(source),
                _say_precedence(precedence),
                _look_at_quota(precedence),
            ]
            found.append(_try_burst(source, child.pid))
            features = source.features()
        finally:
            source.close()
    found.append(
        (
            "read-only pages",
            features["can_protect"],
            "stores into read-only memory end a burst, as they would end the program"
            if features["can_protect"]
            else "stores into read-only memory go unnoticed (needs Linux 5.19)",
        )
    )
    found.append(
        (
            "kept pages",
            features["can_keep"],
            "pages of a replica are written over from burst to burst"
            if features["can_keep"]
            else "a replica's pages are made anew for each burst, at more cost (needs Linux 6.4)",
        )
    )
    found.append(
        (
            "procmap_query",
            features["can_query"],
            "the kernel tells of single areas"
            if features["can_query"]
            else "the list of all areas is read while the target is held",
        )
    )
    return found


def _look_at_user(source: ReplicaSource) -> tuple[str, bool, str]:
    """Whether it runs as a user of its own."""
    uid = read_status(source.process()).uid
    if uid == os.geteuid():
        detail = f"it keeps ours ({uid}): other processes of that user may stop, read and re-pin it"
    elif uid == _NOBODY:
        detail = f"{uid} (nobody), whom other processes may be, too"
    else:
        return "replica user", True, f"{uid}, nobody else's"
    return "replica user", False, detail


def _say_precedence(precedence: Precedence) -> tuple[str, bool, str]:
    """Whether it is where the target is held, and before others."""
    name = "replica priority"
    if precedence.is_real_time:
        return name, True, f"{_WHERE_REAL_TIME}: it goes before others on the target's CPU"
    if precedence.is_nicer:
        return name, True, "by its niceness: it has far more of the target's CPU than others"
    if precedence.moves:
        detail = "none: where all CPUs are busy it takes turns with others while a target is held"
    else:
        detail = (
            "none, nor can it be put on the target's CPU, as it is another user's: each of its "
            "stops takes longer while a target is held, and far longer where all CPUs are busy"
        )
    return name, False, detail


def _look_at_quota(precedence: Precedence) -> tuple[str, bool, str]:
    """Whether it may have to wait for CPU time while a target is held."""
    name, words = "replica quota", quota_words(read_limits(os.getpid()))
    if not words:
        return name, True, "none on memsampd's CPU time"
    if precedence.is_real_time:
        return name, True, f"{words}: not {_WHERE_REAL_TIME}"
    return name, False, f"{words}: a target that is held when they are used up waits for the next"


def _try_burst(source: ReplicaSource, pid: int) -> tuple[str, bool, str]:
    problem = "the child was never found at work"
    for _ in range(_TRIES):
        try:
            burst = source.capture(BurstRequest(pid, _TRIAL.max_accesses, _TRIAL.max_stop_seconds))
        except CaptureError as error:
            problem = str(error)
            continue
        if len(burst) > 0:
            held_microseconds = 1e6 * burst.cost.stop_seconds
            return "burst", True, f"{len(burst)} accesses, held for {held_microseconds:.0f} us"
        problem = f"no access before it ended ({burst.end})"
    return "burst", False, problem
