"""What the tracer tells: records of references, runs of accesses to lines, blocks of code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import RUN_LINE_BITS

ADDRESS_BITS = 48
SIZE_BITS = 15
LINE_BYTES = 64
LINE_SHIFT = LINE_BYTES.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code that the tracer translated.

    Attributes:
        file: that it was mapped from; empty if it was not.
        offset: of its first byte in the file; its address if there is none.
        instructions: from its beginning to its end.
    """

    file: str
    offset: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a program did between two moments.

    Attributes:
        runs: lines accessed, in order, as :data:`memsampd.models.exact.RUN_LINE_BITS` says,
            shape (n,), uint64.
        accesses: in all these runs.
        instructions: executed.
        samples: numbers of the blocks that sampled instructions lie in, shape (m,), int64.
    """

    runs: NDArray[np.uint64]
    accesses: int
    instructions: int
    samples: NDArray[np.int64]


def runs_of(lines: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the runs that lines make, shape (r,), r <= n, uint64."""
    if not len(lines):
        return lines
    starts = np.flatnonzero(np.concatenate([[True], lines[1:] != lines[:-1]]))
    accesses = np.diff(starts, append=len(lines)).astype(np.uint64)
    return lines[starts] | accesses << np.uint64(RUN_LINE_BITS)


def accessed_lines(records: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers of the lines accessed, in order.

    The same as :func:`memsampd.models.lines.line_stream` of the records' addresses and sizes, which
    the tests hold it against, at three times the speed.

    Args:
        records: references as laid out in ``memtrace.c``, shape (n,), uint64.

    Returns:
        One entry for every line that a reference lies in, ascending within a reference, shape
        (m,), m >= n, uint64.
    """
    address = records & np.uint64((1 << ADDRESS_BITS) - 1)
    size_bytes = (records >> np.uint64(ADDRESS_BITS)) & np.uint64((1 << SIZE_BITS) - 1)
    first = address >> np.uint64(LINE_SHIFT)
    address += size_bytes
    address -= np.uint64(1)
    last = address >> np.uint64(LINE_SHIFT)
    crossing = np.flatnonzero(first != last)
    if not len(crossing):
        return first
    further = (last[crossing] - first[crossing]).astype(np.int64)
    order = np.arange(further.sum()) - np.repeat(np.cumsum(further) - further, further)
    extra = np.repeat(first[crossing], further) + order.astype(np.uint64) + np.uint64(1)
    return np.insert(first, np.repeat(crossing + 1, further), extra)
