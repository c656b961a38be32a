"""How many bytes the kernel copies or clears for a process: what string instructions move there."""

from __future__ import annotations

from pathlib import Path

from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.mapped import MemoryUse


class CopiedBytes:
    """Reads it, again and again; each figure is one at most.

    What read(2), write(2) and their like moved (sockets and pipes, too) is told by
    ``/proc/PID/io``; a page that is given is cleared, or filled. What send(2) and recv(2) move is
    told nowhere.

    Args:
        pid: the process.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._file = proc / str(pid) / "io"
        self._before: int | None = None
        self._has_memory = False

    def begin_anew(self) -> None:
        """Another program runs in the process: all its memory is new."""
        self._has_memory = False

    def since(self, memory: MemoryUse | None) -> int | None:
        """Return the bytes since the last call; 0 at first.

        Args:
            memory: what the process was given meanwhile; all that it has at first.

        Returns:
            None where it is not told.
        """
        given = memory.mapped_bytes if memory is not None and self._has_memory else 0
        self._has_memory = memory is not None
        try:
            counts = dict(line.split(": ") for line in self._file.read_text("ascii").splitlines())
            now = int(counts["rchar"]) + int(counts["wchar"])
        except (OSError, ValueError, KeyError):
            return None
        before, self._before = self._before, now
        return given + (0 if before is None else max(now - before, 0))
