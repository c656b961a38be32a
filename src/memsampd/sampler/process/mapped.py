"""How much memory a process has, and how much of it is new: what caches may have to hold."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memsampd.sampler.process.identity import PROC

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Memory of devices is mapped without being counted, but for shared memory and huge pages.
_DEVICE = re.compile(rb" /dev/(?!shm/|zero|huge)")
_HUGE = re.compile(rb"^HugetlbPages:\s+(\d+) kB", re.MULTILINE)
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
    """Of a process: faults that gave pages, its address space, pages that it has, threads.

    Pages of hugetlbfs are told apart, in bytes: resident memory does not hold them.
    """

    faults: int
    space_bytes: int
    pages: int
    threads: int
    huge_bytes: int = 0


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
        self._folder = proc / str(pid)
        self._cpus = os.cpu_count() or 1 if cpus is None else cpus
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another program runs in the process: all that it has is new."""
        self._before: _Counts | None = None
        self._looked_bytes = 0.0  # the address space in which devices were looked for

    def since(self) -> MemoryUse | None:
        """Return what it has, and what it was given since the last call.

        At first and after :meth:`begin_anew` all that it has is new.

        Returns:
            None if that is not known: it is gone, or memory of devices is not counted.
        """
        try:
            now = self._count()
        except (OSError, ValueError, IndexError):
            return None
        if now.pages == 0 or self._has_devices(now):
            return None
        before, self._before = self._before, now
        pages = now.pages + self._uncounted_pages(now.threads)
        resident_bytes = pages * PAGE_BYTES + now.huge_bytes
        if before is None:
            return MemoryUse(resident_bytes, resident_bytes)
        given = max(now.pages - before.pages, now.faults - before.faults)
        huge_bytes = max(now.huge_bytes - before.huge_bytes, 0)
        return MemoryUse(resident_bytes, given * PAGE_BYTES + huge_bytes)

    def _count(self) -> _Counts:
        now, before = _parse((self._folder / "stat").read_bytes()), self._before
        if before is None:
            return self._with_huge(now)
        if now.pages == 0:  # it has ended; faults are told until its parent has asked
            pages = before.pages + now.faults - before.faults
            return replace(now, pages=pages, huge_bytes=before.huge_bytes)
        if now.faults == before.faults:
            return replace(now, huge_bytes=before.huge_bytes)
        return self._with_huge(now)

    def _with_huge(self, now: _Counts) -> _Counts:
        found = _HUGE.search((self._folder / "status").read_bytes())
        return replace(now, huge_bytes=int(found[1]) * 1024 if found else 0)

    def _has_devices(self, now: _Counts) -> bool:
        if now.space_bytes > _GROWTH * self._looked_bytes:
            try:
                maps = (self._folder / "maps").read_bytes()
            except OSError:
                return True  # nobody knows
            if _DEVICE.search(maps):
                return True
            self._looked_bytes = now.space_bytes
        return False

    def _uncounted_pages(self, threads: int) -> int:
        """Pages that CPUs have not added up yet (percpu_counter: a batch each)."""
        return max(32, 2 * self._cpus) * min(self._cpus, max(threads, _CPUS_LEAST))


def _parse(stat: bytes) -> _Counts:
    """Parse a stat file (proc_pid_stat(5))."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return _Counts(
        faults=int(fields[7]) + int(fields[9]),
        space_bytes=int(fields[20]),
        pages=int(fields[21]),
        threads=int(fields[17]),
    )
