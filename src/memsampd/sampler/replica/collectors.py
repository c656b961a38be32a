"""What becomes of what a replica recorded: kept, streamed, or counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from memsampd import _core
from memsampd.errors import UsageError
from memsampd.sampler.records import AccessChunk

_COLUMNS = {"ip": np.uint64, "address": np.uint64, "size_bytes": np.uint16, "is_write": np.bool_}


class Collector(Protocol):
    """Takes what was recorded, chunk by chunk.

    Attributes:
        rows: references taken so far.
        writes: stores among them.
        instructions: instructions executed.
        prefetches: prefetches met.
        line_shift: lines of 1 << line_shift bytes are wanted; 0: rows are.
        counter: is to count these lines; None: nothing is counted.
    """

    line_shift: int
    counter: _core.ReuseCounter | None
    rows: int
    writes: int
    instructions: int
    prefetches: int

    def take(self, chunk: tuple[Any, ...]) -> None:
        """Take what the core hands over."""

    def kept(self) -> AccessChunk:
        """All rows, as far as they are kept."""


class Rows:
    """Keeps rows, or hands them on.

    Args:
        consume: takes each chunk; None: they are kept.
    """

    line_shift = 0
    counter: _core.ReuseCounter | None = None

    def __init__(self, consume: Callable[[AccessChunk], None] | None = None) -> None:
        self._chunks: list[AccessChunk] = []
        self._consume = self._chunks.append if consume is None else consume
        self.rows = self.writes = self.instructions = self.prefetches = 0

    def take(self, chunk: tuple[Any, ...]) -> None:
        """Take rows by column, instructions and prefetches."""
        ip, address, size_bytes, is_write, instructions, prefetches = chunk
        rows = AccessChunk(
            np.frombuffer(ip, np.uint64),
            np.frombuffer(address, np.uint64),
            np.frombuffer(size_bytes, np.uint16),
            np.frombuffer(is_write, np.bool_),
        )
        self.rows += len(rows)
        self.writes += int(np.count_nonzero(rows.is_write))
        self.instructions += instructions
        self.prefetches += prefetches
        self._consume(rows)

    def kept(self) -> AccessChunk:
        """All rows, as one; none if they were handed on."""
        if len(self._chunks) == 1:
            return self._chunks[0]
        return AccessChunk(
            *(
                np.concatenate([np.empty(0, dtype), *(getattr(c, name) for c in self._chunks)])
                for name, dtype in _COLUMNS.items()
            )
        )


class Counted:
    """Has the reuse distances of lines counted where they are made.

    Args:
        line_bytes: size of a line, a power of two, at least 2.
        counter: its burst has begun.

    Raises:
        UsageError: ``line_bytes`` is no such number.
    """

    def __init__(self, line_bytes: int, counter: _core.ReuseCounter) -> None:
        if line_bytes < 2 or line_bytes & (line_bytes - 1):
            raise UsageError(f"a line of {line_bytes} bytes", "use a power of two, such as 64")
        self.line_shift = line_bytes.bit_length() - 1
        self.counter: _core.ReuseCounter | None = counter
        self.rows = self.writes = self.instructions = self.prefetches = 0

    def take(self, chunk: tuple[Any, ...]) -> None:
        """Take rows, stores, instructions and prefetches."""
        rows, writes, instructions, prefetches = chunk
        self.rows += rows
        self.writes += writes
        self.instructions += instructions
        self.prefetches += prefetches

    def kept(self) -> AccessChunk:
        """None."""
        return AccessChunk(*(np.empty(0, dtype) for dtype in _COLUMNS.values()))
