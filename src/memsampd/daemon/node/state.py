"""What outlives the daemon: what users have asked for."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from memsampd.daemon.config import AccessChoice
from memsampd.daemon.node.discovery import ProcessKey

logger = logging.getLogger(__name__)

_VERSION = 2


class AskedFor(msgspec.Struct, frozen=True):
    """A process that a user asked for, or of which they want accesses to come from elsewhere.

    Attributes:
        pid: process id.
        start_ticks: its start time, in clock ticks since boot.
        uid: the user.
        gid: their group.
        accesses: where they want its accesses to come from; None: as the configuration says.
        is_wish: that is all that they want: a rule chose the process.
    """

    pid: int
    start_ticks: int
    uid: int
    gid: int
    accesses: AccessChoice | None = None
    is_wish: bool = False

    @property
    def key(self) -> ProcessKey:
        """The process."""
        return ProcessKey(self.pid, self.start_ticks)


class _File(msgspec.Struct, frozen=True):
    version: int
    boot_id: str
    asked_for: tuple[AskedFor, ...]


class StateFile:
    """Keeps the list in a directory; where that fails, the daemon goes on without.

    Args:
        directory: is made if it is not there.
        boot_id: of this boot of the machine: process ids of another one mean nothing.

    Attributes:
        trouble: why nothing is kept; empty if all is well.
    """

    def __init__(self, directory: Path, boot_id: str | None = None) -> None:
        self._path = directory / "targets.json"
        self._boot_id = _read_boot_id() if boot_id is None else boot_id
        self.trouble = ""

    def read(self) -> tuple[AskedFor, ...]:
        """What was kept in this boot; a file that cannot be used is set aside."""
        try:
            self._check_directory()
            with open(self._path, "rb", opener=_open_no_link) as kept:
                file = msgspec.json.decode(kept.read(), type=_File)
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._fail(f"{self._path} cannot be read: {error.strerror}")
            return ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._set_aside(str(error))
            return ()
        if file.version != _VERSION:
            self._set_aside(f"it has version {file.version}")
            return ()
        return file.asked_for if file.boot_id == self._boot_id else ()

    def write(self, asked_for: Iterable[AskedFor]) -> None:
        """Keep a list, whole or not at all."""
        data = msgspec.json.encode(_File(_VERSION, self._boot_id, tuple(asked_for)))
        scratch = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_directory()
            scratch.unlink(missing_ok=True)
            with open(scratch, "xb", opener=_open_no_link) as file:
                file.write(data)
            os.replace(scratch, self._path)
        except OSError as error:
            self._fail(f"{self._path} cannot be written: {error.strerror}")
        else:
            self.trouble = ""

    def _check_directory(self) -> None:
        """Whoever can write there could have the daemon observe what they may not: none may.

        Raises:
            OSError: others may write there, or it is no directory of ours.
        """
        status = self._path.parent.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "its place is no directory")
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "its directory is another user's")
        if status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write to its directory (chmod go-w)")

    def _fail(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.warning("%s; processes asked for by hand are forgotten at a restart", trouble)
        self.trouble = trouble

    def _set_aside(self, why: str) -> None:
        aside = self._path.with_suffix(".unusable")
        try:
            os.replace(self._path, aside)
        except OSError as error:
            self._fail(f"{self._path} cannot be used ({why}) nor renamed: {error.strerror}")
        else:
            logger.warning("%s cannot be used (%s): it is %s now", self._path, why, aside)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
