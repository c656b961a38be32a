"""Which way of timing serves for the code of a burst (docs/clock.md has the figures)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from memsampd.sampler.clock.arrivals import HITS, time_arrivals
from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.held import find_milestones, is_warmed
from memsampd.sampler.clock.landmarks import Landmark, find_landmark
from memsampd.sampler.clock.moments import take_moments
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.clock.replay import time_replayed
from memsampd.sampler.records import TimedStretch

TYPICAL_RATE = 3e8
"""Accesses per CPU second where nothing is known yet."""

MIN_ROWS = 20_000
"""Shorter bursts show no landmark, and their time is lost in that of the hits."""


MOMENTS_SECONDS = (3e-3, 3.3e-3, 4e-3)
"""CPU time from the request to the moments of a replay. The first is late: opening the events has
disturbed caches. The last one ends a stretch that is long against what an interrupt costs; the one
before is for code that is too fast, or overwrites too soon what it reads."""

REPLAYED_ROWS = 2_000_000
_MOMENTS_PATIENCE_SECONDS = 0.1


class Replayer(Protocol):
    """What a replica does for the clock."""

    def rows_from(self, registers: bytes, max_rows: int) -> Rows:
        """Run from these registers (struct user_regs_struct) on the memory as it is now."""

    def registers_at(self, rows: int, ip: int) -> bytes | None:
        """Registers of that run after so many rows, when it stands at an instruction."""

    def read_code(self, address: int, size_bytes: int) -> bytes:
        """Code of the program, or less where it ends."""


class Way(StrEnum):
    """How the code of a burst is timed."""

    ARRIVALS = "arrivals"  # now, in the running program
    HELD = "held"  # with the next burst of this code: armed during its hold
    REPLAY = "replay"  # now: moments first, the replay after the last one


@dataclass(frozen=True, slots=True)
class Choice:
    """What serves.

    Attributes:
        way: None where nothing does.
        reason: why not a better way, or why none.
        landmark: for arrivals.
    """

    way: Way | None
    reason: str = ""
    landmark: Landmark | None = None


def choose_way(
    rows: Rows,
    costs: HitCosts,
    *,
    expected_rate: float = TYPICAL_RATE,
    can_replay: bool = True,
    hits: int = HITS,
) -> Choice:
    """Choose by the shape of a burst, after its hold: this takes some 20 ns an access.

    Arrivals are preferred: they need no replay, and what they time is not disturbed. Without a
    landmark, a burst of few new lines is timed while held. What waits for memory is replayed.

    Args:
        rows: the burst.
        costs: of hits.
        expected_rate: accesses per CPU second, as far as known.
        can_replay: whether a replica can be run from given registers.
        hits: how many arrivals may be counted.
    """
    if len(rows) < MIN_ROWS and not can_replay:
        return Choice(None, f"the burst has {len(rows)} accesses, {MIN_ROWS} are needed")
    if len(rows) >= MIN_ROWS:
        landmark = find_landmark(
            rows,
            hits=hits,
            hit_seconds=max(costs.execute_seconds, costs.access_seconds),
            expected_rate=expected_rate,
        )
        if landmark is not None:
            return Choice(Way.ARRIVALS, landmark=landmark)
        milestones = find_milestones(rows)
        if len(milestones) >= 2:
            first, last = milestones[0].row, milestones[-1].row
            if not is_warmed(rows, first, last, (last - first) / expected_rate):
                return Choice(Way.HELD, "nothing recurs steadily at a distance")
    if can_replay:
        return Choice(Way.REPLAY, "nothing recurs steadily, and new lines all the time")
    return Choice(None, "nothing recurs steadily, and reading its pages makes it faster")


def time_now(
    tid: int, choice: Choice, costs: HitCosts, replayer: Replayer | None = None
) -> TimedStretch | Untimed:
    """Time the running thread as was chosen for its code; by a replay where that fails.

    Args:
        tid: the thread, not held.
        choice: for a recent burst of it.
        costs: of hits.
        replayer: runs replays, if that can be done.

    Raises:
        MemsampdError: an event cannot be had (the debug registers are taken, ...).
    """
    timed: TimedStretch | Untimed = Untimed("no-way", choice.reason or "only while held")
    if choice.landmark is not None:
        timed = time_arrivals(tid, choice.landmark, costs)
    if isinstance(timed, TimedStretch) or replayer is None:
        return timed
    moments = take_moments(tid, MOMENTS_SECONDS, _MOMENTS_PATIENCE_SECONDS)
    if not moments:
        return Untimed("few-moments", "the thread did not run", timed.hits, timed.hit_seconds)
    replayed = time_replayed(
        moments,
        replayer.rows_from(moments[0].registers, REPLAYED_ROWS),
        replayer.read_code,
        costs.moment_seconds,
        replayer.registers_at,
    )
    return replace(
        replayed,
        hits=replayed.hits + timed.hits,
        hit_seconds=replayed.hit_seconds + timed.hit_seconds,
    )
