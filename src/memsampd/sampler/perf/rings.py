"""The events and ring buffers behind a branch source: which are opened, and how they are read.

Two layouts. :class:`PerCpuRings` opens an event for each thread on each CPU, inherited by new
threads, and one ring a CPU. The kernel refuses to map an inherited event that is not bound to a
CPU, so this is the only layout in which it follows new threads by itself.
:class:`PerThreadRings` needs one descriptor and one ring a thread, and must find new threads.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import select
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CapabilityError, TargetError
from memsampd.sampler.perf.groups import SamplerOptions, allow_open_files, close_all
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.process.status import list_threads

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
        ("registers", "u8", 16),
    ]
)

# How often PerThreadRings looks for new threads while it waits.
_SEARCH_SECONDS = 0.02

TaskEventKind = Literal["fork", "exit", "exec", "rename"]


class TaskEvent(msgspec.Struct, frozen=True):
    """Something that happened to a thread of the target, as the kernel told it.

    Attributes:
        kind: "fork" (a thread or process began), "exit", "exec" or "rename".
        pid: its process; at a "fork" whose parent_pid is another, a new process.
        tid: the thread.
        parent_pid: process that started it ("fork", "exit"); else 0.
        parent_tid: thread that started it ("fork", "exit"); else 0.
        time_seconds: CLOCK_MONOTONIC.
        command: the new short name ("exec", "rename"); else empty.
    """

    kind: TaskEventKind
    pid: int
    tid: int
    parent_pid: int
    parent_tid: int
    time_seconds: float
    command: str


class Drained(msgspec.Struct, frozen=True):
    """What was in the rings.

    Attributes:
        samples: of SAMPLE_DTYPE, in no order.
        events: in no order.
        lost: samples dropped by the kernel, or that could not be read.
        throttled: throttle events.
    """

    samples: NDArray[np.void]
    events: tuple[TaskEvent, ...]
    lost: int
    throttled: int


class Rings(Protocol):
    """A layout of events and rings. ``ended`` is True once no thread is left to sample."""

    notes: tuple[str, ...]
    ended: bool

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a ring has filled up to its watermark, at most so long."""

    def drain(self) -> Drained:
        """Empty all rings."""

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there."""

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class _NotInheritedError(CapabilityError):
    """This kernel does not let new threads inherit events that are read at each sample."""


class _NoRoomForRingError(CapabilityError):
    """The limit of locked memory does not allow a ring of this size."""


def open_rings(options: SamplerOptions, cpus: Sequence[int]) -> Rings:
    """Open the target's events in the best layout that the limit of open files allows.

    Rings are made smaller, all alike, where the limit of locked memory asks for it.

    Raises:
        TargetError: the target is gone or not ours.
        CapabilityError: the kernel refuses; the remedy says why.
    """
    while True:
        try:
            return _open_layout(options, cpus)
        except _NoRoomForRingError:
            if options.ring_bytes <= mmap.PAGESIZE:
                raise
        ring_bytes = options.ring_bytes // 2
        wakeup_bytes = min(options.wakeup_bytes, ring_bytes // 2)
        options = replace(options, ring_bytes=ring_bytes, wakeup_bytes=wakeup_bytes)


def _open_layout(options: SamplerOptions, cpus: Sequence[int]) -> Rings:
    threads = len(list_threads(options.pid, options.proc))
    few = threads * options.files_of_a_thread
    wanted = few * len(cpus)
    why = (
        f"{threads} threads on {len(cpus)} CPUs need more descriptors than the limit of open "
        "files (ulimit -Hn) allows"
    )
    is_in_share = options.most_files is None or wanted <= options.most_files
    if is_in_share and allow_open_files(wanted):
        try:
            return PerCpuRings(options, cpus)
        except _NotInheritedError as error:
            why = error.cause
    options.check_files(few)
    options.check_kinds()
    allow_open_files(few)
    return PerThreadRings(
        options, f"{why}: new threads are found by looking for them, a little late"
    )


def _map_ring(fd: int, options: SamplerOptions) -> _core.PerfRing:
    try:
        return _core.PerfRing(fd, options.ring_bytes, options.fields)
    except OSError as error:
        kind = _NoRoomForRingError if error.errno == errno.EPERM else CapabilityError
        raise kind(
            f"a ring buffer for samples cannot be mapped: {error.strerror}",
            "raise kernel.perf_event_mlock_kb, or the limit of locked memory (ulimit -l)",
        ) from error


def _has_hung_up(fd: int) -> bool:
    """Whether the event's thread and all that inherited the event have exited."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(mask & select.POLLHUP for _, mask in poll.poll(0))


