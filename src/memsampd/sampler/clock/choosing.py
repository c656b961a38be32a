"""Which way of timing serves for the code of a burst (docs/clock.md has the figures)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memsampd.sampler.clock.arrivals import HITS
from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.held import find_milestones, is_warmed
from memsampd.sampler.clock.landmarks import Landmark, find_landmark
from memsampd.sampler.clock.records import Rows

TYPICAL_RATE = 3e8
"""Accesses per CPU second where nothing is known yet."""

MIN_ROWS = 20_000
"""Shorter bursts show no landmark, and their time is lost in that of the hits."""


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
