"""How long the next burst is to be."""

from __future__ import annotations

from memsampd.phases.schedule.budget import BurstShape

_BURSTS_A_LONG_ONE = 8


class BurstLengths:
    """Says which of the bursts of one phase, or of a session, are long ones.

    The first is of the usual length, so that there is an answer soon; the second is long, for
    until then nothing is known of large caches; then every eighth. A long one that cannot be paid
    for stays due, and bursts of the usual length are taken meanwhile.

    Args:
        shape: the lengths.
        had_long: there was a long one before.
    """

    def __init__(self, shape: BurstShape, *, had_long: bool = False) -> None:
        self._shape = shape
        self._since_long = 1 if had_long else _BURSTS_A_LONG_ONE - 1

    def choose(self, affordable_accesses: int, *, may_be_long: bool = True) -> int:
        """Return the length of the next burst.

        Args:
            affordable_accesses: the longest that can be paid for; 0 if none can.
            may_be_long: bursts of the usual length leave something open; else a long one stays due.
        """
        shape = self._shape
        if not affordable_accesses:
            return 0
        if (
            may_be_long
            and self._since_long >= _BURSTS_A_LONG_ONE
            and affordable_accesses >= shape.max_accesses
        ):
            self._since_long = 1
            return shape.max_accesses
        self._since_long += 1
        return min(affordable_accesses, shape.usual_accesses)
