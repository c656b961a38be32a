"""What can be read burst by burst, and what bursts can be written to, whatever the format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from memsampd.exporters.trace.format import BurstFinish, BurstStart, TraceHeader
from memsampd.sampler.records import AccessChunk


class ReadBurst(Protocol):
    """A burst while it is read: iterating gives its accesses.

    Attributes:
        start: what was known when it began.
        finish: what was known when it had ended; None until all its accesses were read.
    """

    start: BurstStart
    finish: BurstFinish | None

    def __iter__(self) -> Iterator[AccessChunk]:
        """Yield the accesses in order.

        Raises:
            TraceError: the rest is damaged; what was yielded is right.
        """


class BurstReader(Protocol):
    """A file of bursts; iterating gives them, once, in order. Memory does not grow with it."""

    header: TraceHeader

    def __iter__(self) -> Iterator[ReadBurst]:
        """Yield the bursts; what of one was not read when the next is asked for is skipped.

        Raises:
            TraceError: the rest is damaged; what was yielded is right.
        """


class BurstWriter(Protocol):
    """A file that bursts are written to, one after the other."""

    def begin_burst(self, start: BurstStart) -> None:
        """Begin a burst."""

    def write(self, chunk: AccessChunk) -> None:
        """Append accesses to it; their arrays may be used again once this returns."""

    def end_burst(self, finish: BurstFinish) -> None:
        """End it."""

    def close(self) -> None:
        """Finish the file; a second call does nothing."""
