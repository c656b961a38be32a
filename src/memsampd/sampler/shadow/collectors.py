"""What becomes of what a shadow referenced while it is recorded: kept, streamed, or lines alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import UsageError
from memsampd.sampler.records import AccessChunk, LineChunk

_CHUNK_ROWS = 1 << 16
_COLUMNS = {"ip": np.uint64, "address": np.uint64, "size_bytes": np.uint16, "is_write": np.bool_}


class Core(Protocol):
    """What collectors ask of a native executor: to hand over what it has recorded."""

    def take(self) -> tuple[bytes, bytes, bytes, bytes, int, int]:
        """Rows by column, instructions, prefetches."""

    def take_lines(self, shift: int, /) -> tuple[bytes, int, int, int, int, int]:
        """Runs of lines, accesses, rows, stores, instructions, prefetches."""


@runtime_checkable
class CountingCore(Core, Protocol):
    """One that can count lines itself."""

    def take_counts(self) -> tuple[int, int, int, int, int]:
        """Accesses to lines counted by the counter, rows, stores, instructions, prefetches."""


class Collector(Protocol):
    """Takes what an executor records, chunk by chunk.

    Attributes:
        rows: references taken so far.
        accesses: accesses to lines that these are; 0 if they are not counted.
        instructions: instructions executed.
        prefetches: prefetches met.
        line_shift: lines of 1 << line_shift bytes are wanted; 0: rows are.
        counter: is to count them, instead of their being handed over; None: there is none.
    """

    line_shift: int
    counter: _core.ReuseCounter | None
    rows: int
    accesses: int
    instructions: int
    prefetches: int

    def take(self, core: Core) -> None:
        """Take what the core has."""

    def kept(self) -> AccessChunk:
        """All rows, as far as they are kept."""


class Rows:
    """Keeps rows, or hands them on.

    Args:
        consume: takes each chunk; None: they are kept.
        line_bytes: size of the lines that accesses are counted in; 0: they are not counted.
    """

    line_shift = 0
    counter: _core.ReuseCounter | None = None

    def __init__(
        self, consume: Callable[[AccessChunk], None] | None = None, line_bytes: int = 0
    ) -> None:
        self._chunks: list[AccessChunk] = []
        self._consume = self._chunks.append if consume is None else consume
        self._line_bytes = line_bytes
        self.rows = self.accesses = self.instructions = self.prefetches = 0

    def take(self, core: Core) -> None:
        """Take what the core has."""
        ip, address, size_bytes, is_write, instructions, prefetches = core.take()
        chunk = AccessChunk(
            np.frombuffer(ip, np.uint64),
            np.frombuffer(address, np.uint64),
            np.frombuffer(size_bytes, np.uint16),
            np.frombuffer(is_write, np.bool_),
        )
        self.rows += len(chunk)
        self.instructions += instructions
        self.prefetches += prefetches
        if self._line_bytes:
            self.accesses += count_accesses(chunk.address, chunk.size_bytes, self._line_bytes)
        self._consume(chunk)

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


class Lines:
    """Hands the lines on that rows touch.

    Args:
        line_bytes: size of a line, a power of two, at least 2.
        consume: takes each chunk.

    Raises:
        UsageError: ``line_bytes`` is no such number.
    """

    counter: _core.ReuseCounter | None = None

    def __init__(self, line_bytes: int, consume: Callable[[LineChunk], None]) -> None:
        self.line_shift = _shift_of(line_bytes)
        self._consume = consume
        self.rows = self.accesses = self.instructions = self.prefetches = 0

    def take(self, core: Core) -> None:
        """Take what the core has."""
        runs, accesses, rows, writes, instructions, prefetches = core.take_lines(self.line_shift)
        chunk = LineChunk(np.frombuffer(runs, np.uint64), accesses, rows, writes)
        self.rows += rows
        self.accesses += accesses
        self.instructions += instructions
        self.prefetches += prefetches
        self._consume(chunk)

    def kept(self) -> AccessChunk:
        """None."""
        return AccessChunk(*(np.empty(0, dtype) for dtype in _COLUMNS.values()))


class Counted:
    """Has the reuse distances of lines counted where they are made: several times as fast.

    Args:
        line_bytes: size of a line, a power of two, at least 2.
        counter: of a :class:`memsampd.models.counting.LineCounter`, whose burst has begun.

    Attributes:
        writes: stores among the rows.

    Raises:
        UsageError: ``line_bytes`` is no such number.
    """

    def __init__(self, line_bytes: int, counter: _core.ReuseCounter) -> None:
        self.line_shift = _shift_of(line_bytes)
        self.counter: _core.ReuseCounter | None = counter
        self.rows = self.accesses = self.writes = self.instructions = self.prefetches = 0

    def take(self, core: Core) -> None:
        """Take what the core has.

        Raises:
            TypeError: it does not count.
        """
        if not isinstance(core, CountingCore):
            raise TypeError("this executor does not count lines")
        accesses, rows, writes, instructions, prefetches = core.take_counts()
        self.accesses += accesses
        self.rows += rows
        self.writes += writes
        self.instructions += instructions
        self.prefetches += prefetches

    def kept(self) -> AccessChunk:
        """None."""
        return AccessChunk(*(np.empty(0, dtype) for dtype in _COLUMNS.values()))


def _shift_of(line_bytes: int) -> int:
    if line_bytes < 2 or line_bytes & (line_bytes - 1):
        raise UsageError(f"a line of {line_bytes} bytes", "use a power of two, such as 64")
    return line_bytes.bit_length() - 1


def count_accesses(
    address: NDArray[np.uint64], size_bytes: NDArray[np.uint16], line_bytes: int
) -> int:
    """Lines referenced, a reference that crosses into another counting for each."""
    line = np.uint64(line_bytes)
    further = 0
    # Chunks short enough that what is made of each stays in a cache, and in recycled memory.
    for begin in range(0, len(address), _CHUNK_ROWS):
        each = slice(begin, begin + _CHUNK_ROWS)
        last = address[each] + np.maximum(size_bytes[each], 1) - np.uint64(1)
        further += int(np.sum(last // line - address[each] // line))
    return len(address) + further