def _gather(rings: Iterable[_core.PerfRing], *, leaves: bool = False) -> Drained:
    parts: list[bytearray] = []
    events: list[TaskEvent] = []
    lost = throttled = 0
    for ring in rings:
        samples, ring_events, ring_lost, ring_throttled = ring.peek() if leaves else ring.drain()
        parts.append(samples)
        for kind, pid, tid, parent_pid, parent_tid, time_ns, command in ring_events:
            events.append(
                TaskEvent(
                    kind,  # type: ignore[arg-type]
                    pid,
                    tid,
                    parent_pid,
                    parent_tid,
                    time_ns * 1e-9,
                    command,
                )
            )
        lost += ring_lost
        throttled += ring_throttled
    samples_all = np.frombuffer(b"".join(parts), SAMPLE_DTYPE)
    return Drained(samples_all, tuple(events), lost, throttled)


def _join(parts: Sequence[Drained]) -> Drained:
    if len(parts) == 1:
        return parts[0]
    return Drained(
        np.concatenate([part.samples for part in parts]),
        tuple(event for part in parts for event in part.events),
        sum(part.lost for part in parts),
        sum(part.throttled for part in parts),
    )


class PerCpuRings:
    """An inherited event for each thread on each CPU; one ring a CPU.

    Args:
        options: how to open events.
        cpus: CPUs that threads can run on; those that are offline are left out.
    """

    def __init__(self, options: SamplerOptions, cpus: Sequence[int]) -> None:
        self.notes: tuple[str, ...] = ()
        self.ended = False
        self._options = options
        self._inherit = _core.INHERIT_ALL if options.follow_forks else _core.INHERIT_THREADS
        self._rings: dict[int, _core.PerfRing] = {}
        # Groups by CPU; the first one's sampled event is polled.
        self._groups: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._opened: set[int] = set()
        self._inherited: set[int] = set()
        self._early: list[Drained] = []  # taken while opening
        try:
            self._open_all(list(cpus))
        except BaseException:
            self.close()
            raise

    def _open_all(self, cpus: list[int]) -> None:
        """Open events until the list of threads holds none that has no event."""
        while True:
            threads = list_threads(self._options.pid, self._options.proc)
            new = [tid for tid in threads if tid not in self._opened | self._inherited]
            if new and self._opened:
                # Born since: by a thread that has its event already, then it inherited it and
                # the kernel says so. A second event would count it twice.
                self._learn_inherited()
                new = [tid for tid in new if tid not in self._inherited]
            if not new:
                break
            for tid in new:
                self._open_thread(tid, cpus)
                self._opened.add(tid)
        if not any(self._groups.values()):
            raise TargetError(f"process {self._options.pid} is gone")

    def _learn_inherited(self) -> None:
        # A new thread is listed a moment before the kernel writes its record.
        select.poll().poll(2)
        drained = _gather(self._rings.values())
        self._early.append(drained)
        self._inherited |= {event.tid for event in drained.events if event.kind == "fork"}

    def _open_thread(self, tid: int, cpus: list[int]) -> None:
        for cpu in tuple(cpus):
            try:
                groups = self._open_groups(tid, cpu)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return  # the thread has exited
                if error.errno == errno.ENODEV:
                    cpus.remove(cpu)  # offline
                    continue
                raise explain_refusal(
                    error, f"sampling process {self._options.pid}", self._options.proc
                ) from error
            self._groups[cpu] += groups
            for sampled, *_ in groups:
                if cpu not in self._rings:
                    self._rings[cpu] = _map_ring(sampled, self._options)
                else:
                    first = self._groups[cpu][0][0]
                    fcntl.ioctl(sampled, _core.PERF_EVENT_IOC_SET_OUTPUT, first)

    def _open_groups(self, tid: int, cpu: int) -> list[tuple[int, ...]]:
        options = self._options
        try:
            return options.open_groups(tid, cpu, self._inherit)
        except OSError as error:
            if error.errno != errno.EINVAL or self._inherit != _core.INHERIT_THREADS:
                raise
            if options.fields & _core.SAMPLE_COUNTS:
                raise _NotInheritedError(
                    "new threads inherit counters from Linux 6.13 on"
                ) from error
        self._inherit = _core.INHERIT_ALL
        self.notes = (
            "Linux before 5.13: child processes are sampled too and their samples thrown away",
        )
        return self._open_groups(tid, cpu)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a ring has filled up to its watermark, at most so long."""
        # A dead thread's descriptor is always ready: poll one that is still alive. Any will do, for
        # the events of a CPU share its ring.
        while not self.ended:
            poll = select.poll()
            live = {groups[0][0]: groups for groups in self._groups.values() if groups}
            for file in live:
                poll.register(file, select.POLLIN)
            self.ended = not live
            ready = poll.poll(max(0.0, timeout_seconds) * 1000) if live else []
            dead = [live[file] for file, mask in ready if mask & select.POLLHUP]
            for groups in dead:
                close_all([groups.pop(0)])
            if not dead:
                return

    def drain(self) -> Drained:
        """Empty all rings."""
        drained = [*self._early, _gather(self._rings.values())]
        self._early = []
        return _join(drained)

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there."""
        return _gather(self._rings.values(), leaves=True)

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""
        return [group[0] for groups in self._groups.values() for group in groups]

    def close(self) -> None:
        """Release everything; may be called twice."""
        for ring in self._rings.values():
            ring.close()
        for groups in self._groups.values():
            close_all(groups)
        self._groups.clear()
        self._rings.clear()
        self.ended = True


