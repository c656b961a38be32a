"""The address space of a process, from /proc/PID/maps."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memsampd.sampler.process.identity import PROC


class Mapping(NamedTuple):
    r"""One area of an address space (proc_pid_maps(5)).

    A tuple: thousands are made a burst, and a frozen dataclass takes four times as long to make.

    Attributes:
        start: first address.
        end: first address after it.
        perms: "r-xp" and the like; the last letter is "p" (private) or "s" (shared).
        offset: offset of ``start`` in the file, bytes.
        device: "major:minor" of the file, in hexadecimal.
        inode: inode of the file; 0 if there is none.
        path: file, "[heap]", "[vdso]", ... or empty; as the kernel prints it, that is with
            " (deleted)" behind it where the file is gone and a newline in it as "\012".
    """

    start: int
    end: int
    perms: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.end - self.start

    @property
    def is_executable(self) -> bool:
        """Whether code in it can run."""
        return self.perms[2] == "x"


def parse_maps(text: str) -> tuple[Mapping, ...]:
    """Parse the text of /proc/PID/maps, in order of address."""
    mappings = []
    for line in text.split("\n")[:-1]:  # names may hold what else counts as the end of a line
        addresses, perms, offset, device, inode, *path = line.split(maxsplit=5)
        start, _, end = addresses.partition("-")
        mappings.append(
            Mapping(
                int(start, 16),
                int(end, 16),
                perms,
                int(offset, 16),
                device,
                int(inode),
                path[0] if path else "",
            )
        )
    return tuple(mappings)


class AddressSpace:
    """The areas of a process at one moment, searchable by address.

    Args:
        mappings: areas in order of address, without overlap.
    """

    def __init__(self, mappings: Sequence[Mapping]) -> None:
        self.mappings = mappings
        self._starts = [mapping.start for mapping in mappings]

    def find(self, address: int) -> Mapping | None:
        """The area that an address lies in; O(log areas)."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self.mappings[index].end:
            return self.mappings[index]
        return None

    def around(self, mapping: Mapping, count: int) -> Sequence[Mapping]:
        """One of the areas, and as many on either side of it."""
        index = bisect.bisect_left(self._starts, mapping.start)
        return self.mappings[max(index - count, 0) : index + count + 1]


def read_maps(pid: int, proc: Path = PROC) -> AddressSpace:
    """Read the areas of a process.

    The kernel gives the file in pieces: areas that change meanwhile may be missed or torn, those
    that do not change are right.

    Raises:
        OSError: no such process, or it is not ours to look at.
    """
    text = (proc / str(pid) / "maps").read_bytes().decode(errors="surrogateescape")
    return AddressSpace(parse_maps(text))
