"""The daemon's control socket in the file system: one daemon at a time serves it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from memsampd.errors import CapabilityError


def _make_directory(path: Path) -> None:
    """Make the socket's directory.

    Raises:
        CapabilityError: it cannot be made, is another user's, or others may write to it.
    """
    try:
        path.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise CapabilityError(
            f"{path} cannot be made: {error.strerror}", "choose another socket"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        raise CapabilityError(
            f"{path} is no directory of yours", "choose another path of the socket"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise CapabilityError(
            f"{path} may be written to by others", f"chmod go-w {path}, or choose another path"
        )


def require_no_daemon(path: Path) -> None:
    """See to it that no daemon serves a socket at present.

    Raises:
        CapabilityError: one does, or the socket cannot be made.
    """
    os.close(lock(path))


def lock(path: Path) -> int:
    """Take the lock of a socket, which the kernel gives back however the daemon ends.

    The socket's directory is made if there is none.

    Raises:
        CapabilityError: another daemon has it, or it cannot be had there.
    """
    _make_directory(path.parent)
    name = path.with_name(f"{path.name}.lock")
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CapabilityError(
            f"{name} cannot be opened: {error.strerror}", "choose another path of the socket"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise CapabilityError(
            f"a daemon (process {owner}) serves {path} already",
            "use that one (memsampd list), stop it, or choose another --socket and --listen",
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def listen(path: Path, most_waiting: int) -> socket.socket:
    """Listen; what a daemon that was killed left behind is replaced.

    Args:
        path: of the socket.
        most_waiting: connections that nobody has accepted yet.

    Raises:
        CapabilityError: the socket cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(errno.EEXIST, "it is there and no socket")
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # whoever connects is asked who it is
        listener.listen(most_waiting)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CapabilityError(
            f"{path} cannot be listened on: {error.strerror}", "choose another path of the socket"
        ) from error
    return listener