class PerThreadRings:
    """An event and a ring for each thread, on any CPU; new threads are looked for.

    Args:
        options: how to open events. Child processes cannot be followed.
        note: why this layout was chosen.
    """

    def __init__(self, options: SamplerOptions, note: str) -> None:
        self.notes: tuple[str, ...] = (note,)
        if options.follow_forks:
            self.notes += ("child processes are not sampled",)
        self.ended = False
        self._options = options
        self._threads: dict[int, tuple[list[tuple[int, ...]], _core.PerfRing]] = {}
        self._last: list[Drained] = []  # from rings of threads that have exited
        try:
            self._find_threads()
        except BaseException:
            self.close()
            raise
        if not self._threads:
            raise TargetError(f"process {options.pid} is gone")

    def _find_threads(self) -> None:
        while True:
            new = set(list_threads(self._options.pid, self._options.proc)) - set(self._threads)
            opened = [tid for tid in sorted(new) if self._open_thread(tid)]
            if not opened:
                return

    def _open_thread(self, tid: int) -> bool:
        options = self._options
        options.check_files((len(self._threads) + 1) * options.files_of_a_thread)
        try:
            groups = options.open_groups(tid, -1, _core.INHERIT_NOTHING)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return False
            raise explain_refusal(error, f"sampling process {options.pid}", options.proc) from error
        try:
            first = groups[0][0]
            self._threads[tid] = groups, _map_ring(first, options)
        except CapabilityError:
            close_all(groups)
            raise
        for sampled, *_ in groups[1:]:
            fcntl.ioctl(sampled, _core.PERF_EVENT_IOC_SET_OUTPUT, first)
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Wait until a ring has filled up to its watermark, at most so long."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._forget_dead()
            self._find_new()
            self.ended = not self._threads
            left_seconds = deadline - time.monotonic()
            if self.ended or self._poll(min(left_seconds, _SEARCH_SECONDS)):
                return
            if left_seconds <= _SEARCH_SECONDS:
                return

    def _forget_dead(self) -> None:
        for tid, (groups, ring) in tuple(self._threads.items()):
            if _has_hung_up(groups[0][0]):
                self._last.append(_gather([ring]))
                ring.close()
                close_all(groups)
                del self._threads[tid]

    def _find_new(self) -> None:
        try:
            self._find_threads()
        except CapabilityError as error:
            note = f"some threads are not sampled: {error.cause}"
            if note not in self.notes:
                self.notes += (note,)

    def _poll(self, timeout_seconds: float) -> bool:
        poll = select.poll()
        for groups, _ in self._threads.values():
            poll.register(groups[0][0], select.POLLIN)
        # A thread that has just exited makes its descriptor ready: only samples end the wait.
        ready = poll.poll(max(0.0, timeout_seconds) * 1000)
        return any(mask & select.POLLIN for _, mask in ready)

    def drain(self) -> Drained:
        """Empty all rings."""
        parts = [*self._last, _gather(ring for _, ring in self._threads.values())]
        self._last = []
        return _join(parts)

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there; those of new threads are opened."""
        self._find_new()
        return _gather((ring for _, ring in self._threads.values()), leaves=True)

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""
        return [group[0] for groups, _ in self._threads.values() for group in groups]

    def close(self) -> None:
        """Release everything; may be called twice."""
        for groups, ring in self._threads.values():
            ring.close()
            close_all(groups)
        self._threads.clear()
        self.ended = True
