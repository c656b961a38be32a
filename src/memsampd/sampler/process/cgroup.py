"""What the control groups of a process allow it: CPU time and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # of version 1, where "no limit" is a number


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limits of a process's control group and of those around it.

    Attributes:
        cpus: CPU time allowed in a second, in seconds; None: there is no quota.
        period_seconds: it is granted anew so often; 0 without a quota.
        throttled_share: share of these periods in which the group had to wait for the next one,
            since it was made; None where that is not told.
        memory_bytes: limit; None: there is none.
        memory_used_bytes: of that limit, page cache included; 0 without a limit.
    """

    cpus: float | None = None
    period_seconds: float = 0.0
    throttled_share: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int = 0


def read_limits(pid: int, root: Path = Path("/")) -> CgroupLimits:
    """Read the limits of a process; what cannot be read counts as no limit.

    Args:
        pid: the process.
        root: where proc and sys are.
    """
    no_quota: tuple[float | None, float, float | None] = (None, 0.0, None)
    no_limit: tuple[int | None, int] = (None, 0)
    quotas = (_quota(each) for each in _groups(pid, "cpu", root))
    limits = (_memory(each) for each in _groups(pid, "memory", root))
    tightest = min((each for each in quotas if each), key=itemgetter(0), default=None)
    cpus, period_seconds, throttled_share = tightest or no_quota
    memory_bytes, used_bytes = min((each for each in limits if each), default=None) or no_limit
    return CgroupLimits(cpus, period_seconds, throttled_share, memory_bytes, used_bytes)


def memory_room_bytes(pid: int, root: Path = Path("/")) -> int | None:
    """Return how much memory a process's groups, and those around them, still leave to it.

    Page cache counts as left: the kernel gives it up first.

    Args:
        pid: the process.
        root: where proc and sys are.

    Returns:
        What the group leaves that leaves least, whichever has the lowest limit; None: none has one.
    """
    rooms = []
    for group in _groups(pid, "memory", root):
        if (found := _memory(group)) is not None:
            limit_bytes, used_bytes = found
            rooms.append(limit_bytes - max(used_bytes - _page_cache_bytes(group), 0))
    return max(min(rooms), 0) if rooms else None


def _groups(pid: int, controller: str, root: Path) -> Iterator[Path]:
    """Yield directories of a process's group and of those around it, where a controller is."""
    try:
        # Names of groups may hold what else counts as the end of a line.
        lines = os.fsdecode((root / f"proc/{pid}/cgroup").read_bytes()).split("\n")
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            top = mounted / controller
        elif number == "0" and not controllers:
            top = mounted if (mounted / "cgroup.controllers").exists() else mounted / "unified"
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        if ".." not in parts:  # else it lies outside of what is mounted here
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth])


def _quota(group: Path) -> tuple[float, float, float | None] | None:
    """CPUs, period in seconds, throttled share."""
    words = _words(group / "cpu.max")  # version 2
    if len(words) != 2:
        words = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    allowed, period = (int(word) for word in words)
    counts = _counts(group / "cpu.stat")
    periods = counts.get("nr_periods", 0)
    throttled = counts.get("nr_throttled", 0) / periods if periods else None
    return allowed / period, period / 1e6, throttled


def _memory(group: Path) -> tuple[int, int] | None:
    """Limit and what is used of it, bytes."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        words = _words(group / limit)
        if words and words[0].isdigit() and int(words[0]) < _UNLIMITED_BYTES:
            now = _words(group / used)
            return int(words[0]), int(now[0]) if now and now[0].isdigit() else 0
    return None


def _page_cache_bytes(group: Path) -> int:
    """Of a group and those in it, which version 1 calls a total."""
    counts = _counts(group / "memory.stat")
    names = ("inactive_file", "active_file")
    return sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in names)


def _counts(path: Path) -> dict[str, int]:
    """Return a file of names and numbers."""
    pairs = zip(*(iter(_words(path)),) * 2, strict=False)
    return {name: int(count) for name, count in pairs if count.isdigit()}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
