"""The memory that a walk sees: the target's as it is read, and what the walk itself has stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import AddressSpace
from memsampd.sampler.process.memory import PRESENT, MappedFiles

PAGE_BYTES = 4096
_PAGE_BITS = 12
_WORD_BITS = 3
ReadMemory = Callable[[int, int], bytes]
"""``read(address, size)``: the bytes there; fewer, or none, where they are not to be had."""


class RunningMemory:
    """Reads the present pages of a process while it runs on: it is not told and not stopped.

    What is mapped of a file, and cannot be written, is read from the file where the memory cannot
    be, or is not present.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._folder = PROC / str(pid)
        self._files: tuple[int, int] | None = None
        self._mapped = MappedFiles(pid)

    def begin(self) -> None:
        """Look again: after an exec the memory is another one."""
        self.close()
        self._mapped.begin()
        with suppress(OSError):
            pagemap = os.open(self._folder / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
            try:
                memory = os.open(self._folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.close(pagemap)
                raise
            self._files = pagemap, memory

    def __call__(self, address: int, size_bytes: int) -> bytes:
        """Read within a page; nothing where it is not present, as a read would bring it in."""
        if self._files is not None:
            pagemap, memory = self._files
            with suppress(OSError, OverflowError):
                entry = os.pread(pagemap, 8, 8 * (address >> _PAGE_BITS))
                if int.from_bytes(entry, "little") & PRESENT:
                    return os.pread(memory, size_bytes, address)
        return self._mapped.read(address, size_bytes)

    @property
    def space(self) -> AddressSpace:
        """What is mapped, or was a moment ago; nothing where the process is gone."""
        return self._mapped.space

    def is_code(self, address: int) -> bool:
        """Whether code can be run there."""
        area = self.space.find(address)
        return area is not None and area.is_executable

    def close(self) -> None:
        """Close what is open; may be called twice."""
        for file in self._files or ():
            os.close(file)
        self._files = None


class WalkMemory:
    """Pages, read once each in a walk; stores stay in it.

    Values that are not known (those of vector registers, say) stay unknown in the words that they
    are stored to.

    Args:
        read: reads the target.
    """

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._pages: dict[int, bytearray | None] = {}
        self._unknown: set[int] = set()  # words of 8 bytes

    def prepare(self, stack: int, data: bytes = b"") -> None:
        """Take note of the stack, which is likely to change first.

        Args:
            stack: the stack pointer.
            data: what was there, as far as that is known.
        """
        for number in range(stack >> _PAGE_BITS, ((stack + len(data)) >> _PAGE_BITS) + 1):
            if self.page(number) is None and data:
                self._pages[number] = bytearray(PAGE_BYTES)
                first = number << (_PAGE_BITS - _WORD_BITS)
                self._unknown.update(range(first, first + (PAGE_BYTES >> _WORD_BITS)))
        for at in range(0, len(data), PAGE_BYTES):
            part = data[at : at + PAGE_BYTES]
            self.store(stack + at, len(part), int.from_bytes(part, "little"))

    def page(self, number: int) -> bytearray | None:
        """A page by its number; None if it cannot be read."""
        if number not in self._pages:
            data = self._read(number << _PAGE_BITS, PAGE_BYTES)
            self._pages[number] = bytearray(data) if len(data) == PAGE_BYTES else None
        return self._pages[number]

    def load(self, address: int, size_bytes: int) -> int | None:
        """The value of some bytes, less than a page; None where it is not known."""
        end = address + size_bytes - 1
        if self._unknown:
            words = range(address >> _WORD_BITS, (end >> _WORD_BITS) + 1)
            if any(word in self._unknown for word in words):
                return None
        at = address & (PAGE_BYTES - 1)
        page = self.page(address >> _PAGE_BITS)
        if page is None:
            return None
        if at + size_bytes <= PAGE_BYTES:
            return int.from_bytes(page[at : at + size_bytes], "little")
        other = self.page(end >> _PAGE_BITS)
        if other is None:
            return None
        return int.from_bytes(page[at:] + other[: at + size_bytes - PAGE_BYTES], "little")

    def store(self, address: int, size_bytes: int, value: int | None) -> None:
        """Store into this walk's own copy."""
        first, last = address >> _WORD_BITS, (address + size_bytes - 1) >> _WORD_BITS
        pages = {address >> _PAGE_BITS, (address + size_bytes - 1) >> _PAGE_BITS}
        if value is None or any(self.page(each) is None for each in pages):
            self._unknown.update(range(first, last + 1))
            return
        data = value.to_bytes(size_bytes, "little")
        at = address & (PAGE_BYTES - 1)
        here = min(size_bytes, PAGE_BYTES - at)
        for number, begin, part in (
            (address >> _PAGE_BITS, at, data[:here]),
            ((address >> _PAGE_BITS) + 1, 0, data[here:]),
        ):
            page = self.page(number) if part else None
            if page is not None:
                page[begin : begin + len(part)] = part
        for word in range(first, last + 1):
            is_whole = address <= word << _WORD_BITS and (word + 1) << _WORD_BITS <= (
                address + size_bytes
            )
            if is_whole:
                self._unknown.discard(word)
