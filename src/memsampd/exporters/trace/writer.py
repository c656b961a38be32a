"""Writes traces, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import zstandard

from memsampd.closing import Closing
from memsampd.errors import TraceError
from memsampd.exporters.frames import FrameWriter
from memsampd.exporters.trace import columns
from memsampd.exporters.trace.columns import BLOCK_ROWS
from memsampd.exporters.trace.format import (
    FORMAT,
    LEVEL,
    BurstFinish,
    BurstStart,
    Record,
    TraceFooter,
    TraceHeader,
    encode,
)
from memsampd.sampler.records import AccessChunk


class TraceWriter(Closing):
    """Appends bursts to a trace file.

    Every block of accesses is in the kernel's hands once it is full, so that a memsampd that is
    killed loses less than a block. As a context manager it closes the file at the end; what an
    exception interrupted is left as it is, which readers notice.

    Args:
        path: file to make.
        header: the first record.
        overwrite: replace a file that is there already.
        block_rows: rows of a block.

    Raises:
        TraceError: the file exists or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        header: TraceHeader,
        *,
        overwrite: bool = False,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self.rows = 0
        self.bursts = 0
        self._buffer = _Rows(block_rows)
        self._rows_before_burst: int | None = None
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._frames = FrameWriter(path, FORMAT, overwrite=overwrite)
        self._append(header)

    def begin_burst(self, start: BurstStart) -> None:
        """Begin a burst.

        Raises:
            TraceError: it cannot be written; what was written before stays readable.
            ValueError: the last one has not ended.
        """
        if self._rows_before_burst is not None:
            raise ValueError("a burst has begun already")
        self._append(start)
        self._rows_before_burst = self.rows
        self.bursts += 1

    def write(self, chunk: AccessChunk) -> None:
        """Append accesses to the burst; their arrays may be used again once this returns.

        Raises:
            TraceError: it cannot be written; what was written before stays readable.
            ValueError: no burst has begun, or the arrays are of different lengths.
        """
        if self._rows_before_burst is None:
            raise ValueError("no burst has begun")
        if not len(chunk.ip) == len(chunk.address) == len(chunk.size_bytes) == len(chunk.is_write):
            raise ValueError("columns of different lengths")
        at = 0
        while at < len(chunk):
            taken = self._buffer.add(chunk, at)
            at += taken
            self.rows += taken
            if self._buffer.is_full:
                self._flush()

    def end_burst(self, finish: BurstFinish) -> None:
        """End the burst.

        Args:
            finish: how; its ``rows`` must be what was written.

        Raises:
            TraceError: it cannot be written; what was written before stays readable.
            ValueError: no burst has begun, or it has other rows.
        """
        if self._rows_before_burst is None:
            raise ValueError("no burst has begun")
        if finish.rows != self.rows - self._rows_before_burst:
            raise ValueError("another number of rows was written")
        self._flush()
        self._append(finish)
        self._rows_before_burst = None

    def close(self, exit_reason: str = "", refusals: Mapping[str, int] | None = None) -> None:
        """Write the footer and close the file; a second call does nothing.

        Within a burst there is no footer: the file then counts as cut off.

        Args:
            exit_reason: why the trace ends, for people.
            refusals: bursts that could not be had, by reason.

        Raises:
            TraceError: it cannot be written; what was written before stays readable.
        """
        if self._frames.closed:
            return
        try:
            if self._rows_before_burst is None:
                self._append(
                    TraceFooter(
                        bursts=self.bursts,
                        rows=self.rows,
                        exit_reason=exit_reason,
                        refusals=dict(refusals or {}),
                    )
                )
            else:
                self._flush()
        finally:
            self._frames.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._frames.close()

    def _flush(self) -> None:
        chunk = self._buffer.take()
        if len(chunk):
            self._append(columns.encode(chunk))

    def _append(self, record: Record) -> None:
        try:
            self._frames.append(encode(record, self._compressor))
        except TraceError:
            self._frames.close()  # write no more
            raise


class _Rows:
    """A buffer of rows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._ip = np.empty(size, np.uint64)
        self._address = np.empty(size, np.uint64)
        self._size_bytes = np.empty(size, np.uint16)
        self._is_write = np.empty(size, np.bool_)

    @property
    def is_full(self) -> bool:
        return self._used == self._size

    def add(self, chunk: AccessChunk, at: int) -> int:
        """Copy rows from ``at`` on, as many as there is room for; how many."""
        taken = min(self._size - self._used, len(chunk) - at)
        here, there = slice(self._used, self._used + taken), slice(at, at + taken)
        self._ip[here] = chunk.ip[there]
        self._address[here] = chunk.address[there]
        self._size_bytes[here] = chunk.size_bytes[there]
        self._is_write[here] = chunk.is_write[there]
        self._used += taken
        return taken

    def take(self) -> AccessChunk:
        """What is in it, valid until the next :meth:`add`."""
        used, self._used = slice(self._used), 0
        return AccessChunk(
            self._ip[used], self._address[used], self._size_bytes[used], self._is_write[used]
        )
