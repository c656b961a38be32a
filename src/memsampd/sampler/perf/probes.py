"""Whether perf events really work here: each is opened on a busy child of our own and read.

Some machines open counters that never count (rr#3682), so an open descriptor proves nothing.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memsampd import _core
from memsampd.errors import MemsampdError
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.source import TaskClockSource

_BUSY_SECONDS = 0.05  # CPU time that is plenty for each probe
_PATIENCE_SECONDS = 20.0  # wall time after which a loaded machine is given up on
_HW_BREAKPOINT_W = 2  # linux/hw_breakpoint.h


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of one probe.

    Attributes:
        count: what was counted; 0 where it opened and did not count; None where it was refused.
        error: why it was refused.
    """

    count: int | None
    error: MemsampdError | None = None

    @property
    def works(self) -> bool:
        """Whether it opened and counted."""
        return bool(self.count)


@dataclass(frozen=True, slots=True)
class BusyChild:
    """A child that burns user CPU time.

    Attributes:
        pid: its process id.
        word_address: address of 8 bytes that it writes all the time.
    """

    pid: int
    word_address: int

    def run(self, cpu_seconds: float = _BUSY_SECONDS) -> None:
        """Wait until it has used so much more CPU time (or patience ends)."""
        clock = (~self.pid << 3) | 2
        start = time.clock_gettime(clock)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.clock_gettime(clock) - start < cpu_seconds and time.monotonic() < deadline:
            time.sleep(cpu_seconds / 4)


@contextmanager
def busy_child() -> Iterator[BusyChild]:
    """A busy child for as long as the block runs."""
    pid, address = _core.spawn_busy_child()
    try:
        yield BusyChild(pid, address)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def probe_task_clock(child: BusyChild) -> ProbeResult:
    """Count the samples that a branch source delivers of a busy process."""
    try:
        with TaskClockSource(child.pid) as source:
            child.run()
            return ProbeResult(len(source.read(0.0)))
    except MemsampdError as error:
        return ProbeResult(None, error=error)


def probe_breakpoint(child: BusyChild) -> ProbeResult:
    """Count hits of a hardware breakpoint on stores to the child's word."""
    try:
        fd = _core.perf_open_counter(
            child.pid,
            _core.PERF_TYPE_BREAKPOINT,
            0,
            child.word_address,
            8,
            bp_type=_HW_BREAKPOINT_W,
        )
    except OSError as error:
        return ProbeResult(None, error=explain_refusal(error, "a hardware breakpoint"))
    try:
        child.run()
        count, _enabled_ns, _running_ns = struct.unpack("QQQ", os.read(fd, 24))
    finally:
        os.close(fd)
    return ProbeResult(count)
