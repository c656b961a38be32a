"""Reads and writes the text of valgrind's ``lackey --trace-mem=yes``.

Its lines (comments at the top of valgrind's lackey/lk_main.c)::

    I  0023C790,2      instruction at that address, of so many bytes
     L BE80199C,4      load
     S BE80199C,4      store
     M 0025747C,1      load and then store of the same place ("modify")
    ==1234== ...       valgrind's own remarks

A data reference belongs to the last instruction before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd import __version__
from memsampd.closing import Closing
from memsampd.errors import TraceError
from memsampd.exporters.files import TRACE, open_input, open_new, read_some, write_all
from memsampd.exporters.snapshot import TargetInfo
from memsampd.exporters.trace import lettering
from memsampd.exporters.trace.format import BurstFinish, BurstStart, TraceHeader
from memsampd.sampler.records import AccessChunk, BurstEnd

_READ_BYTES = 4 << 20
_ADDRESS_AT = 3  # where addresses begin in a line
_LEAST_DIGITS = 8  # lackey prints addresses with %08lx
_ADDRESS_DIGITS, _SIZE_DIGITS, _LARGEST_SIZE = 16, 5, 65_535
_LONGEST_LINE = _ADDRESS_AT + _ADDRESS_DIGITS + _SIZE_DIGITS + 2
_INSTRUCTION, _LOAD, _STORE, _MODIFY = b"ILSM"
_SPACE, _COMMA, _NEWLINE = b" ,\n"
_REMARK_LETTERS = tuple(b"=-*")
_DIGITS = np.full(256, 255, np.uint8)  # 255: no digit
for _number, _letters in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
    _DIGITS[list(_letters)] = _number
_COMMAND = re.compile(rb"==(\d+)== Command: (.*)")
_LINE = re.compile(rb"(I  | [LSM] )[0-9A-Fa-f]{1,16},\d+\s*$")


class LackeyWriter:
    """Writes bursts, one after the other.

    A load and the next reference, if it is a store of the same instruction and place, become one
    ``M``. Lengths of instructions are not known: they are written as 1 byte. Instructions without
    data references are not in a trace, and so not in the text.

    Args:
        path: file to make.
        overwrite: replace a file that is there already.

    Raises:
        TraceError: the file exists or cannot be written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self._file = open_new(path, TRACE, overwrite)
        self._last_ip: int | None = None
        self._held = _NO_ROWS

    def begin_burst(self, start: BurstStart) -> None:
        """Begin a burst: its first reference names its instruction."""
        self._last_ip = None

    def write(self, chunk: AccessChunk) -> None:
        """Append accesses.

        Raises:
            TraceError: they cannot be written.
        """
        for at in range(0, len(chunk), lettering.SLICE_ROWS):
            part = _concatenate(self._held, chunk.part(slice(at, at + lettering.SLICE_ROWS)))
            # A load at the end waits for the next row: the two may be a modify.
            whole = len(part) - int(not part.is_write[-1])
            self._held = part.part(slice(whole, None))
            self._put(part.part(slice(whole)))

    def end_burst(self, finish: BurstFinish) -> None:
        """End the burst.

        Raises:
            TraceError: it cannot be written.
        """
        self._put(self._held)
        self._held = _NO_ROWS

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _put(self, rows: AccessChunk) -> None:
        if len(rows):
            write_all(self._file, self._text(rows), self.path, TRACE)

    def _text(self, rows: AccessChunk) -> bytes:
        ends_modify = _ends_modify(rows)
        lines = np.flatnonzero(~ends_modify)
        kind = rows.is_write.astype(np.uint8)
        kind[:-1][ends_modify[1:]] = 2
        ip = rows.ip[lines]
        is_new = np.empty(len(lines), np.bool_)
        is_new[0] = self._last_ip is None or int(ip[0]) != self._last_ip
        np.not_equal(ip[1:], ip[:-1], out=is_new[1:])
        self._last_ip = int(ip[-1])
        return lettering.join(
            lettering.fixed("I  ", len(lines), is_new),
            lettering.hexadecimal(ip, _LEAST_DIGITS, is_new),
            lettering.fixed(",1\n ", len(lines), is_new),
            lettering.fixed(" ", len(lines), ~is_new),
            lettering.chosen("LSM", kind[lines]),
            lettering.fixed(" ", len(lines)),
            lettering.hexadecimal(rows.address[lines], _LEAST_DIGITS),
            lettering.fixed(",", len(lines)),
            lettering.decimal(rows.size_bytes[lines]),
            lettering.fixed("\n", len(lines)),
        )


