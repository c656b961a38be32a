"""Files that a target has open: what its shadows read of them, memsampd reads in their place.

A shadow has no descriptors. Of a regular file, the native core reads for it through a descriptor of
our own, from where the target's stood at the stop; what it writes there, or to /dev/null, is
dropped (``_core/replica/open_files.c``).
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from memsampd import _core
from memsampd.sampler.process.identity import PROC

# A process with more descriptors costs more to look through than its shadows gain.
DESCRIPTORS_MAXIMUM = 256
FILES_MAXIMUM = 32
# Where a read asks neither a server nor a driver, and no file is made up at the moment of reading.
_LOCAL = frozenset(
    [
        *("bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs"),
        *("iso9660", "msdos", "ntfs3", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "udf"),
        *("vfat", "xfs", "zfs"),
    ]
)
_NULL_DEVICE = os.makedev(1, 3)
_NO_DESCRIPTOR = -1
_WHOLE_FDINFO_BYTES = 4096
_UNLIKE_FILES = os.O_PATH | os.O_DIRECT  # neither is read and written as files are
_READ_UNNOTICED = os.O_RDONLY | os.O_NOATIME | os.O_NOCTTY | os.O_NONBLOCK
_RECORD = struct.Struct("=iiqQQII")  # struct open_file in _core/replica/emulation.h


@dataclass(frozen=True, slots=True)
class FdInfo:
    """What /proc/PID/fdinfo says of a descriptor (proc_pid_fdinfo(5)).

    Attributes:
        offset: where the next read or write happens.
        flags: as of open(2).
        mount: the number of the mount that the file was found in.
        inode: the file's number there.
        is_leased: somebody wants to know when the file is opened (fcntl_locking(2)).
    """

    offset: int
    flags: int
    mount: int
    inode: int
    is_leased: bool

    def is_same_file(self, other: FdInfo) -> bool:
        """Whether both are one file, as long as one of them is held open."""
        return (self.mount, self.inode) == (other.mount, other.inode)


def parse_fdinfo(text: bytes) -> FdInfo | None:
    """Parse it, at least its first lines.

    Returns:
        What it says; None if there is nothing, or no inode, as before Linux 5.14.
    """
    fields: dict[bytes, bytes] = {}
    for line in text.split(b"\n"):
        name, colon, value = line.partition(b":")
        fields.setdefault(name, value.strip() if colon else b"")
    try:
        return FdInfo(
            int(fields[b"pos"]),
            int(fields[b"flags"], 8),
            int(fields[b"mnt_id"]),
            int(fields[b"ino"]),
            b"LEASE" in text,
        )
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """A file of the target as of a stop: the fields of ``struct open_file``."""

    number: int
    descriptor: int
    offset: int
    device: int
    inode: int
    flags: int
    marks: int


class OpenFiles:
    """What a target had open at a stop, and our own descriptors of it.

    These are closed when the last shadow that holds them has ended.

    Args:
        files: regular files and /dev/null.
        pids: shadows that hold them.
    """

    def __init__(self, files: Sequence[_OpenFile] = (), pids: Sequence[int] = ()) -> None:
        self._files = tuple(files)
        self._holders = set(pids)

    def for_core(self) -> bytes:
        """As the native core takes them; none once they are closed."""
        return b"".join(
            _RECORD.pack(f.number, f.descriptor, f.offset, f.device, f.inode, f.flags, f.marks)
            for f in self._files
        )

    def hold(self, pid: int) -> None:
        """Keep them open for one more shadow."""
        self._holders.add(pid)

    def release(self, pid: int) -> None:
        """A shadow has ended."""
        self._holders.discard(pid)
        if not self._holders:
            files, self._files = self._files, ()
            for file in files:
                if file.descriptor != _NO_DESCRIPTOR:
                    os.close(file.descriptor)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file that the target has open shortly before a stop.

    Attributes:
        number: the target's descriptor.
        fdinfo: a descriptor of ours that tells about that one.
        handle: ours of the same file, which opens nothing (O_PATH) but holds it.
        reader: ours to read it by; -1 if there is none.
        info: what /proc says of ours.
        status: of the file.
    """

    number: int
    fdinfo: int
    handle: int
    reader: int
    info: FdInfo
    status: os.stat_result

    def settle(self, text: bytes) -> _OpenFile | None:
        """The file as of the stop; None if the target's descriptor then was another one."""
        now = parse_fdinfo(text)
        if now is None or not now.is_same_file(self.info) or now.flags & _UNLIKE_FILES:
            return None
        is_null = stat.S_ISCHR(self.status.st_mode)
        flags = now.flags
        if self.reader < 0:
            if flags & os.O_ACCMODE == os.O_RDONLY:
                return None
            flags = flags & ~os.O_ACCMODE | os.O_WRONLY
        return _OpenFile(
            self.number,
            _NO_DESCRIPTOR if is_null else self.reader if self.reader >= 0 else self.handle,
            now.offset,
            self.status.st_dev,
            self.status.st_ino,
            flags,
            _core.FILE_IS_NULL if is_null else 0,
        )


