"""What the web process gives up before it reads a byte from anybody."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal

from memsampd.errors import CapabilityError

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_ADDRESS_SPACE_BYTES = 2 << 30
_DESCRIPTORS = 256
_WRITTEN_BYTES = 64 << 10


def user_ids(name: str) -> tuple[int, int]:
    """Return uid and gid of a user.

    Raises:
        CapabilityError: there is none of that name, or it is root.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise CapabilityError(
            f"there is no user {name!r} to serve HTTP as", "name one that has no rights"
        ) from None
    if entry.pw_uid == 0:
        raise CapabilityError("HTTP is not served as root", "name a user that has no rights")
    return entry.pw_uid, entry.pw_gid


def confine(ids: tuple[int, int] | None, parent_pid: int) -> None:
    """Give up rights and bound what can be used; all memory that is needed is imported already.

    No files beyond a few KiB of messages, no child processes, no threads, no core files, no rights
    by exec, and the end when the parent ends.

    Args:
        ids: uid and gid to become; None to stay who we are.
        parent_pid: the process that started us.
    """
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _WRITTEN_BYTES),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_AS, _ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_NPROC, 0),
    ):
        _lower(kind, limit)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if ids is not None:
        uid, gid = ids
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    # The kernel forgets the first when ids change, so it comes after that.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if os.getppid() != parent_pid:
        os._exit(0)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (limit, limit))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
