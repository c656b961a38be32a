"""Whether a thread of any target may be held just now: then this process must not be stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class HoldsUnderWay:
    """Counts them, over all targets of this process.

    A thread that is held stays so while we are stopped ourselves, as by Ctrl-Z: the kernel lets it
    go when we end, not when we stop.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_barred = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """A hold may begin and ends within."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_barred)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextmanager
    def none(self, patience_seconds: float) -> Iterator[None]:
        """Wait until there is none, at most so long; none begins within."""
        with self._changed:
            self._is_barred = True
            self._changed.wait_for(lambda: self._count == 0, patience_seconds)
        try:
            yield
        finally:
            with self._changed:
                self._is_barred = False
                self._changed.notify_all()


HOLDS = HoldsUnderWay()
"""Of this process, as it is stopped as a whole."""
