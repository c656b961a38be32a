"""Names of code wherever it is loaded: what file it is of, by its build id, and where in it."""

from __future__ import annotations

import struct
import time
from _blake2 import blake2b  # hashlib's own, which loads a library of ciphers besides
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from memsampd.sampler.process.identity import PROC, read_stat
from memsampd.sampler.process.maps import AddressSpace, Mapping, read_maps
from memsampd.sampler.process.memory import PresentMemory

_PAGE_BYTES = 4096
_WRAP = 1 << 64
# Maps may be read for a hundredth of the time, and for so long at once.
_READING_SHARE = 0.01
_READING_SECONDS = 0.05

_ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_PROGRAM_HEADERS = struct.Struct("<Q12xHHH")  # e_phoff, e_ehsize, e_phentsize, e_phnum, from 32 on
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3
_MOST_NOTE_BYTES = 4096
_MOST_PAGES = 4096  # that are remembered
_MOST_ANCESTORS = 3
_PARTS = 16  # areas in which the parts of a file lie about each other

ReadMemory = Callable[[int, int], bytes]
"""``read(address, length)``: the bytes there, fewer or none where it is not present."""


def note_ranges(page: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and length in the file of each segment of notes, as the first page tells."""
    if not page.startswith(_ELF_MAGIC) or len(page) < 64:
        return
    at, _, size_bytes, count = _PROGRAM_HEADERS.unpack_from(page, 32)
    for number in range(count):
        begin = at + number * size_bytes
        if size_bytes < _PROGRAM_HEADER.size or begin + _PROGRAM_HEADER.size > len(page):
            return
        kind, _, offset, _, _, length, _, _ = _PROGRAM_HEADER.unpack_from(page, begin)
        if kind == _PT_NOTE:
            yield offset, min(length, _MOST_NOTE_BYTES)


def build_id(notes: bytes) -> bytes | None:
    """The build id among some notes (elf(5)); None if there is none."""
    at = 0
    while at + _NOTE.size <= len(notes):
        name_bytes, content_bytes, kind = _NOTE.unpack_from(notes, at)
        name = at + _NOTE.size
        content = name + (name_bytes + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and notes[name : name + name_bytes] == b"GNU\0":
            found = notes[content : content + content_bytes]
            return found if found and len(found) == content_bytes else None
        at = content + (content_bytes + 3) // 4 * 4
    return None


def file_identity(space: AddressSpace, mapping: Mapping, read: ReadMemory) -> bytes | None:
    """Say which program or library a mapping is of, from what is mapped of it.

    Its build id; where it has none, a hash of its first page, which holds sizes and places of all
    of its parts. No file is opened: what a path leads to is the target's choice.

    Args:
        space: the mapping's address space.
        mapping: part of a file.
        read: reads the memory.

    Returns:
        Empty if it is no program or library; None if its first page is not present.
    """
    parts = [each for each in space.around(mapping, _PARTS) if _is_same_file(each, mapping)]
    first = next((each for each in parts if each.offset == 0), None)
    page = read(first.start, _PAGE_BYTES) if first is not None else b""
    if not page.startswith(_ELF_MAGIC):
        return b"" if page or first is None else None
    for offset, length in note_ranges(page):
        for part in parts:
            if part.offset <= offset and offset + length <= part.offset + part.size_bytes:
                found = build_id(read(part.start + offset - part.offset, length))
                if found is not None:
                    return b"build id " + found
    return b"first page " + blake2b(page, digest_size=20).digest()


def identity_of(pid: int, mapping: Mapping, space: AddressSpace, proc: Path) -> bytes | None:
    """``file_identity`` of a mapping of a process, as this one has it or those that it comes from.

    A forked process has of files what it has touched itself: a server's child hardly ever the first
    page of its program. Its parent has, that began with it.

    Args:
        pid: the process.
        mapping: part of a file.
        space: the address space of the process.
        proc: root of the proc file system.
    """
    found = file_identity(space, mapping, present_memory(pid, proc))
    for _ in range(_MOST_ANCESTORS):
        if found is not None or not mapping.inode:
            break
        try:
            pid = read_stat(pid, proc).parent_pid
            space = read_maps(pid, proc)
        except OSError:
            break
        same = next((each for each in space.mappings if _is_same_file(each, mapping)), None)
        if same is None:
            break
        found = file_identity(space, same, present_memory(pid, proc))
    return found


def _is_same_file(one: Mapping, other: Mapping) -> bool:
    if not one.inode:
        return one == other
    return (one.inode, one.device, one.path) == (other.inode, other.device, other.path)


def present_memory(pid: int, proc: Path = PROC) -> ReadMemory:
    """A function that reads what is present of a process's memory, or nothing."""
    memory = PresentMemory(pid, proc)

    def read(address: int, size_bytes: int) -> bytes:
        try:
            return memory(address, size_bytes)
        except (OSError, OverflowError):
            return b""

    return read


class CodeNames:
    """Names the code of one process.

    Code of a program or library is named by the file's identity and the offset in it, the same in
    every process and at every load address. Other code (a JIT's) is named by its address, and by
    which process it is of: such code of two processes never has the same name.

    Maps are read again when an address is in none that is known, for a hundredth of the time at
    most: meanwhile new code is named by its address.

    Args:
        pid: the process.
        process: names it for good: what its own addresses are named by, besides.
        proc: root of the proc file system.
        now: monotonic time in seconds.
    """

    def __init__(
        self,
        pid: int,
        process: bytes,
        proc: Path = PROC,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._proc = proc
        self._now = now
        self._own = name_of(b"process " + process)
        self._space: AddressSpace | None = None
        # Of pages of files, what names in them are more than addresses.
        self._shifts: dict[int, int] = {}
        self._bases: dict[tuple[int, str, str, int], int | None] = {}
        self._asked: Counter[tuple[int, str, str, int]] = Counter()  # for such as cannot be told
        self._started_seconds = now()
        self._reading_seconds = 0.0

    def __call__(self, address: int) -> tuple[int, bool]:
        """Name an address.

        Returns:
            The name, and whether the same code has it in other processes, too.
        """
        page = address // _PAGE_BYTES
        shift = self._shifts.get(page)
        if shift is None:
            mapping = self._find(address)
            base = None if mapping is None else self._base(mapping)
            if mapping is None or base is None:
                return (self._own + address) % _WRAP, False
            shift = base + mapping.offset - mapping.start
            if len(self._shifts) >= _MOST_PAGES:
                self._shifts.clear()
            self._shifts[page] = shift
        return (address + shift) % _WRAP, True

    def _find(self, address: int) -> Mapping | None:
        mapping = self._space.find(address) if self._space is not None else None
        if mapping is None and self._may_read():
            self._read_maps()
            mapping = self._space.find(address) if self._space is not None else None
        return mapping

    def _may_read(self) -> bool:
        allowed = _READING_SECONDS + _READING_SHARE * (self._now() - self._started_seconds)
        return self._reading_seconds < allowed

    def _read_maps(self) -> None:
        before = self._now()
        self._shifts.clear()
        try:
            self._space = read_maps(self._pid, self._proc)
        except OSError:
            self._space = AddressSpace(())
        self._reading_seconds += self._now() - before

    def _base(self, mapping: Mapping) -> int | None:
        """The name of the first byte of a mapping's file.

        None if it is no program or library, or cannot be told at present.
        """
        if not mapping.path:
            return None
        start = 0 if mapping.inode else mapping.start  # the vDSO
        key = (mapping.inode, mapping.device, mapping.path, start)
        if key not in self._bases:
            # The first page of its program may not be in memory for ever, and thousands of
            # addresses may be asked about: it is looked for as often as these have doubled.
            self._asked[key] += 1
            if self._asked[key].bit_count() > 1:
                return None
            assert self._space is not None, "a mapping of it"
            found = identity_of(self._pid, mapping, self._space, self._proc)
            if found is None:
                return None
            self._bases[key] = name_of(found) if found else None
        return self._bases[key]


def name_of(identity: bytes) -> int:
    """Return the name of the first byte of the file of this identity, see `file_identity`."""
    return int.from_bytes(blake2b(identity, digest_size=8).digest(), "little")
