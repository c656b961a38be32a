"""What the web process gives up before it reads a byte from anybody."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal

from memsampd.errors import CapabilityError

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_OWN_ID = 2061133858  # nobody else's, nor the replica's
_NOBODY = 65534  # where the user namespace has not got that one
_ADDRESS_SPACE_BYTES = 2 << 30
_DESCRIPTORS = 256
_WRITTEN_BYTES = 64 << 10


def confine(parent_pid: int) -> None:
    """Give up rights and bound what can be used; all memory that is needed is imported already.

    No files beyond a few KiB of messages, no child processes, no threads, no core files, no rights
    by exec, and the end when the parent ends.

    Root becomes a user that nobody else is. Other users stay who they are.

    Args:
        parent_pid: the process that started us.

    Raises:
        CapabilityError: some right is left.
        OSError: the kernel refuses to take one away.
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
    _empty_bounding_set()
    if os.geteuid() == 0:
        _become_nobody()
    _give_up_capabilities()
    # The kernel forgets the first when ids change, so it comes after that.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if os.getppid() != parent_pid:
        os._exit(0)


def _become_nobody() -> None:
    """Take ids that no other process has, if they can be had."""
    os.setgroups([])
    try:
        os.setresgid(_OWN_ID, _OWN_ID, _OWN_ID)
        os.setresuid(_OWN_ID, _OWN_ID, _OWN_ID)
    except OSError:
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _empty_bounding_set() -> None:
    """Without CAP_SETPCAP it stays, and gives nothing: no exec can gain rights from it."""
    with contextlib.suppress(OSError):
        for capability in itertools.count():  # beyond the last one the kernel refuses
            _prctl(_PR_CAPBSET_DROP, capability)


def _give_up_capabilities() -> None:
    """Empty all sets; not root may have some, too, and those that exec would keep (ambient)."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the upper halves after that
    _call("capset", header, sets)
    _call("capget", header, sets)
    if any(sets) or 0 in os.getresuid():
        raise CapabilityError(
            "the process that serves HTTP could not give up its rights",
            'start memsampd as root or as a user without capabilities, or with listen = ""',
        )


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (limit, limit))


def _prctl(option: int, value: int) -> None:
    _call("prctl", *(ctypes.c_ulong(word) for word in (option, value, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name} failed")
