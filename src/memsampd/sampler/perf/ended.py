"""Threads and processes of which no sample comes any more."""

from __future__ import annotations

from collections.abc import Sequence


class Ended:
    """Tells those that have ended when their last samples have been used: two reads later.

    Their ends are told at once, but samples that are younger than a read wait for the next one.

    Examples:
        >>> ended = Ended()
        >>> [ended.at_read(ids) for ids in ([7], [8, 9], [], [])]
        [[], [], [7], [8, 9]]
    """

    def __init__(self) -> None:
        self._before: Sequence[int] = ()
        self._last: Sequence[int] = ()

    def at_read(self, ended: Sequence[int]) -> list[int]:
        """Return those of which no sample is in this read, nor will be in another.

        Args:
            ended: ids of those whose ends came with it.
        """
        gone, self._before, self._last = self._before, self._last, ended
        return list(gone)
