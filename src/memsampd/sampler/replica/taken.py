"""What the core says of a burst, and how it ended or why there is none, in words."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstCost, BurstEnd, no_registers, registers_of
from memsampd.sampler.replica.endings import end_detail

PATIENCE_SECONDS = 0.2
"""A thread inside a system call is waited for so long."""
_CAUSES = {
    "not-running": ("the thread sleeps", "it is tried again when a thread has run"),
    "in-syscall": (
        f"the thread was inside system calls for {PATIENCE_SECONDS:g} s",
        "it is tried again; if it stays so, nearly all of its time is the kernel's",
    ),
    "in-rseq": ("the thread is inside a restartable sequence", "it is tried again"),
    "job-stopped": ("the process is stopped", "continue it (kill -CONT)"),
    "gone": ("the process or thread is gone", "other threads are tried"),
    "not-64-bit": ("the thread runs 32-bit code", "only 64-bit code is supported"),
    "not-reached": (
        "the thread did not come to the code that was sought",
        "it is sought again, ever more rarely",
    ),
    "unexpected": ("the thread stopped in an unknown way", "please report this"),
}


class Taken(msgspec.Struct, frozen=True):
    """What :meth:`_core.Replica.burst` says, by the names that it gives."""

    status: str
    error: int
    end: str
    number: int
    ip: int
    is_lost: bool
    started_seconds: float
    held_seconds: float
    longest_seconds: float
    holds: int
    calls: int
    compared: int
    equal: int
    cut_short: bool
    has_company: bool
    pages_predicted: int
    pages_missed: int
    replica_cpu_seconds: float
    tracer_cpu_seconds: float
    held_accesses: int
    accesses: int
    further: bytes
    stretch: bytes
    stretch_ip: bytes

    def moments(
        self, begun_rows: int, rows: int, *, is_last: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64], tuple[float, ...]]:
        """Moments of a part at which registers are known; behind the last one, too.

        Args:
            begun_rows: of the parts before.
            rows: of this one; a limit may have cut off some that were recorded.
            is_last: no part follows.

        Returns:
            Registers, shape (k, 16), where it was, shape (k,), and which part of the rows was made
            since the first of these moments.
        """
        further = np.frombuffer(self.further, np.uint64)
        made = np.concatenate([[0, self.held_accesses, self.accesses], further]).astype(np.int64)
        inside = made >= begun_rows
        if not is_last:
            inside &= made <= begun_rows + rows
        since = made[inside] - made[inside].min(initial=self.accesses)
        if self.calls or not since.any():  # else two moments or more
            return no_registers(), np.empty(0, np.uint64), ()
        registers, ips = registers_of(self.stretch), np.frombuffer(self.stretch_ip, np.uint64)
        return registers[inside], ips[inside], tuple((since / max(rows, 1)).tolist())

    @property
    def cost(self) -> BurstCost:
        """Without what taking it over costs."""
        return BurstCost(
            stop_seconds=self.held_seconds,
            stops=self.holds,
            longest_stop_seconds=self.longest_seconds,
            replica_cpu_seconds=self.replica_cpu_seconds,
            tracer_cpu_seconds=self.tracer_cpu_seconds,
        )

    def ending(self, pid: int, proc: Path) -> tuple[BurstEnd, str]:
        """How it ended, and at what.

        Args:
            pid: the target; its code is read where that is what ended it.
            proc: root of the proc file system.
        """
        if self.end == "modified":
            return BurstEnd.UNSUPPORTED, "a store into code that has run"
        if self.end == "memory":
            return BurstEnd.DEADLINE, "memsampd is out of memory"
        end = BurstEnd(self.end)
        if end is not BurstEnd.UNSUPPORTED:  # nothing is to be read for it
            return end, end_detail(end, self.ip, self.number, -1)
        try:
            memory = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return end, ""
        try:
            return end, end_detail(end, self.ip, self.number, memory)
        finally:
            os.close(memory)

    def refusal(self, pid: int) -> CaptureError:
        """Why there is no burst of a process."""
        if self.status == "refused":
            return CaptureError(
                "refused",
                f"the kernel refuses to let us trace process {pid}: {os.strerror(self.error)}",
                "see memsampd doctor; another tracer (gdb, strace) may hold it",
            )
        if self.end == "memory":  # before its thread was to be held
            return CaptureError(
                "memory",
                "memsampd is out of memory, or of timers",
                "allow it more (MemoryMax=, ulimit -v and -i); it is tried again",
            )
        cause, remedy = _CAUSES[self.status]
        return CaptureError(self.status, f"process {pid}: {cause}", remedy)
