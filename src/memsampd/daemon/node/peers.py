"""Who asks the daemon, and which processes may be observed for them."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from memsampd.sampler.process.identity import GONE, PROC, not_looked_at, read_stat


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks.

    Attributes:
        uid: user, as the kernel says.
        gid: group.
        is_privileged: may do all: root, or the daemon's own user.
    """

    uid: int
    gid: int
    is_privileged: bool

    def may_have(self, pid: int, start_ticks: int | None = None) -> bool:
        """Whether a process may be observed for this user: now, it may have other rights later.

        Raises:
            CapabilityError: that cannot be told now.
        """
        return self.is_privileged or self.owns(pid, start_ticks)

    def owns(self, pid: int, start_ticks: int | None = None, proc: Path = PROC) -> bool:
        """Whether a process is this user's, as tracing it would ask: all its ids, dumpable.

        Args:
            pid: the process.
            start_ticks: when it has to have started; None: at any time.
            proc: root of the proc file system.

        Raises:
            CapabilityError: that cannot be told now.
        """
        try:
            with (proc / str(pid) / "status").open("rb") as file:
                # The kernel gives the files of a process that may not be dumped to root, though
                # not its folder.
                owner = os.fstat(file.fileno()).st_uid
                lines = file.read().split(b"\n")
            if start_ticks is not None and read_stat(pid, proc).start_ticks != start_ticks:
                return False  # another one by now, with the same number
        except (*GONE, PermissionError):
            return False
        except OSError as error:
            raise not_looked_at(pid, error) from error
        ids = {line[:4]: set(line[4:].split()) for line in lines}
        uid, gid = {b"%d" % self.uid}, {b"%d" % self.gid}
        is_theirs = ids.get(b"Uid:") == uid and ids.get(b"Gid:") == gid
        return is_theirs and owner == self.uid


def peer_at(to: socket.socket) -> Peer:
    """Who is at the other end, as the kernel noted when it connected."""
    credentials = to.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("iII", credentials)
    return peer_of(uid, gid)


def peer_of(uid: int, gid: int) -> Peer:
    """Somebody with what they may do."""
    return Peer(uid, gid, uid in (0, os.geteuid()))
