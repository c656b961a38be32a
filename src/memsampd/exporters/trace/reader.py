"""Reads traces, as far as they are whole, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import zstandard

from memsampd.closing import Closing
from memsampd.errors import TraceError
from memsampd.exporters.frames import FrameReader
from memsampd.exporters.trace import columns
from memsampd.exporters.trace.columns import AccessBlock
from memsampd.exporters.trace.format import (
    FORMAT,
    BurstFinish,
    BurstStart,
    Record,
    TraceFooter,
    TraceHeader,
    decode,
)
from memsampd.sampler.records import AccessChunk

_RecordT = TypeVar("_RecordT", bound=Record)


class TraceReader(Closing):
    """Iterates over the bursts of a trace file, once, each of which iterates over its accesses.

    >>> def count_stores(path):
    ...     with TraceReader(path) as trace:
    ...         return sum(chunk.is_write.sum() for burst in trace for chunk in burst)

    Damage raises a :class:`~memsampd.errors.TraceError` when it is reached: all that was yielded
    before is right.

    Args:
        path: the trace.

    Attributes:
        header: what was traced.
        footer: how it ended; None until all was read.

    Raises:
        TraceError: no such file, not a trace, another version, or no header in it.
    """

    def __init__(self, path: Path) -> None:
        self.footer: TraceFooter | None = None
        self._decompressor = zstandard.ZstdDecompressor()
        self._bursts = 0
        self._rows = 0
        self._next: Record | None = None
        self._frames = FrameReader(path, FORMAT)
        try:
            self.header = self._take(TraceHeader)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[TraceBurst]:
        """Yield the bursts; what of one was not read when the next is asked for is skipped.

        Raises:
            TraceError: the rest is damaged.
        """
        while not isinstance(self._peek(), TraceFooter):
            burst = TraceBurst(self, self._bursts, self._take(BurstStart))
            self._bursts += 1
            yield burst
            burst.skip()
        footer = self._take(TraceFooter)
        if (footer.bursts, footer.rows) != (self._bursts, self._rows) or self._frames.has_more():
            raise self._corrupt("its footer does not fit")
        self.footer = footer

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._frames.close()

    @property
    def bytes_read(self) -> int:
        """How much of the file has been read."""
        return self._frames.bytes_read

    def _peek(self) -> Record:
        """The next record."""
        if self._next is None:
            try:
                payload = self._frames.next()
                if payload is None:
                    raise self._truncated()
                self._next = decode(payload, self._decompressor)
            except EOFError:
                raise self._truncated() from None
            except (ValueError, RecursionError) as error:
                raise self._corrupt(str(error)) from error
        return self._next

    def _take(self, record_type: type[_RecordT]) -> _RecordT:
        """The next record, which must be of this type."""
        record, self._next = self._peek(), None
        if not isinstance(record, record_type):
            raise self._corrupt("a record is out of place")
        return record

    def _truncated(self) -> TraceError:
        return TraceError(
            f"{self._frames.path} ends early, after {self._so_far()}",
            "it is still being written, memsampd was killed, or it was cut; all before is whole",
        )

    def _corrupt(self, detail: str) -> TraceError:
        return TraceError(
            f"{self._frames.path} is corrupt before byte {self.bytes_read}, after "
            f"{self._so_far()}: {detail}",
            "restore it from a copy, or trace again; all before is right",
        )

    def _so_far(self) -> str:
        return f"{self._bursts} bursts and {self._rows} rows"

    def _accesses(self, burst_rows: int) -> AccessChunk | BurstFinish:
        """The next part of a burst of which so many rows were read."""
        if isinstance(self._peek(), AccessBlock):
            block = self._take(AccessBlock)
            try:
                chunk = columns.decode(block)
            except ValueError as error:
                raise self._corrupt(str(error)) from error
            self._rows += len(chunk)
            return chunk
        finish = self._take(BurstFinish)
        if finish.rows != burst_rows:
            raise self._corrupt("a burst with other rows than it says")
        return finish


class TraceBurst:
    """A burst of a trace; iterating gives its accesses, once, in order.

    Attributes:
        index: 0, 1, 2, ... in the file.
        start: what was known when it began.
        finish: what was known when it had ended; None until all its accesses were read.
    """

    def __init__(self, reader: TraceReader, index: int, start: BurstStart) -> None:
        self.index = index
        self.start = start
        self.finish: BurstFinish | None = None
        self._reader = reader
        self._rows = 0

    def __iter__(self) -> Iterator[AccessChunk]:
        """Yield the accesses, some 100,000 at a time.

        Raises:
            TraceError: the rest of the file is damaged.
        """
        while self.finish is None:
            part = self._reader._accesses(self._rows)
            if isinstance(part, BurstFinish):
                self.finish = part
            else:
                self._rows += len(part)
                yield part

    def skip(self) -> None:
        """Pass over what was not read; :attr:`finish` is then known.

        Raises:
            TraceError: the rest of the file is damaged.
        """
        for _ in self:
            pass
