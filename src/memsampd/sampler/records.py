"""What crosses the seam between the sampler and everything after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from memsampd import _core


@dataclass(frozen=True, slots=True)
class BranchSamples:
    """Instruction pointers sampled at a fixed period of user CPU time.

    Attributes:
        ip: sampled instruction addresses, shape (n,), uint64.
        pid: process of each sample, shape (n,), int32.
        tid: thread of each sample, shape (n,), int32.
        time_seconds: CLOCK_MONOTONIC time of each sample, shape (n,), float64, ascending.
        period_seconds: CPU time that one sample stands for.
        lost: samples that the kernel dropped since the previous read because a ring was full.
        throttled: throttle events since the previous read (each hides an unknown number).
    """

    ip: NDArray[np.uint64]
    pid: NDArray[np.int32]
    tid: NDArray[np.int32]
    time_seconds: NDArray[np.float64]
    period_seconds: float
    lost: int = 0
    throttled: int = 0

    def __len__(self) -> int:
        return len(self.ip)


class BurstEnd(StrEnum):
    """Why a burst ended."""

    FULL = "full"  # as many accesses as were asked for
    SYSCALL = "syscall"  # the program asked the kernel for something
    UNSUPPORTED = "unsupported"  # an instruction whose accesses we cannot tell
    FAULT = "fault"  # the shadow met a signal (a missing or read-only area, a trap)
    DEADLINE = "deadline"  # it took longer than it was given
    EXIT = "exit"  # the shadow vanished


@dataclass(frozen=True, slots=True)
class BurstCost:
    """What one burst cost, in seconds of the resource named.

    Attributes:
        stop_seconds: wall time for which a thread of the target was stopped.
        stops: how often it was stopped.
        shadow_cpu_seconds: CPU time of the shadow, its page faults included.
        tracer_cpu_seconds: CPU time of memsampd's tracing thread.
        copied_bytes: memory that the target had resident when it was cloned (page tables copied,
            pages write-protected: the most that copy-on-write can cost it afterwards).
        cow_seconds: estimate of the time the target lost to copy-on-write faults: while the copies
            lived, and after the end of those before them.
    """

    stop_seconds: float = 0.0
    stops: int = 0
    shadow_cpu_seconds: float = 0.0
    tracer_cpu_seconds: float = 0.0
    copied_bytes: int = 0
    cow_seconds: float = 0.0

    def __add__(self, other: BurstCost) -> BurstCost:
        """The cost of both."""
        return BurstCost(
            self.stop_seconds + other.stop_seconds,
            self.stops + other.stops,
            self.shadow_cpu_seconds + other.shadow_cpu_seconds,
            self.tracer_cpu_seconds + other.tracer_cpu_seconds,
            max(self.copied_bytes, other.copied_bytes),
            self.cow_seconds + other.cow_seconds,
        )


@dataclass(frozen=True, slots=True)
class TwinMeasurement:
    """How long the native twin of a burst took for a part of what the burst saw (docs/shadow.md).

    Attributes:
        accesses: accesses to lines in the part that was timed.
        cpu_seconds: user CPU time that this took.
        faults: page faults in it.
        end: what stopped the twin: a system call ("call") or a counter ("execute").
        lead_in_accesses: accesses that ran before, untimed, to fill caches.
        taken_off_seconds: CPU time that was taken off: of the way into and out of the kernel,
            which is measured beside, of page faults and of counting, which are estimated.
    """

    accesses: int
    cpu_seconds: float
    faults: int
    end: str
    lead_in_accesses: int = 0
    taken_off_seconds: float = 0.0

    @property
    def accesses_per_cpu_second(self) -> float:
        """The rate that was measured; only where it took any time."""
        return self.accesses / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class AccessChunk:
    """Some consecutive rows of a burst; the arrays are only good until the next chunk.

    Attributes:
        ip: address of the instruction, shape (n,), uint64.
        address: first byte referenced, shape (n,), uint64.
        size_bytes: bytes referenced, shape (n,), uint16.
        is_write: store or load, shape (n,), bool.
    """

    ip: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.uint16]
    is_write: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ip)


@dataclass(frozen=True, slots=True)
class LineChunk:
    """The lines that some consecutive rows of a burst touch.

    Attributes:
        runs: in program order, shape (m,), uint64; each is a line's number (address // line size)
            plus 2**58 for each further access to the line that follows at once. A reference that
            crosses into other lines is one access to each, lowest first.
        accesses: to lines, at least m.
        rows: references that these are of.
        writes: stores among the rows.
    """

    runs: NDArray[np.uint64]
    accesses: int
    rows: int
    writes: int

    @property
    def line(self) -> NDArray[np.uint64]:
        """The line of each access, shape (accesses,), uint64."""
        bits = np.uint64(_core.LINE_BITS)
        number = self.runs & np.uint64((1 << _core.LINE_BITS) - 1)
        return np.repeat(number, (self.runs >> bits).astype(np.int64) + 1)

    def __len__(self) -> int:
        return self.accesses


@dataclass(frozen=True, slots=True)
class Burst:
    """Consecutive data references of one thread, in program order.

    A reference that crosses a line is one row here; :func:`memsampd.models.lines.line_stream`
    makes it two accesses. A read-modify-write is two rows, the load first.

    Attributes:
        ip: address of the instruction, shape (n,), uint64.
        address: first byte referenced, shape (n,), uint64.
        size_bytes: bytes referenced, shape (n,), uint16.
        is_write: store or load, shape (n,), bool.
        pid: the target process.
        tid: the thread that was shadowed.
        time_seconds: CLOCK_MONOTONIC time at which the thread was stopped.
        instructions: instructions executed by the burst.
        prefetches: software prefetches met (not among the rows).
        end: why the burst ended.
        end_detail: the system call, instruction or signal that ended it, for people.
        cost: what it cost.
        cut_short: a write of the target came back short because it was stopped.
        twin: how long the program itself takes for this; None if not asked for or not known.
        accesses: rows observed; more than there are here where they were streamed.
        run_seconds: wall time for which the observed copy ran.
        run_accesses: rows that it came through meanwhile: those observed, and others that were only
            counted.
        emulated_calls: system calls that did not end the burst because their results were known.
        ahead_seconds: CPU time of the thread from its stop to the burst: what was observed is what
            it did, or will do, so much later.
        is_sought: it was taken when it was because of the code that ran then, not at random.
        is_timed: it was to be timed.
        code_ip: instructions that it executed, shape (c,), uint64, in no order, and some more than
            once; none where nobody counted.
        code_times: how often each, shape (c,), uint64; those of an instruction add up.
    """

    ip: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.uint16]
    is_write: NDArray[np.bool_]
    pid: int
    tid: int
    time_seconds: float
    instructions: int
    prefetches: int
    end: BurstEnd
    end_detail: str = ""
    cost: BurstCost = field(default_factory=BurstCost)
    cut_short: bool = False
    twin: TwinMeasurement | None = None
    accesses: int = -1
    run_seconds: float = 0.0
    run_accesses: int = -1
    emulated_calls: int = 0
    ahead_seconds: float = 0.0
    is_sought: bool = False
    is_timed: bool = False
    code_ip: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    code_times: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def __post_init__(self) -> None:
        if self.accesses < 0:
            object.__setattr__(self, "accesses", len(self.ip))
        if self.run_accesses < 0:
            object.__setattr__(self, "run_accesses", self.accesses)

    def __len__(self) -> int:
        return len(self.ip)


@dataclass(frozen=True, slots=True)
class BurstRequest:
    """What is asked of an access source.

    Attributes:
        tid: the thread to observe.
        max_accesses: rows after which the burst is full.
        deadline_seconds: wall time after which it ends early.
        measure_rate: also time a native twin, if the source can.
        gaps_seconds: time from the end of one burst to the next, of as many as are wanted besides;
            each is asked for when it is about to begin.
    """

    tid: int
    max_accesses: int
    deadline_seconds: float = 10.0
    measure_rate: bool = False
    gaps_seconds: Iterable[float] = ()


@dataclass(frozen=True, slots=True)
class AccessRate:
    """Accesses per second of CPU time, as far as it is known.

    Attributes:
        accesses_per_cpu_second: the estimate; None if nothing is known.
        spread: relative standard deviation of the estimate; None if unknown.
        method: how it was found, for people ("native twin", "unknown", ...).
    """

    accesses_per_cpu_second: float | None
    spread: float | None
    method: str


UNKNOWN_RATE = AccessRate(None, None, "unknown")
