"""Which program a process runs, so that the same one is known again."""

from __future__ import annotations

import os
import re
import struct
import time

import msgspec

from memsampd.daemon.config import SessionConfig
from memsampd.sampler.process.code_names import identity_of
from memsampd.sampler.process.identity import PROC, read_identity
from memsampd.sampler.process.maps import read_maps

# Raised when names of code, or what is kept, change their meaning.
_MEANING = 2
_AT_PHDR = 3
_AUXV_ENTRY = struct.Struct("<QQ")
_MOST_ARGUMENT_BYTES = 4096
_MOMENT_SECONDS = 10.0


class ProgramKey(msgspec.Struct, frozen=True):
    """A program with a class of arguments, run by a user and observed in some way.

    Attributes:
        digest: hash of all that has to be the same.
        process: names the process for good: boot, pid and start time.
        uid: its real user id.
        command: short name, for people.
        executable: path of the program, for people.
    """

    digest: bytes
    process: str
    uid: int
    command: str
    executable: str


def arguments_class(command_line: bytes) -> bytes:
    r"""What is left of arguments where directories and numbers do not count.

    >>> arguments_class(b"/usr/bin/sort\0-k2\0--output=/tmp/x17.txt")
    b'sort\x00-k0\x00--output=x0.txt'

    Args:
        command_line: arguments with zero bytes between them.
    """
    words = command_line.rstrip(b"\0").split(b"\0")
    names = (re.sub(rb"[^\s=:,]*/", b"", word) for word in words)
    return b"\0".join(re.sub(rb"[0-9]+", b"0", name) for name in names)


def process_name(pid: int) -> str:
    """Name a process for good: pids come again, after a restart of the machine start times, too.

    Raises:
        OSError: there is none.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot}/{pid}/{read_identity(pid).start_ticks}"


def has_just_begun(pid: int) -> bool:
    """Whether a process was started a moment ago; what it executed since does not count."""
    try:
        started_seconds = read_identity(pid).start_ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        return False
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds < _MOMENT_SECONDS


def program_key(
    pid: int,
    config: SessionConfig,
    branches: str = "timer",
    patience_seconds: float = 0.0,
) -> ProgramKey | None:
    """Say which program a process runs now.

    In the midst of an exec that cannot be told, nor before the new program has run a little: its
    first page is not present yet.

    Args:
        pid: the process.
        config: how it is observed: bursts and branch vectors depend on that.
        branches: where branch samples come from: vectors of a PMU are others.
        patience_seconds: how long to ask again where it cannot be told.

    Returns:
        None if it is gone, not ours to look at, or its program cannot be told from others.
    """
    try:
        program = _program(pid)
        give_up = time.monotonic() + patience_seconds
        while program is None and time.monotonic() < give_up:
            time.sleep(0.001)
            program = _program(pid)
        identity = read_identity(pid)
        with open(PROC / str(pid) / "cmdline", "rb") as file:
            arguments = arguments_class(file.read(_MOST_ARGUMENT_BYTES))
        uids = _uids((PROC / str(pid) / "status").read_bytes())
        process = process_name(pid)
    except (OSError, ValueError):
        return None
    if program is None:
        return None
    settings = (
        _MEANING,
        config.bins,
        config.seed,
        config.line_bytes,
        config.window_seconds,
        config.period_seconds,
        config.follow_forks,
        "timer" if branches == "ticks" else branches,
    )
    import hashlib  # loads a library of ciphers: where something is kept only

    digest = hashlib.blake2b(digest_size=20)
    for part in (program, arguments, repr(uids).encode(), repr(settings).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return ProgramKey(digest.digest(), process, uids[0], identity.command, identity.executable)


def _uids(status: bytes) -> tuple[int, ...]:
    """Real, effective, saved and file system user id, from a status file."""
    line = next(line for line in status.split(b"\n") if line.startswith(b"Uid:"))
    return tuple(int(word) for word in line.split()[1:])


def _program(pid: int) -> bytes | None:
    """Identity of the executable: the file whose program headers the kernel told it of."""
    auxiliary = (PROC / str(pid) / "auxv").read_bytes()
    usable = len(auxiliary) // _AUXV_ENTRY.size * _AUXV_ENTRY.size
    told = dict(_AUXV_ENTRY.iter_unpack(auxiliary[:usable]))
    space = read_maps(pid)
    mapping = space.find(told.get(_AT_PHDR, 0))
    if mapping is None:
        return None
    return identity_of(pid, mapping, space, PROC) or None
