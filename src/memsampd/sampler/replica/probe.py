"""Whether bursts can be taken on this machine: tried on a busy child of our own."""

from __future__ import annotations

import os

from memsampd.errors import CaptureError
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.process.status import read_status
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource

_TRIAL = BurstRequest(tid=0, max_accesses=1000, max_stop_seconds=0.02)
_TRIES = 5
_NOBODY = 65534


def probe() -> list[tuple[str, bool, str]]:
    """Make a replica and take a burst.

    Returns:
        What was tried, whether it works, and what was found: "replica process" (with the part of it
        that could not be had), "replica user", "burst", "read-only pages", "kept pages",
        "procmap_query".
    """
    with busy_child() as child:
        try:
            source = ReplicaSource(child.pid)
        except (OSError, CaptureError) as error:
            return [("replica process", False, str(error))]
        try:
            found = [("replica process", True, "made, and confined"), _look_at_user(source)]
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
