"""Which snapshots a server shows: the last one of each target, and of one that ended, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from memsampd.exporters.snapshot import Snapshot

KEPT_SECONDS = 60.0
"""For so long the last state of a target that ended waits for a reader, usually."""


class ShownSnapshots:
    """The last snapshot of each target; that of a target that ended until it has been read.

    What a target did since it was read last would be lost to those who read now and then, as
    Prometheus does. Not for use by several threads at a time.

    Args:
        monotonic: clock, injected for tests.
        kept_seconds: for so long the last state of a target that ended waits for a reader.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._monotonic = monotonic
        self._kept_seconds = kept_seconds
        self._latest: dict[int, Snapshot] = {}
        self._ended: dict[int, float] = {}  # until when they wait for a reader
        self.is_unread = False
        """Whether something was shown that nobody has read."""

    def show(self, snapshot: Snapshot) -> None:
        """Show this from now on."""
        self._forget_expired()
        pid = snapshot.target.pid
        self._ended.pop(pid, None)
        if not snapshot.alive:
            self._ended[pid] = self._monotonic() + self._kept_seconds
        self._latest[pid] = snapshot
        self.is_unread = True

    def read(self) -> list[Snapshot]:
        """Return what is shown now, by pid; the last time for those that ended."""
        self._forget_expired()
        shown = [self._latest[pid] for pid in sorted(self._latest)]
        self._forget(list(self._ended))
        self.is_unread = False
        return shown

    def _forget_expired(self) -> None:
        now = self._monotonic()
        self._forget([pid for pid, until in self._ended.items() if until < now])

    def _forget(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._latest.pop(pid, None)
            self._ended.pop(pid, None)

    def clear(self) -> None:
        """Show no target any more."""
        self._latest.clear()
        self._ended.clear()
        self.is_unread = False
