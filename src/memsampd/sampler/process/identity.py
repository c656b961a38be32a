"""Which process a pid names, and whether it still is that one."""

from __future__ import annotations

import errno
import math
import os
import select
import time
from pathlib import Path

import msgspec

from memsampd.closing import Closing
from memsampd.errors import CapabilityError, TargetError

PROC = Path("/proc")
GONE = (FileNotFoundError, ProcessLookupError)
"""That there is no such process; other errors (no descriptor is left) say nothing of it."""
_KERNEL_THREAD, _EXITING = 0x00200000, 0x00000004  # PF_ bits


class ProcessStat(msgspec.Struct, frozen=True):
    """The fields of /proc/PID/stat that we use (proc_pid_stat(5)).

    The last three came with later kernels; where they are missing, they are 0.

    Attributes:
        pid: process or thread id.
        command: short name, at most 15 bytes; what is no UTF-8 is replaced.
        state: "R", "S", "D", "T" (stopped), "t" (traced stop), "Z" (zombie), "X", "I".
        parent_pid: process id of the parent.
        flags: the kernel's PF_ bits.
        user_ticks: user CPU time in ticks of sysconf(SC_CLK_TCK); of all threads, those that
            exited included, where the path is a process's.
        system_ticks: the same of system CPU time.
        faults: page faults of the same threads, minor and major ones.
        threads: number of threads.
        start_ticks: start time in ticks since boot.
        space_bytes: size of its address space.
        resident_pages: pages that it has in memory, without those of hugetlbfs; 0 once it is dead.
        program: where its code begins and ends, and its stack begins; the first is zero while an
            exec makes it and once it has no memory; ones and a zero where that may not be known.
    """

    pid: int
    command: str
    state: str
    parent_pid: int
    flags: int
    user_ticks: int
    system_ticks: int
    faults: int
    threads: int
    start_ticks: int
    space_bytes: int
    resident_pages: int
    program: tuple[str, ...]

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel (PF_KTHREAD)."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def is_dead(self) -> bool:
        """Whether it has exited: a zombie or just going."""
        return self.state in "ZXx"

    @property
    def is_half_made(self) -> bool:
        """Whether an exec has ended the program before, and the next one is not there yet.

        The kernel tells those who wait for the exec before it has mapped the program and written
        its arguments: what /proc says of it is partly of neither.
        """
        is_no_program = self.is_dead or self.flags & (_KERNEL_THREAD | _EXITING)
        return self.program[0] == "0" and not is_no_program


def parse_stat(text: str) -> ProcessStat:
    """Parse one stat line; the command may hold spaces and parentheses."""
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 1 :].split()
    return ProcessStat(
        pid=int(text[:opening]),
        command=text[opening + 1 : closing],
        state=fields[0],
        parent_pid=int(fields[1]),
        flags=int(fields[6]),
        user_ticks=int(fields[11]),
        system_ticks=int(fields[12]),
        faults=int(fields[7]) + int(fields[9]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        space_bytes=int(fields[20]),
        resident_pages=int(fields[21]),
        program=tuple(fields[23:26]),
    )


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat:
    """Read /proc/PID/stat.

    Raises:
        OSError: FileNotFoundError or ProcessLookupError where there is no such process.
    """
    with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
        return parse_stat(valid_text(file.read()))


def is_there(pid: int, start_ticks: int) -> bool:
    """Whether a process is there, be it a zombie, or that cannot be told now."""
    try:
        return read_stat(pid).start_ticks == start_ticks
    except GONE:
        return False
    except OSError:
        return True


def program_mark(pid: int) -> tuple[str, ...] | None:
    """What an exec changes for good: where the code and the stack of a process begin, and the like.

    Returns:
        Always the same where it may not be known; None if the process is gone, has exited, or is in
        the midst of an exec.
    """
    try:
        mark = read_stat(pid).program
    except OSError:
        return None
    return None if mark[0] == "0" else mark  # it has no memory any more, or not yet


def wait_until_made(pid: int, patience_seconds: float = math.inf, proc: Path = PROC) -> bool:
    """Wait while an exec makes the program of a process; that takes less than a millisecond of CPU.

    Args:
        pid: the process.
        patience_seconds: how long to wait at most.
        proc: root of the proc file system.

    Returns:
        Whether it is made, or gone.
    """
    give_up = time.monotonic() + patience_seconds
    while _is_half_made(pid, proc):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.001)
    return True


def not_looked_at(pid: int, error: OSError) -> CapabilityError:
    """Something other than its end keeps us from looking at a process."""
    cause = f"process {pid} cannot be looked at: {error.strerror}"
    return CapabilityError(cause, "it is tried again; see the limit of open files (ulimit -n)")


def _is_half_made(pid: int, proc: Path) -> bool:
    try:
        return read_stat(pid, proc).is_half_made
    except OSError:
        return False


def valid_text(name: bytes) -> str:
    """Text that can be written anywhere: bytes that are no UTF-8 are replaced by U+FFFD."""
    return name.decode("utf-8", "replace")


class ProcessIdentity(msgspec.Struct, frozen=True):
    """What names one process for good: pids are used again, pairs with the start time are not.

    Attributes:
        pid: process id in our namespace.
        start_ticks: start time in clock ticks since boot; exec does not change it.
        command: short name when it was read.
        executable: path of the program then, for people (what is no UTF-8 is replaced); empty
            where it may not be read.
    """

    pid: int
    start_ticks: int
    command: str
    executable: str


def read_identity(pid: int, proc: Path = PROC) -> ProcessIdentity:
    """Read who a process is now; OSError if there is none."""
    stat = read_stat(pid, proc)
    try:
        executable = valid_text(os.readlink(os.fsencode(proc / str(pid) / "exe")))
    except OSError:
        executable = ""
    return ProcessIdentity(pid, stat.start_ticks, stat.command, executable)


class ProcessHandle(Closing):
    """Holds on to one process: never mistakes a later process with its pid for it.

    Args:
        pid: the process.

    Raises:
        TargetError: no such process.
        CapabilityError: that cannot be told now.
    """

    def __init__(self, pid: int) -> None:
        self._pidfd: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
            self.identity = read_identity(pid)
        except OSError as error:
            self.close()
            # EINVAL: a thread of another process has the number by now.
            if isinstance(error, GONE) or error.errno == errno.EINVAL:
                raise TargetError(f"process {pid} is gone") from error
            raise not_looked_at(pid, error) from error

    def alive(self) -> bool:
        """Whether it has not exited yet (a zombie has)."""
        if self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def fileno(self) -> int:
        """The pidfd: readable once the process has exited."""
        if self._pidfd is None:
            raise ValueError("the handle is closed")
        return self._pidfd

    def close(self) -> None:
        """Let go of it; may be called twice."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
