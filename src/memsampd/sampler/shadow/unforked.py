"""Memory that a target keeps from its children (MADV_DONTFORK): what a clone of it lacks.

V8 does so with its heap and its code. Which areas those are shows only in a first shadow: the flag
itself is in /proc/PID/smaps alone, for which the kernel walks all page tables of the process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import AddressSpace

Range: TypeAlias = tuple[int, int]
Area: TypeAlias = tuple[int, int, int]  # start, end, PROT_*

# Of address space, the smallest areas first: what lies beyond stays absent.
AREAS_MAXIMUM_BYTES = 1 << 30
# Where some memory is kept from children, so may be what was mapped since: up to so much is copied.
NEW_MAXIMUM_BYTES = 8 << 20
_PAGE_BYTES = 4096
_TOUCHED_SHIFT = 62  # of a word of /proc/PID/pagemap: present, or in swap


def private_areas(space: AddressSpace, ranges: Iterable[Range]) -> tuple[Area, ...]:
    """What of some ranges is private memory that may be used in any way.

    Neighbours with the same permissions are one area.

    Args:
        space: the areas of the process.
        ranges: in order of address, without overlap.
    """
    areas: list[Area] = []
    for start, end in ranges:
        for mapping in space.within(start, end):
            protection = sum(1 << n for n in range(3) if mapping.perms[n] != "-")
            if protection == 0 or mapping.perms[3] != "p":
                continue
            low, high = max(start, mapping.start), min(end, mapping.end)
            if areas and areas[-1][1:] == (low, protection):
                low = areas.pop()[0]
            areas.append((low, high, protection))
    return tuple(areas)


def _smallest(areas: tuple[Area, ...]) -> tuple[Area, ...]:
    if sum(end - start for start, end, _ in areas) <= AREAS_MAXIMUM_BYTES:
        return areas
    kept, total_bytes = [], 0
    for area in sorted(areas, key=lambda area: area[1] - area[0]):
        total_bytes += area[1] - area[0]
        if total_bytes > AREAS_MAXIMUM_BYTES:
            break
        kept.append(area)
    return tuple(sorted(kept))


def touched_pages(pid: int, areas: Iterable[Area], proc: Path = PROC) -> NDArray[np.bool_]:
    """Which pages of some areas, one behind the other, the process has ever used.

    Raises:
        OSError: it is gone, or not ours to look at.
    """
    words = bytearray()
    pagemap = os.open(proc / str(pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end, _ in areas:
            size_bytes = (end - start) // _PAGE_BYTES * 8
            words += os.pread(pagemap, size_bytes, start // _PAGE_BYTES * 8).ljust(
                size_bytes, b"\0"
            )
    finally:
        os.close(pagemap)
    touched: NDArray[np.bool_] = np.frombuffer(words, np.uint64) >> np.uint64(_TOUCHED_SHIFT) != 0
    return touched


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is to be copied while the target is stopped.

    Attributes:
        areas: what a clone is expected to lack.
        room: for the contents of all of them, one behind the other; zeros.
        space: the areas of the process when that was expected.
    """

    areas: tuple[Area, ...]
    room: mmap.mmap | bytearray
    space: AddressSpace

    def for_core(self) -> bytes:
        """The areas as the native core takes them."""
        return np.array(self.areas, np.uint64).tobytes()

    def covers(self, area: Area) -> bool:
        """Whether an area was to be copied."""
        return any(start <= area[0] and area[1] <= end for start, end, _ in self.areas)


class UnforkedMemory:
    """Remembers what shadows of one process lacked.

    Args:
        pid: the process.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._areas: tuple[Area, ...] = ()
        self._space = AddressSpace(())

    def touched_bytes(self) -> int:
        """How much would have to be copied; 0 if that cannot be told."""
        try:
            return int(touched_pages(self._pid, self._areas, self._proc).sum()) * _PAGE_BYTES
        except OSError:
            return 0

    def plan(self, space: AddressSpace) -> CopyPlan:
        """What to copy, and room for it that costs no page faults during the stop.

        Memory that was mapped since the last shadow may be of the same kind: it is copied on the
        chance, and left alone where the shadow has it.

        Args:
            space: the areas of the process now.
        """
        nothing = CopyPlan((), bytearray(), space)
        if not self._areas:
            return nothing
        new = space.beyond(self._space)
        if sum(end - start for start, end in new) > NEW_MAXIMUM_BYTES:
            new = ()
        ranges = sorted([*(area[:2] for area in self._areas), *new])
        areas = _smallest(private_areas(space, ranges))
        if not areas:
            return nothing
        room = mmap.mmap(
            -1,
            sum(end - start for start, end, _ in areas),
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000),
        )
        with suppress(OSError, AttributeError):  # a kernel without huge pages, or no Linux headers
            room.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(room, np.uint8).reshape(-1, _PAGE_BYTES)
        try:
            pages[touched_pages(self._pid, areas, self._proc), 0] = 0
        except OSError:
            return nothing
        return CopyPlan(areas, room, space)

    def learn(
        self, plan: CopyPlan, rebuilt: bytes, absent: Iterable[Range], space: AddressSpace
    ) -> bool:
        """Remember what a shadow lacked.

        Args:
            plan: what was copied for it.
            rebuilt: of each area of the plan, 1 if the shadow then had it.
            absent: what it lacks all the same, in order of address.
            space: the areas of the process now.

        Returns:
            Whether another shadow, taken at once, would lack less.
        """
        missing = private_areas(space, absent)
        there = [area for area, is_there in zip(plan.areas, rebuilt, strict=True) if is_there]
        self._areas = tuple(sorted((*there, *missing)))
        self._space = plan.space
        return any(not plan.covers(area) for area in _smallest(self._areas) if area in missing)
