"""How much memory a process has, and how much of it is new: what caches may have to hold."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from memsampd.sampler.process.identity import PROC, ProcessStat, read_stat
from memsampd.sampler.process.status import read_status

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Memory of devices is mapped without being counted, but for shared memory and huge pages.
_DEVICE = re.compile(rb" /dev/(?!shm/|zero|huge)")
_GROWTH = 1.25  # of the address space: then devices may have been mapped
_CPUS_LEAST = 4  # that a thread may have run on since its pages were counted


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of a process at some moment: each figure is one at most.

    Attributes:
        resident_bytes: that it has mapped in.
        mapped_bytes: pages that it has been given since the last moment.
    """

    resident_bytes: int
    mapped_bytes: int


class _Counts(msgspec.Struct, frozen=True):
    """Pages that it has, and that faults have given; bytes of hugetlbfs, which are told apart."""

    pages: int
    faults: int
    huge_bytes: int


class MappedMemory:
    """Reads it, again and again.

    A page counts when a fault or a system call has given it. Of faults that give more than a page
    (huge ones, or several of a file) the resident memory tells, unless as much is given back
    meanwhile.

    Args:
        pid: the process.
        cpus: of this machine; None: ask. The kernel adds up pages a CPU at a time, now and then.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, cpus: int | None = None, proc: Path = PROC) -> None:
        self._pid, self._proc = pid, proc
        self._cpus = os.cpu_count() or 1 if cpus is None else cpus
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another program runs in the process: all that it has is new."""
        self._before: _Counts | None = None
        self._looked_bytes = 0.0  # the address space in which devices were looked for
        self._had_devices = False

    def since(self) -> MemoryUse | None:
        """Return what it has, and what it was given since the last call.

        At first and after :meth:`begin_anew` all that it has is new.

        Returns:
            None if that is not known: it is gone, or memory of devices is not counted.
        """
        try:
            stat = read_stat(self._pid, self._proc)
            now = self._count(stat)
            if now.pages == 0 or self._has_devices(stat.space_bytes):
                return None
        except (OSError, ValueError, IndexError):
            return None
        before, self._before = self._before, now
        pages = now.pages + self._uncounted_pages(stat.threads)
        resident_bytes = pages * PAGE_BYTES + now.huge_bytes
        if before is None:
            return MemoryUse(resident_bytes, resident_bytes)
        given = max(now.pages - before.pages, now.faults - before.faults)
        huge_bytes = max(now.huge_bytes - before.huge_bytes, 0)
        return MemoryUse(resident_bytes, given * PAGE_BYTES + huge_bytes)

    def _count(self, stat: ProcessStat) -> _Counts:
        before, pages = self._before, stat.resident_pages
        if before is not None and pages == 0:  # it has ended; its parent has not asked yet
            pages = before.pages + stat.faults - before.faults
        elif before is None or stat.faults != before.faults:
            huge_bytes = read_status(self._pid, self._proc).huge_bytes
            return _Counts(pages, stat.faults, huge_bytes)
        return _Counts(pages, stat.faults, before.huge_bytes)

    def _has_devices(self, space_bytes: int) -> bool:
        """Look for them, unless nothing can have come; areas need not be told apart for that."""
        if space_bytes > _GROWTH * self._looked_bytes:
            maps = (self._proc / str(self._pid) / "maps").read_bytes()
            self._had_devices = _DEVICE.search(maps) is not None
            self._looked_bytes = space_bytes
        return self._had_devices

    def _uncounted_pages(self, threads: int) -> int:
        """Pages that CPUs have not added up yet (percpu_counter: a batch each)."""
        return max(32, 2 * self._cpus) * min(self._cpus, max(threads, _CPUS_LEAST))
