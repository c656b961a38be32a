"""Telling a loop to end, from a signal handler as well."""

from __future__ import annotations

import math
import os
import select
import weakref


class Stop:
    """A reason to end, once there is one; a loop waits for it between its turns.

    The wait is one ``poll`` of an event descriptor. ``threading.Event`` will not do: a signal
    handler interrupts the very thread that waits, and if that holds the event's lock just then,
    setting the event waits for it for ever. ``SimpleQueue.get`` will not do either: in CPython 3.11
    a timeout that ran out between its two looks at the clock is taken for none at all.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._told_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._told_fd)
        self._poll = select.poll()
        self._poll.register(self._told_fd, select.POLLIN)

    def tell(self, reason: str) -> None:
        """Have the loop end, for this reason; from any thread, or a signal handler."""
        self.reason = reason
        os.eventfd_write(self._told_fd, 1)

    def wait(self, seconds: float, other: int | None = None) -> bool:
        """Wait for so long, to the next millisecond, or until there is a reason to end.

        A signal that comes just before a wait may be heard only after it: wait for short times.

        Args:
            seconds: for how long at most.
            other: a descriptor that ends the wait, too, as soon as it is readable.

        Returns:
            Whether something ended it.
        """
        if self.reason is not None:
            return True
        if other is not None:
            self._poll.register(other, select.POLLIN)
        try:
            return bool(self._poll.poll(math.ceil(seconds * 1000)))
        finally:
            if other is not None:
                self._poll.unregister(other)
