"""Reads traces, as far as they are whole, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from memsampd.closing import Closing
from memsampd.errors import TraceError
from memsampd.exporters.trace.columns import AccessBlock, decode
from memsampd.exporters.trace.files import open_input, read_some
from memsampd.exporters.trace.format import (
    FORMAT_VERSION,
    FRAME_HEADER,
    MAGIC,
    PRELUDE,
    BurstFinish,
    BurstStart,
    FrameDecoder,
    FrameHeader,
    FrameKind,
    Record,
    TraceFooter,
    TraceHeader,
    decode_header,
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
        bytes_read: how much of the file has been read.

    Raises:
        TraceError: no such file, not a trace, another version, or no header in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.footer: TraceFooter | None = None
        self.bytes_read = 0
        self._decoder = FrameDecoder()
        self._frame_number = 0
        self._bursts = 0
        self._rows = 0
        self._next: FrameHeader | None = None
        self._file = open_input(path)
        try:
            self._check_prelude()
            self.header = self._take(FrameKind.HEADER, TraceHeader)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[TraceBurst]:
        """Yield the bursts; what of one was not read when the next is asked for is skipped.

        Raises:
            TraceError: the rest is damaged.
        """
        while self._peek().kind is not FrameKind.FOOTER:
            burst = TraceBurst(self, self._bursts, self._take(FrameKind.START, BurstStart))
            self._bursts += 1
            yield burst
            burst.skip()
        footer = self._take(FrameKind.FOOTER, TraceFooter)
        if (footer.bursts, footer.rows) != (self._bursts, self._rows) or self._read(1):
            raise self._corrupt("its footer does not fit")
        self.footer = footer

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _check_prelude(self) -> None:
        start = self._read(PRELUDE.size)
        if not start.startswith(MAGIC):
            cause = f"{self.path} is empty" if not start else f"{self.path} is no memsampd trace"
            raise TraceError(cause, "name a file that 'memsampd trace' wrote")
        if len(start) < PRELUDE.size:
            raise self._truncated()
        _, version = PRELUDE.unpack(start)
        if version != FORMAT_VERSION:
            raise TraceError(
                f"{self.path} has format version {version}, this memsampd reads version "
                f"{FORMAT_VERSION}",
                "read it with the memsampd that wrote it",
            )

    def _read(self, size_bytes: int) -> bytes:
        data = read_some(self._file, size_bytes, self.path)
        self.bytes_read += len(data)
        return data

    def _peek(self) -> FrameHeader:
        """The header of the next frame."""
        if self._next is None:
            raw = self._read(FRAME_HEADER.size)
            if len(raw) < FRAME_HEADER.size:
                raise self._truncated()
            try:
                self._next = decode_header(raw)
            except ValueError as error:
                raise self._corrupt(str(error)) from error
            if self._next.number != self._frame_number:
                raise self._corrupt("a frame is lost or out of place")
            self._frame_number += 1
        return self._next

    def _payload(self) -> tuple[FrameHeader, bytes]:
        """The next frame."""
        header, self._next = self._peek(), None
        payload = self._read(header.stored_bytes)
        if len(payload) < header.stored_bytes:
            raise self._truncated()
        return header, payload

    def _take(self, kind: FrameKind, record_type: type[_RecordT]) -> _RecordT:
        """The next frame's record, which must be of this kind."""
        if self._peek().kind is not kind:
            raise self._corrupt("a frame is out of place")
        try:
            record = self._decoder.decode(*self._payload())
        except ValueError as error:
            raise self._corrupt(str(error)) from error
        assert isinstance(record, record_type)
        return record

    def _truncated(self) -> TraceError:
        return TraceError(
            f"{self.path} ends early, after {self._so_far()}",
            "it is still being written, memsampd was killed, or it was cut; all before is whole",
        )

    def _corrupt(self, detail: str) -> TraceError:
        return TraceError(
            f"{self.path} is corrupt before byte {self.bytes_read}, after {self._so_far()}: "
            f"{detail}",
            "restore it from a copy, or trace again; all before is right",
        )

    def _so_far(self) -> str:
        return f"{self._bursts} bursts and {self._rows} rows"

    def _accesses(self, burst_rows: int) -> AccessChunk | BurstFinish:
        """The next part of a burst of which so many rows were read."""
        if self._peek().kind is FrameKind.ACCESSES:
            block = self._take(FrameKind.ACCESSES, AccessBlock)
            try:
                chunk = decode(block)
            except ValueError as error:
                raise self._corrupt(str(error)) from error
            self._rows += len(chunk)
            return chunk
        finish = self._take(FrameKind.FINISH, BurstFinish)
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
