"""Telling a loop to end, from a signal handler as well."""

from __future__ import annotations

import queue
from contextlib import suppress


class Stop:
    """A reason to end, once there is one; a loop waits for it between its turns.

    ``threading.Event`` will not do: a signal handler interrupts the very thread that waits, and if
    that holds the event's lock just then, setting the event waits for it for ever. A put into a
    ``SimpleQueue`` may interrupt a get in the same thread.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def tell(self, reason: str) -> None:
        """Have the loop end, for this reason; from any thread, or a signal handler."""
        self.reason = reason
        self._told.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until there is a reason to end.

        A signal that comes just before a wait may be heard only after it: wait for short times.
        """
        if self.reason is None:
            with suppress(queue.Empty):
                self._told.get(timeout=seconds)