class FilePlan:
    """What to look at while the target is stopped.

    Args:
        candidates: what it has open now; their descriptors are this object's.
    """

    def __init__(self, candidates: Sequence[_Candidate]) -> None:
        self._candidates = candidates

    def for_core(self) -> bytes:
        """Descriptors of /proc/PID/fdinfo as the native core takes them."""
        return struct.pack(f"={len(self._candidates)}i", *(c.fdinfo for c in self._candidates))

    def settle(self, texts: bytes, pids: Sequence[int]) -> OpenFiles:
        """Keep what was the same at the stop, and close the rest; to be called once.

        Args:
            texts: what the core has read, ``FDINFO_BYTES`` a file.
            pids: the shadows of the stop, which hold the result.
        """
        kept = []
        for n, candidate in enumerate(self._candidates):
            text = texts[n * _core.FDINFO_BYTES : (n + 1) * _core.FDINFO_BYTES]
            file = candidate.settle(text.rstrip(b"\0")) if pids else None
            if file is not None:
                kept.append(file)
            for descriptor in (candidate.fdinfo, candidate.handle, candidate.reader):
                if descriptor >= 0 and (file is None or descriptor != file.descriptor):
                    os.close(descriptor)
        return OpenFiles(kept, pids)


class TargetFiles:
    """Finds what threads of one process have open.

    Args:
        proc: root of the proc file system.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._local_mounts: dict[int, bool] = {}

    def plan(self, tid: int) -> FilePlan:
        """Open those files of a thread for which its shadows can be answered."""
        candidates: list[_Candidate] = []
        for number in self._numbers(tid):
            with suppress(OSError), ExitStack() as opened:  # closed meanwhile, or not ours to see
                candidate = self._examine(tid, number, opened)
                if candidate is not None:
                    candidates.append(candidate)
                    opened.pop_all()
            if len(candidates) == FILES_MAXIMUM:
                break
        return FilePlan(candidates)

    def _numbers(self, tid: int) -> list[int]:
        """Descriptors of what has a path; none if there are very many descriptors."""
        numbers = []
        with suppress(OSError), os.scandir(self._proc / str(tid) / "fd") as entries:
            for count, entry in enumerate(entries):
                if count == DESCRIPTORS_MAXIMUM:
                    return []
                with suppress(OSError):
                    if os.readlink(entry.path).startswith("/"):
                        numbers.append(int(entry.name))
        return sorted(numbers)

    def _examine(self, tid: int, number: int, opened: ExitStack) -> _Candidate | None:
        """Look at a file, and open it only if nobody will notice.

        The driver of a device would, or the other end of a pipe, which the descriptor may have come
        to be meanwhile; so would a server, and who has a lease on the file.
        """
        fdinfo = self._open(opened, f"{tid}/fdinfo/{number}", os.O_RDONLY)
        theirs = parse_fdinfo(os.pread(fdinfo, _WHOLE_FDINFO_BYTES, 0))
        if (
            theirs is None
            or theirs.is_leased
            or theirs.flags & _UNLIKE_FILES
            or not self._is_local(tid, theirs.mount)
        ):
            return None
        handle = self._open(opened, f"{tid}/fd/{number}", os.O_PATH)
        status, access = os.fstat(handle), theirs.flags & os.O_ACCMODE
        is_null = stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL_DEVICE
        ours = parse_fdinfo((self._proc / f"self/fdinfo/{handle}").read_bytes())
        if (
            ours is None
            or not ours.is_same_file(theirs)
            or not (stat.S_ISREG(status.st_mode) or (is_null and access != os.O_RDONLY))
        ):
            return None
        reader = _NO_DESCRIPTOR
        if not is_null and access != os.O_WRONLY:
            with suppress(OSError):  # not ours to read, or not without changing its access time
                reader = self._open(opened, f"self/fd/{handle}", _READ_UNNOTICED)
        return _Candidate(number, fdinfo, handle, reader, ours, status)

    def _open(self, opened: ExitStack, path: str, flags: int) -> int:
        descriptor = os.open(self._proc / path, flags | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        return descriptor

    def _is_local(self, tid: int, mount: int) -> bool:
        """Whether a mount is of a kind that can be read unnoticed."""
        if mount not in self._local_mounts:
            self._local_mounts |= local_mounts((self._proc / str(tid) / "mountinfo").read_bytes())
        return self._local_mounts.setdefault(mount, False)


def local_mounts(text: bytes) -> dict[int, bool]:
    """Numbers of mounts, and whether their files can be read unnoticed (proc_pid_mountinfo(5))."""
    found = {}
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        found[int(before.split(maxsplit=1)[0])] = after.split(maxsplit=1)[0].decode() in _LOCAL
    return found
