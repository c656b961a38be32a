"""Writes traces as input for the cache simulator Dinero (III and IV).

Its input formats stand in dineroIV(1) and in the sources of its readers (dinfmt.c, xdinfmt.c):

- traditional, ``din``: ``LABEL ADDRESS``, label 0 for a load and 1 for a store, the address in
  hexadecimal without prefix. Every reference counts as the aligned word of four bytes there.
- extended (Dinero IV only): ``TYPE ADDRESS SIZE``, type ``r`` or ``w``, both numbers hexadecimal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.files import TRACE, open_new, write_all
from memsampd.exporters.trace import lettering
from memsampd.exporters.trace.format import BurstFinish, BurstStart
from memsampd.sampler.records import AccessChunk


class DineroWriter:
    """Writes the data references of bursts, one after the other.

    Instruction fetches are left out: a trace knows only instructions that reference data.

    Args:
        path: file to make.
        line_bytes: size of a line: in the traditional format, which has no sizes, a reference that
            crosses lines is written once for each of them.
        extended: Dinero IV's own format.
        overwrite: replace a file that is there already.

    Raises:
        TraceError: the file exists or cannot be written.
    """

    def __init__(
        self, path: Path, line_bytes: int, *, extended: bool = False, overwrite: bool = False
    ) -> None:
        self.path = path
        self._line_bytes = line_bytes
        self._extended = extended
        self._file = open_new(path, TRACE, overwrite)

    def begin_burst(self, start: BurstStart) -> None:
        """Begin a burst: nothing tells it from the one before."""

    def write(self, chunk: AccessChunk) -> None:
        """Append accesses.

        Raises:
            TraceError: they cannot be written.
        """
        for at in range(0, len(chunk), lettering.SLICE_ROWS):
            part = chunk.part(slice(at, at + lettering.SLICE_ROWS))
            columns = part.address, part.size_bytes, part.is_write.astype(np.uint8)
            text = self._extended_text(*columns) if self._extended else self._text(*columns)
            write_all(self._file, text, self.path, TRACE)

    def end_burst(self, finish: BurstFinish) -> None:
        """End the burst: the format has no place for what is known of it."""

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _extended_text(
        self,
        address: NDArray[np.uint64],
        size_bytes: NDArray[np.uint16],
        is_write: NDArray[np.uint8],
    ) -> bytes:
        rows = len(address)
        return lettering.join(
            lettering.chosen("rw", is_write),
            lettering.fixed(" ", rows),
            lettering.hexadecimal(address),
            lettering.fixed(" ", rows),
            lettering.hexadecimal(size_bytes.astype(np.uint64)),
            lettering.fixed("\n", rows),
        )

    def _text(
        self,
        address: NDArray[np.uint64],
        size_bytes: NDArray[np.uint16],
        is_write: NDArray[np.uint8],
    ) -> bytes:
        address, is_write = _line_by_line(address, size_bytes, is_write, self._line_bytes)
        return lettering.join(
            lettering.chosen("01", is_write),
            lettering.fixed(" ", len(address)),
            lettering.hexadecimal(address),
            lettering.fixed("\n", len(address)),
        )


def _line_by_line(
    address: NDArray[np.uint64],
    size_bytes: NDArray[np.uint16],
    is_write: NDArray[np.uint8],
    line_bytes: int,
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """One reference to each line touched: to its first byte touched."""
    offset = (address & np.uint64(line_bytes - 1)).astype(np.int64)
    lines = (offset + np.maximum(size_bytes, 1) - 1) // line_bytes + 1
    touched = np.repeat(address, lines)
    nth = np.arange(len(touched)) - np.repeat(np.cumsum(lines) - lines, lines)
    in_line = touched & ~np.uint64(line_bytes - 1)
    later = in_line + (nth * line_bytes).astype(np.uint64)
    return np.where(nth == 0, touched, later), np.repeat(is_write, lines)
