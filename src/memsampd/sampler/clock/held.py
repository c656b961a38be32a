"""Timing the very accesses of a burst: breakpoints that are armed while the thread is held.

The burst says what the thread will do next, so the first touch of a line after a quarter, a half,
three quarters and all of it is hit after exactly so many accesses. Reading pages for the burst
brings them into the CPU's caches: code that waits for memory on them runs too fast here, so a
stretch that touches many new lines for its time is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.closing import Closing
from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.hits import ACCESS, GRANULE_BYTES, POINTS_MAX, Hits, read_hits
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.records import TimedStretch

SHARES = (0.25, 0.5, 0.75, 1.0)
_CANDIDATES = 512  # rows before each share that are looked at
_BUCKETS = 1 << 16
_HASH = np.uint64(0x9E3779B97F4A7C15)
_LINE_SHIFT = np.uint64(6)
_UNMAPPED = 64  # below the lowest address that programs may map
_PATIENCE_SECONDS = 0.1
_COST_DOUBT = 0.3
# What a line from memory takes that our reading has brought near, and how much of that is borne.
_WARMED_SECONDS = 100e-9
_MAX_WARMED = 0.1


@dataclass(frozen=True, slots=True)
class Milestone:
    """A place of a burst that can be seen from outside.

    Attributes:
        row: the accesses before it.
        address: of 8 bytes that are touched there, and not before.
    """

    row: int
    address: int


def find_milestones(rows: Rows, shares: Sequence[float] = SHARES) -> list[Milestone]:
    """First touches of lines shortly before these shares of a burst; at most four, ascending.

    Some 5 ns an access: this is done while the thread is held.
    """
    line = rows.address >> _LINE_SHIFT
    ends = [round(share * len(rows)) for share in shares[:POINTS_MAX]]
    nears = [np.arange(max(0, end - _CANDIDATES), end) for end in ends]
    candidates = np.setdiff1d(line[np.concatenate(nears)], line[:: _CANDIDATES // 4])
    if not len(candidates):
        return []
    wanted = np.zeros(_BUCKETS, np.bool_)
    wanted[_bucket(candidates)] = True
    at = np.flatnonzero(wanted[_bucket(line)])
    at = at[np.isin(line[at], candidates)]
    fresh = at[np.unique(line[at], return_index=True)[1]]
    fresh = fresh[~np.isin(line[fresh], _second_lines(rows))]
    fresh.sort()
    found: list[Milestone] = []
    for near in nears:
        of_share = fresh[
            np.searchsorted(fresh, near[0]) : np.searchsorted(fresh, near[-1], "right")
        ]
        if len(of_share) and (not found or of_share[-1] > found[-1].row):
            row = int(of_share[-1])
            found.append(Milestone(row, int(rows.address[row]) & -GRANULE_BYTES))
    return found


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (keys * _HASH) >> np.uint64(48)


def _second_lines(rows: Rows) -> NDArray[np.uint64]:
    """Lines that references cross into."""
    offset = rows.address.astype(np.uint8) & np.uint8(63)
    crossing = np.flatnonzero(offset + rows.size_bytes > 64)
    return (rows.address[crossing] >> _LINE_SHIFT) + np.uint64(1)


def fresh_lines(rows: Rows, first: int, last: int) -> int:
    """How many lines are touched between two rows, and not before."""
    line = rows.address >> _LINE_SHIFT
    before = np.unique(line[:first])
    return len(np.setdiff1d(line[first:last], before))


def is_warmed(rows: Rows, first: int, last: int, cpu_seconds: float) -> bool:
    """Whether reading its pages may have made a stretch of so many seconds notably faster."""
    return fresh_lines(rows, first, last) * _WARMED_SECONDS > _MAX_WARMED * cpu_seconds


class HeldClock(Closing):
    """Breakpoints that wait, opened, for a burst: only their addresses are set during a hold.

    One serves for one hold.

    Args:
        tid: the thread.

    Raises:
        MemsampdError: they cannot be had (the debug registers are taken, ...).
    """

    def __init__(self, tid: int) -> None:
        try:
            self._points = _core.Breakpoints(tid, [(ACCESS, _UNMAPPED)] * POINTS_MAX, 1)
        except OSError as error:
            raise explain_refusal(error, f"breakpoints on thread {tid}") from error

    def arm(self, milestones: Sequence[Milestone]) -> None:
        """Set them; the thread is held where the burst began.

        Raises:
            MemsampdError: the kernel refuses an address, or the thread is gone.
        """
        addresses = [milestone.address for milestone in milestones]
        try:
            self._points.retarget(addresses + [_UNMAPPED] * (POINTS_MAX - len(addresses)))
            self._points.arm()
        except OSError as error:
            raise explain_refusal(error, "moving breakpoints") from error

    def finish(
        self,
        rows: Rows,
        milestones: Sequence[Milestone],
        costs: HitCosts,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> TimedStretch | Untimed:
        """Wait for the hits of the released thread, and tell its rate; closes."""
        with self:
            self._points.wait(len(milestones), patience_seconds)
            hits = read_hits(self._points)
        return rate_of(hits, rows, milestones, costs.access_seconds)

    def close(self) -> None:
        """Give the debug registers back; may be called twice."""
        self._points.close()


def rate_of(
    hits: Hits, rows: Rows, milestones: Sequence[Milestone], hit_seconds: float
) -> TimedStretch | Untimed:
    """What the hits at milestones tell: from the first to the last one that came."""
    count = len(hits)
    lost = count * hit_seconds
    if count < 2:
        return Untimed("few-hits", f"{count} of {len(milestones)} milestones came", count, lost)
    if not np.array_equal(hits.point, np.arange(count)):
        return Untimed("order", "the program took another course than the burst", count, lost)
    seconds = float(hits.cpu_seconds[-1] - hits.cpu_seconds[0]) - (count - 1) * hit_seconds
    if seconds < (count - 1) * hit_seconds:
        return Untimed("dense", "hits cost more than what lies between", count, lost)
    first, last = milestones[0].row, milestones[count - 1].row
    if is_warmed(rows, first, last, seconds):
        return Untimed("warmed", "reading its pages brought what it waits for", count, lost)
    error = _COST_DOUBT * (count - 1) * hit_seconds / seconds
    return TimedStretch(last - first, seconds, "held", count, lost, error)