class LackeyReader(Closing):
    """Reads the text as one burst (:class:`memsampd.exporters.trace.protocols.BurstReader`).

    lackey does not tell threads apart; what it says of instructions is kept as their number, and
    as the instruction of each reference.

    Args:
        path: the text.

    Attributes:
        header: what was traced, as far as valgrind's remarks at its beginning tell.

    Raises:
        TraceError: no such file, or it is no text of lackey.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_input(path, TRACE)
        self._block = self._read()
        lines = self._block.splitlines()
        if not any(_LINE.match(line) for line in lines):
            self._file.close()
            raise TraceError(
                f"{path} is no text of valgrind's lackey",
                "write one with valgrind --tool=lackey --trace-mem=yes --log-file=FILE",
            )
        remark = next((found for line in lines if (found := _COMMAND.match(line))), None)
        pid = int(remark[1]) if remark else 0
        command = remark[2].decode(errors="replace").split() if remark else []
        program = command[0] if command else "unknown"
        self.header = TraceHeader(
            memsampd_version=__version__,
            target=TargetInfo(pid, 0, Path(program).name, program),
            source="lackey",
            command=command,
        )

    def __iter__(self) -> Iterator[LackeyBurst]:
        """Yield the burst."""
        burst = LackeyBurst(self, BurstStart(tid=self.header.target.pid, time_seconds=0.0))
        yield burst
        for _ in burst:
            pass

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def blocks(self) -> Iterator[bytes]:
        """Yield the text, some whole lines at a time.

        Raises:
            TraceError: it ends inside a line.
        """
        rest = b""
        while self._block:
            whole, newline, tail = (rest + self._block).rpartition(b"\n")
            yield whole + newline
            rest = tail
            self._block = self._read()
        if rest:
            raise TraceError(
                f"{self.path} ends inside a line", "it was cut; what was given before is whole"
            )

    def _read(self) -> bytes:
        return read_some(self._file, _READ_BYTES, self.path, TRACE)


class LackeyBurst:
    """All that a text of lackey tells; iterating gives its accesses, once, in order.

    Attributes:
        start: what is known of its beginning.
        finish: what is known of its end; None until all its accesses were read.
    """

    def __init__(self, reader: LackeyReader, start: BurstStart) -> None:
        self.start = start
        self.finish: BurstFinish | None = None
        self._reader = reader
        self._last_ip = np.uint64(0)
        self._instructions = 0
        self._lines = 0
        self._rows = 0

    def __iter__(self) -> Iterator[AccessChunk]:
        """Yield the accesses, some 100,000 at a time.

        Raises:
            TraceError: a line is none of lackey, or the text was cut.
        """
        if self.finish is not None:
            return
        for block in self._reader.blocks():
            lines = _Lines(block)
            good = len(lines) if lines.first_bad is None else lines.first_bad
            chunk = self._accesses(lines, good)
            self._rows += len(chunk)
            if len(chunk):
                yield chunk
            self._lines += good
            if lines.first_bad is not None:
                raise TraceError(
                    f"line {self._lines + 1} of {self._reader.path} is none of lackey: "
                    f"{lines.text(lines.first_bad)!r}",
                    "keep lackey's output apart with valgrind's --log-file",
                )
        self.finish = BurstFinish(
            end=BurstEnd.EXIT.value,
            end_detail="end of the text",
            rows=self._rows,
            instructions=self._instructions,
        )

    def _accesses(self, lines: _Lines, good: int) -> AccessChunk:
        """The references of the first ``good`` lines."""
        is_instruction = lines.is_instruction[:good]
        self._instructions += int(np.count_nonzero(is_instruction))
        ips = np.concatenate([[self._last_ip], lines.address[:good][is_instruction]])
        ip = ips[np.cumsum(is_instruction)]
        self._last_ip = ips[-1]
        data = np.flatnonzero(lines.is_data[:good])
        kind = lines.kind[data]
        times = 1 + (kind == _MODIFY)
        is_write = np.repeat(kind != _LOAD, times)
        is_write[(np.cumsum(times) - times)[kind == _MODIFY]] = False
        return AccessChunk(
            np.repeat(ip[data], times),
            np.repeat(lines.address[data], times),
            np.repeat(lines.size_bytes[data], times),
            is_write,
        )


class _Lines:
    """Whole lines of text, read side by side.

    Attributes:
        kind: second letter of each line.
        is_instruction: whether it names an instruction, shape (n,).
        is_data: whether it names a data reference, shape (n,).
        address: its address, if it is one of both, shape (n,), uint64.
        size_bytes: its size, if it is one of both, shape (n,), uint16.
        first_bad: the first line that is neither nor a remark, or None.
    """

    def __init__(self, block: bytes) -> None:
        # Behind the end some more letters, for reading beyond the last line to be harmless.
        self._letters = np.frombuffer(block + b"\n" * _LONGEST_LINE, np.uint8)
        self._ends = np.flatnonzero(self._letters[: len(block)] == _NEWLINE)
        self._starts = np.concatenate([[0], self._ends[:-1] + 1]).astype(np.int64)
        first, self.kind, third = (self._letters[self._starts + i] for i in range(3))
        is_spaced = third == _SPACE
        self.is_instruction = is_spaced & (first == _INSTRUCTION) & (self.kind == _SPACE)
        self.is_data = is_spaced & (first == _SPACE) & np.isin(self.kind, (_LOAD, _STORE, _MODIFY))
        is_remark = np.isin(first, _REMARK_LETTERS) & (first == self.kind)
        is_good = is_remark | (self._ends == self._starts)
        reference = np.flatnonzero(self.is_instruction | self.is_data)
        is_good[reference] = self._read_numbers(reference)
        bad = np.flatnonzero(~is_good)
        self.first_bad = int(bad[0]) if len(bad) else None

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, line: int) -> str:
        """A line, for people."""
        letters = self._letters[self._starts[line] : self._ends[line]]
        return letters[:_LONGEST_LINE].tobytes().decode(errors="replace")

    def _read_numbers(self, lines: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Read the numbers of these lines; whether each is ``ADDRESS,SIZE``."""
        self.address = np.zeros(len(self), np.uint64)
        self.size_bytes = np.zeros(len(self), np.uint16)
        commas = np.append(np.flatnonzero(self._letters == _COMMA), len(self._letters))
        at, end = self._starts[lines] + _ADDRESS_AT, self._ends[lines]
        comma = np.minimum(commas[np.searchsorted(commas, at)], end)
        address, address_is_good = self._number(at, comma, 16, _ADDRESS_DIGITS)
        size_bytes, size_is_good = self._number(comma + 1, end, 10, _SIZE_DIGITS)
        self.address[lines] = address
        self.size_bytes[lines] = size_bytes.astype(np.uint16)
        return address_is_good & size_is_good & (size_bytes <= _LARGEST_SIZE)

    def _number(
        self, start: NDArray[np.int64], end: NDArray[np.int64], base: int, most_digits: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Numbers between these places, and whether they are any."""
        length = end - start
        is_good = (length > 0) & (length <= most_digits)
        number = np.zeros(len(start), np.uint64)
        for nth in range(int(length[is_good].max(initial=0))):
            digit = _DIGITS[self._letters[np.where(is_good, start, 0) + nth]]
            is_there = is_good & (nth < length)
            is_good &= ~is_there | (digit < base)
            number = np.where(is_there, number * np.uint64(base) + digit, number)
        return number, is_good


_NO_ROWS = AccessChunk(
    np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint16), np.empty(0, np.bool_)
)


def _concatenate(first: AccessChunk, second: AccessChunk) -> AccessChunk:
    return AccessChunk(
        np.concatenate([first.ip, second.ip]),
        np.concatenate([first.address, second.address]),
        np.concatenate([first.size_bytes, second.size_bytes]),
        np.concatenate([first.is_write, second.is_write]),
    )


def _ends_modify(rows: AccessChunk) -> NDArray[np.bool_]:
    """Whether each row is the store of a load and store of one instruction at one place."""
    ends = np.zeros(len(rows), np.bool_)
    ends[1:] = (
        ~rows.is_write[:-1]
        & rows.is_write[1:]
        & (rows.ip[:-1] == rows.ip[1:])
        & (rows.address[:-1] == rows.address[1:])
        & (rows.size_bytes[:-1] == rows.size_bytes[1:])
    )
    return ends
