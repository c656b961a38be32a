"""What crosses the seam between the sampler and everything after it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.cost import BurstCost as BurstCost
from memsampd.sampler.rates import CoreTimes

FEWEST_PROGRAM_SAMPLES = 8
"""Of a program that another one replaced since the last look, for it to be told of."""


def no_registers() -> NDArray[np.uint64]:
    """Registers of no samples."""
    return np.empty((0, 16), np.uint64)


def registers_of(raw: bytes) -> NDArray[np.uint64]:
    """Registers as the core gives them, shape (n, 16)."""
    return np.frombuffer(raw, np.uint64).reshape(-1, 16)


class Counted(msgspec.Struct, frozen=True):
    """What threads did between their sample before and each sample, by the CPU's counters.

    Attributes:
        accesses: loads and stores, shape (n,), float64.
        instructions: shape (n,), float64.
        cycles: shape (n,), float64.
        seconds: CPU time for which they were counted, shape (n,), float64: less than has passed
            where others had the counters meanwhile.
    """

    accesses: NDArray[np.float64]
    instructions: NDArray[np.float64]
    cycles: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def part(self, part: slice) -> Counted:
        """That of some samples."""
        return Counted(
            self.accesses[part], self.instructions[part], self.cycles[part], self.seconds[part]
        )


class BranchSamples(msgspec.Struct, frozen=True):
    """Instruction pointers sampled at a fixed period of user CPU time, or about so.

    Attributes:
        ip: sampled instruction addresses, shape (n,), uint64.
        pid: process of each sample, shape (n,), int32.
        tid: thread of each sample, shape (n,), int32.
        time_seconds: CLOCK_MONOTONIC time of each sample, shape (n,), float64, ascending.
        period_seconds: CPU time between two samples of a thread that is sampled all the time;
            about so much where each tells.
        weight: each sample stands for so many times its CPU time, as samples were taken for a
            part of the time only.
        cpu_seconds: CPU time of each sample, shape (n,), float64; None where it is the period.
        thread_seconds: CPU time of its thread up to each sample, from some moment on, shape (n,),
            float64, NaN where it is not known: of samples that come at even distances of wall time;
            None where these are of CPU time.
        counted: what was counted up to each sample; None where nobody asked.
        registers: rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8..r15 at each sample, shape (n, 16),
            uint64; shape (0, 16) where nobody asked.
        lost: samples that the kernel dropped since the previous read because a ring was full.
        throttled: throttle events since the previous read (each hides an unknown number).
        exec_seconds: CLOCK_MONOTONIC times at which the process that was attached to executed
            another program, ascending.
        left_out: samples since the previous read of programs that ran for too short a time.
        overflowed: a ring was full when it was read: samples that came last may be lost, too, and
            are told as such with the next ones.
    """

    ip: NDArray[np.uint64]
    pid: NDArray[np.int32]
    tid: NDArray[np.int32]
    time_seconds: NDArray[np.float64]
    period_seconds: float
    registers: NDArray[np.uint64] = msgspec.field(default_factory=no_registers)
    lost: int = 0
    throttled: int = 0
    exec_seconds: tuple[float, ...] = ()
    cpu_seconds: NDArray[np.float64] | None = None
    thread_seconds: NDArray[np.float64] | None = None
    counted: Counted | None = None
    weight: float = 1.0
    left_out: int = 0
    overflowed: bool = False

    def __len__(self) -> int:
        return len(self.ip)

    def part(self, first: int, end: int) -> BranchSamples:
        """Return some of the samples in a row, without what was lost or executed meanwhile."""
        row = slice(first, end)
        return BranchSamples(
            self.ip[row],
            self.pid[row],
            self.tid[row],
            self.time_seconds[row],
            self.period_seconds,
            self.registers[row],
            cpu_seconds=None if self.cpu_seconds is None else self.cpu_seconds[row],
            thread_seconds=None if self.thread_seconds is None else self.thread_seconds[row],
            counted=None if self.counted is None else self.counted.part(row),
            weight=self.weight,
        )

    @property
    def each_cpu_seconds(self) -> NDArray[np.float64]:
        """CPU time of each sample, without its weight, shape (n,)."""
        if self.cpu_seconds is None:
            return np.full(len(self), self.period_seconds)
        return self.cpu_seconds

    def programs(self) -> Iterator[BranchSamples]:
        """Yield the samples of each program: all but the first begin with their exec.

        One that began and was replaced within fewer than ``FEWEST_PROGRAM_SAMPLES`` is left out: it
        tells nothing, and a process that executes programs all the time would cost a turn for each.
        How many samples these had (``left_out``), and what was lost, is told with the last one.
        """
        execs = self.exec_seconds
        if not execs:
            yield self
            return
        ends = [*np.searchsorted(self.time_seconds, np.array(execs)).tolist(), len(self)]
        parts, left_out = [self.part(0, ends[0])], 0
        for index, (begun, (first, end)) in enumerate(zip(execs, pairwise(ends), strict=True), 1):
            if index < len(execs) and end - first < FEWEST_PROGRAM_SAMPLES:
                left_out += end - first
            else:
                parts.append(replace(self.part(first, end), exec_seconds=(begun,)))
        parts[-1] = replace(
            parts[-1],
            lost=self.lost,
            throttled=self.throttled,
            left_out=left_out,
            overflowed=self.overflowed,
        )
        yield from parts


class BurstEnd(StrEnum):
    """Why a burst ended."""

    FULL = "full"  # about as many accesses as were asked for: as many as its buffer holds
    HOLD = "hold"  # the target was held for as long as is allowed
    SYSCALL = "syscall"  # a system call that a chain cannot go over
    ASLEEP = "asleep"  # a system call that sleeps
    SIGNAL = "signal"  # a signal, or another stop, came
    DIFFERED = "differed"  # the target did something else than its replica: that part was dropped
    UNSUPPORTED = "unsupported"  # an instruction whose accesses we cannot tell
    FAULT = "fault"  # what would be a fault in the target (a missing or read-only area, a trap)
    UNREADABLE = "unreadable"  # a page that cannot be read without changing the target
    COLD = "cold"  # code that was not translated yet, and no time to do so
    DEADLINE = "deadline"  # cancelled, or out of time
    EXIT = "exit"  # the thread, or the replica, ended


class Spacing(msgspec.Struct, frozen=True):
    """How far apart the data lay that a thread was found at, from sample to sample.

    Of each of the data that samples found the thread at, the distance in lines to the nearest
    other, and one more; of these the median, as a logarithm to base 2. Data at random in an area
    of so many lines lie some area / 2n apart where n samples found any: distances are told as if
    these were fifty. So it tells whether the same code works on a small area or on a large one.

    Attributes:
        octaves: the median.
        error: its standard error.
    """

    octaves: float
    error: float


class AccessChunk(msgspec.Struct, frozen=True):
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

    def part(self, rows: slice | NDArray[np.int64]) -> AccessChunk:
        """Return some of the rows."""
        return AccessChunk(
            self.ip[rows], self.address[rows], self.size_bytes[rows], self.is_write[rows]
        )


_MEMORYLESS_INSTRUCTIONS = 10_000
"""A burst of so many, and of no access, is of code that makes none: loops on registers."""


def makes_no_access(accesses: int, instructions: int) -> bool:
    """Whether a burst shows that its code makes no access.

    Bursts that ended before they could begin, at cold or unreadable code, show nothing.
    """
    return accesses == 0 and instructions >= _MEMORYLESS_INSTRUCTIONS


class Burst(msgspec.Struct, frozen=True):
    """Consecutive data references of one thread, in program order.

    A reference that crosses a line is one row here; :func:`memsampd.models.lines.line_stream`
    makes it two accesses. A read-modify-write is two rows, the load first.

    Attributes:
        ip: address of the instruction, shape (n,), uint64.
        address: first byte referenced, shape (n,), uint64.
        size_bytes: bytes referenced, shape (n,), uint16.
        is_write: store or load, shape (n,), bool.
        pid: the target process.
        tid: the thread that was observed.
        time_seconds: CLOCK_MONOTONIC time at which the thread was first held.
        instructions: instructions executed by the burst.
        prefetches: software prefetches met (not among the rows).
        end: why the burst ended.
        end_detail: the system call, instruction or signal that ended it, for people.
        cost: what it cost.
        accesses: rows observed; more than there are here where they were streamed or counted.
        writes: stores among them.
        calls: system calls that it goes over: the target made them itself.
        calls_compared: at so many of them its registers were compared with the replica's.
        calls_equal: at so many they were equal.
        pages_predicted: pages of the target that were supplied before they were touched.
        pages_missed: pages that were supplied when they were touched.
        beyond_accesses: so many rows at its end, about, were made when the target ran on: it may
            well have made others.
        is_plausible: other threads could run meanwhile: it is a plausible future of the thread,
            perhaps not the one that came.
        cut_short: a hold, of it or of a try since the burst before, found a thread inside a call
            that then returned before all was transferred, as a signal would have it.
        stretch: the general registers at its begin, when the target was released, at its end, and
            where it would have come behind that, in the order of :attr:`BranchSamples.registers`,
            shape (k, 16), uint64, k 3 or more; shape (0, 16) where it goes over system calls, or
            nobody knows.
        stretch_ip: where it was at these moments, shape (k,), uint64.
        stretch_shares: which part of the rows there was at these moments, ascending from 0; above
            1 where more was run than is told.
        code_ip: instructions that it executed, shape (c,), uint64, in no order, and some more than
            once; none where nobody counted.
        code_times: how often each, shape (c,), uint64; those of an instruction add up.
        core: how long parts of it would take on a modelled core; None where nobody asked.
        part: 1, 2, ... if its code changed: the next part of the burst before, at whose cost it was
            taken.
        repeats: elements that ``rep movs`` and ``rep stos`` moved; rows are lines that they touch.
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
    cost: BurstCost = msgspec.field(default_factory=BurstCost)
    accesses: int = -1
    writes: int = -1
    calls: int = 0
    calls_compared: int = 0
    calls_equal: int = 0
    pages_predicted: int = 0
    pages_missed: int = 0
    beyond_accesses: int = 0
    is_plausible: bool = False
    cut_short: bool = False
    stretch: NDArray[np.uint64] = msgspec.field(default_factory=no_registers)
    stretch_ip: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(3, np.uint64))
    stretch_shares: tuple[float, ...] = (0.0, 1.0, 1.0)
    code_ip: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))
    code_times: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))
    core: CoreTimes | None = None
    part: int = 0
    repeats: int = 0

    def __post_init__(self) -> None:
        if self.accesses < 0:
            msgspec.structs.force_setattr(self, "accesses", len(self.ip))
        if self.writes < 0:
            msgspec.structs.force_setattr(self, "writes", int(np.sum(self.is_write)))

    def __len__(self) -> int:
        return len(self.ip)

    @property
    def is_memoryless(self) -> bool:
        """Whether it ran so long without an access that its code makes none."""
        return makes_no_access(self.accesses, self.instructions)

    @property
    def tells(self) -> bool:
        """Whether it says anything of its code: what it accesses, or that it accesses nothing."""
        return self.accesses > 0 or self.is_memoryless


class BurstRequest(msgspec.Struct, frozen=True):
    """What is asked of an access source.

    Attributes:
        tid: the thread to observe.
        max_accesses: rows after which the burst is full.
        max_stop_seconds: how long the target may be held for it, all holds together.
        beyond_seconds: CPU time of ours for which to go on when the hold is over, while the target
            runs on.
        seek_ips: the burst begins where the thread comes to one of these places, at most four;
            none: where it is.
        seek_seconds: for how long it is waited for there.
        seek_end: a descriptor; the wait is over when it is readable. -1: nothing else ends it.
    """

    tid: int
    max_accesses: int
    max_stop_seconds: float = 0.005
    beyond_seconds: float = 0.0
    seek_ips: tuple[int, ...] = ()
    seek_seconds: float = 0.0
    seek_end: int = -1
