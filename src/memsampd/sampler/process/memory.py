"""Reading a process's memory without a change to it."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import AddressSpace, read_maps

PRESENT = 1 << 63
"""Of an entry of a page map: the page is in memory (proc_pid_pagemap(5))."""
_PAGE_BYTES = 4096
_ENTRY = struct.Struct("<Q")
_LOOK_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAPPED_SECONDS = 1.0  # areas are read again after so long: there may be thousands


class PresentMemory:
    """Reads as much of a process's memory as is present: a read of other pages would bring them in.

    Files of /proc are opened for each read, or once for all that is read while it is entered: an
    open one goes on to show the memory of before an exec.

    Args:
        pid: the process.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._paths = f"{proc}/{pid}/pagemap", f"{proc}/{pid}/mem"
        self._files: list[int] = []
        self._is_entered = False

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_entered = False
        self._close()

    def __call__(self, address: int, size_bytes: int) -> bytes:
        """Read; fewer bytes, or none, where not all pages are present.

        Raises:
            OSError: the process is gone, or not ours to read.
        """
        try:
            return self._read(address, size_bytes)
        finally:
            if not self._is_entered:
                self._close()

    def _read(self, address: int, size_bytes: int) -> bytes:
        while len(self._files) < len(self._paths):
            self._files.append(os.open(self._paths[len(self._files)], os.O_RDONLY | os.O_CLOEXEC))
        pagemap, memory = self._files
        first, last = address // _PAGE_BYTES, (address + size_bytes - 1) // _PAGE_BYTES
        entries = os.pread(pagemap, 8 * (last - first + 1), 8 * first)
        is_present = [entry & PRESENT != 0 for (entry,) in _ENTRY.iter_unpack(entries)]
        pages = is_present.index(False) if False in is_present else len(is_present)
        readable_bytes = min((first + pages) * _PAGE_BYTES - address, size_bytes)
        return os.pread(memory, readable_bytes, address) if readable_bytes > 0 else b""

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def entered(reader: object) -> AbstractContextManager[object]:
    """What to enter where much is read at once: the reader, if it can be."""
    return reader if isinstance(reader, AbstractContextManager) else nullcontext()


class MappedFiles:
    """Reads what is mapped of a file, and cannot be written, from the file itself.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._space: AddressSpace | None = None
        self._mapped_seconds = -_MAPPED_SECONDS

    def begin(self) -> None:
        """Look again, unless that was a moment ago: after an exec the memory is another one."""
        if time.monotonic() - self._mapped_seconds > _MAPPED_SECONDS:
            self._space = None

    @property
    def space(self) -> AddressSpace:
        """What is mapped, or was a moment ago; nothing where the process is gone."""
        if self._space is None:
            self._mapped_seconds = time.monotonic()
            try:
                self._space = read_maps(self._pid)
            except OSError:
                self._space = AddressSpace(())
        return self._space

    def read(self, address: int, size_bytes: int) -> bytes:
        """Read, if it is the same file as it was; nothing where that is not to be had."""
        area = self.space.find(address)
        if area is None or not area.inode or "w" in area.perms:
            return b""
        try:
            file = open_within(f"{PROC}/{self._pid}/root", area.path, area.inode)
        except OSError:
            return b""
        try:
            return os.pread(file, size_bytes, address - area.start + area.offset)
        except OSError:
            return b""
        finally:
            os.close(file)


def open_within(root: str, path: str, inode: int) -> int:
    """Open a plain file to read; its descriptor.

    The path is the process's own word: what is there by now may be a link to anywhere, a pipe that
    keeps us waiting, a device that an open sets going. So each part is looked at before, and no
    link is followed.

    Args:
        root: directory that the path begins at.
        path: absolute, as the kernel told it.
        inode: number of the file that it was.

    Raises:
        OSError: there is no such file any more.
    """
    found = os.open(root, os.O_PATH | os.O_CLOEXEC)
    try:
        for name in path.strip("/").split("/"):
            found, before = os.open(name, _LOOK_ONLY, dir_fd=found), found
            os.close(before)
        status = os.fstat(found)
        # Files of /proc and the like, which do things when they are read, are on no blocks.
        is_stored = stat.S_ISREG(status.st_mode) and os.fstatvfs(found).f_blocks > 0
        if not is_stored or status.st_ino != inode:
            raise FileNotFoundError(errno.ENOENT, "not the file that was mapped", path)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)


class CodeReader(AbstractContextManager["CodeReader"]):
    """Reads the code of a process, or nothing where there is none; to be entered for much at once.

    Pages that it has not got are not read: that would bring them in for it. Where its memory may
    not be read, the files that are mapped are.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self._present = PresentMemory(pid)
        self._mapped = MappedFiles(pid)

    def __enter__(self) -> Self:
        self._present.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._present.__exit__(*raised)

    def __call__(self, address: int, size_bytes: int) -> bytes:
        """Read."""
        try:
            return self._present(address, size_bytes)
        except PermissionError:
            self._mapped.begin()
            return self._mapped.read(address, size_bytes)
        except (OSError, OverflowError):
            return b""
