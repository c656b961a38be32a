"""Ring buffers of perf events: what is read from them, in any layout."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError
from memsampd.sampler.perf.groups import SamplerOptions
from memsampd.sampler.perf.refusal import MORE_LOCKED_MEMORY, NO_RING

# The layout of PerfRing.drain() (struct Sample in _core/perf/records.c).
SAMPLE_DTYPE = np.dtype(
    [
        ("time_ns", "u8"),
        ("ip", "u8"),
        ("pid", "u4"),
        ("tid", "u4"),
        ("event", "u8"),
        ("address", "u8"),
        ("data_source", "u8"),
        ("enabled_ns", "u8"),
        ("running_ns", "u8"),
        ("counts", "u8", _core.SAMPLE_COUNTS_MOST),
        ("ibs_op_data", "u8"),
        ("ibs_op_data3", "u8"),
        ("frames", "u8"),
        ("registers", "u8", 16),
    ]
)

TaskEventKind = Literal["fork", "exit", "exec", "rename"]


class TaskEvent(msgspec.Struct, frozen=True):
    """Something that happened to a thread of the target, as the kernel told it.

    Attributes:
        kind: "fork" (a thread or process began), "exit", "exec" or "rename".
        pid: its process; at a "fork" whose parent_pid is another, a new process.
        tid: the thread.
        parent_pid: process that started it ("fork", "exit"); else 0.
        time_seconds: CLOCK_MONOTONIC.
        command: the new short name ("exec", "rename"); else empty.
    """

    kind: TaskEventKind
    pid: int
    tid: int
    parent_pid: int
    time_seconds: float
    command: str


class Drained(msgspec.Struct, frozen=True):
    """What was in the rings.

    Attributes:
        samples: of SAMPLE_DTYPE, in no order.
        events: in no order.
        lost: samples dropped by the kernel, or that could not be read.
        throttled: throttle events.
        overflowed: some ring had no room for more: what came last may be lost.
        gone: threads that ended before: neither here nor later is a sample of them.
    """

    samples: NDArray[np.void]
    events: tuple[TaskEvent, ...]
    lost: int
    throttled: int
    overflowed: bool = False
    gone: tuple[int, ...] = ()


class Rings(Protocol):
    """A layout of events and rings.

    Attributes:
        notes: what is not as it should be, a sentence each.
        ended: no thread is left to sample.
        ring_bytes: size of each ring.
    """

    notes: tuple[str, ...]
    ended: bool
    ring_bytes: int

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a ring has filled up to its watermark, at most so long.

        There are events: it is not suspended.
        """

    def drain(self) -> Drained:
        """Empty all rings."""

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there."""

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""

    def opened_threads(self) -> list[int]:
        """Threads whose events these are; others have inherited theirs."""

    def suspend(self) -> int:
        """Sample no more for now: all events are closed, as one that is disabled costs, too.

        Returns:
            CPU time that was sampled since they were opened, ns (events that count the task clock).
        """

    def resume(self) -> None:
        """Open the events of all threads that there are, after ``suspend``."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class NotInheritedError(CapabilityError):
    """This kernel does not let new threads inherit events that are read at each sample."""


class NoRoomForRingError(CapabilityError):
    """The limit of locked memory does not allow a ring of this size."""


def count(files: Iterable[int]) -> int:
    """Add up what events have counted, those that were inherited from them among it."""
    total = 0
    for each in files:
        with contextlib.suppress(OSError):
            total += int.from_bytes(os.read(each, 8), "little")
    return total


def note_unsampled(rings: Rings, error: MemsampdError) -> None:
    """Note that some threads are not sampled, once for each cause."""
    note = f"some threads are not sampled: {error.cause}"
    if note not in rings.notes:
        rings.notes += (note,)


def map_ring(fd: int, options: SamplerOptions) -> _core.PerfRing:
    """Map the ring of an event.

    Raises:
        CapabilityError: it cannot be mapped.
    """
    try:
        return _core.PerfRing(fd, options.ring_bytes, options.fields)
    except OSError as error:
        kind = NoRoomForRingError if error.errno == errno.ENOBUFS else CapabilityError
        raise kind(f"{NO_RING}: {error.strerror}", MORE_LOCKED_MEMORY) from error


def gather(rings: Iterable[_core.PerfRing], *, leaves: bool = False) -> Drained:
    """Take what is in some rings; ``leaves`` it there, to be taken again."""
    parts: list[bytearray] = []
    events: list[TaskEvent] = []
    lost = throttled = 0
    overflowed = False
    for ring in rings:
        samples, ring_events, ring_lost, ring_throttled = ring.peek() if leaves else ring.drain()
        parts.append(samples)
        for kind, pid, tid, parent_pid, _, time_ns, command in ring_events:
            events.append(
                TaskEvent(kind, pid, tid, parent_pid, time_ns * 1e-9, command)  # type: ignore[arg-type]
            )
        lost += ring_lost
        throttled += ring_throttled
        overflowed = overflowed or ring.was_full()
    samples_all = np.frombuffer(b"".join(parts), SAMPLE_DTYPE)
    return Drained(samples_all, tuple(events), lost, throttled, overflowed)


def join(parts: Sequence[Drained]) -> Drained:
    """Make one of what was taken, one part at least."""
    if len(parts) == 1:
        return parts[0]
    return Drained(
        np.concatenate([part.samples for part in parts]),
        tuple(event for part in parts for event in part.events),
        sum(part.lost for part in parts),
        sum(part.throttled for part in parts),
        any(part.overflowed for part in parts),
    )
