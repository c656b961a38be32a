"""The native twin: timing, without instrumentation, what another shadow of the same stop did.

A burst tells what a thread references, not how long that takes. A second shadow of the same moment
therefore runs at full speed to a point whose place in the burst is known, and its CPU time counts.
The point is the system call that ended the burst, or an instruction or eight bytes of data that the
burst came to late and few times: a breakpoint or a debug register stops the twin there.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import iced_x86
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import AccessChunk, TwinMeasurement
from memsampd.sampler.shadow.decoder import PLAIN, REPEATED, RecipeDecoder
from memsampd.sampler.shadow.emulation import emulation_of
from memsampd.sampler.shadow.executors import Consumer, Course, CoursePoint
from memsampd.sampler.shadow.snapshots import Shadow
from memsampd.sampler.shadow.stepping import share_one_cpu

# A page fault that pre-faulting did not prevent: what one that copies a page took in a VM.
FAULT_SECONDS = 3.3e-6

_GRANULE_BITS = 3  # a debug register watches eight bytes
_SIZE_MAXIMUM = (1 << 16) - 1  # of a reference
_PAGE_BYTES = 4096
_CHUNK_ROWS = 1 << 16
_ARRIVALS_MAXIMUM = 16
# What a stop costs of certainty, and what starting and ending a measurement does. In a virtual
# machine a stop by a breakpoint takes 3 us, one by a debug register 20 to 30 us.
_EXECUTE_COST, _TOUCH_COST, _BASE_COST = 1.0, 10.0, 10.0
_CANDIDATES = 16
ROWS_MAXIMUM = 2 << 20  # of a longer burst, its beginning is used
_ROWS_MINIMUM = 1000
_COURSE_ROWS_MINIMUM = 8_000_000  # without a lead-in
# Caches are cold at first: gzip took 600,000 accesses to come to its usual speed. The longer the
# lead-in, the more of what is timed is the code before a system call, where that ends the burst.
_LEAD_IN_SHARE = 0.4
_OVERHEAD_RUNS = 15
_DEADLINE_SECONDS = 0.5
_DEADLINE_SECONDS_PER_ROW = 50e-9


class EndKind(IntEnum):
    """What stops a twin; mirrors ``enum watch`` of ``_core/native.c``."""

    CALL = 0
    EXECUTE = 1
    TOUCH = 2


@dataclass(frozen=True, slots=True)
class EndPoint:
    """A point of a burst that a twin can be stopped at.

    Attributes:
        kind: what is watched.
        address: the instruction, or the data; 0 for a system call.
        arrivals: the twin stops at this arrival (1: the first).
        rows: rows of the burst before the point.
        ip: the instruction that comes next; None if not known.
    """

    kind: EndKind
    address: int
    arrivals: int
    rows: int
    ip: int | None

    @property
    def stops(self) -> int:
        """Stops on the way: an instruction that is not the one yet is also stepped over."""
        return 2 * self.arrivals - 1 if self.kind is EndKind.EXECUTE else self.arrivals


@dataclass(frozen=True, slots=True)
class Instruction:
    """What must be known of an instruction to count its executions in a burst.

    Attributes:
        length: in bytes.
        is_update: each execution is a load row and a store row; else it is one row.
        falls_through: the instruction behind it always comes next.
    """

    length: int
    is_update: bool
    falls_through: bool


class EndPointFinder:
    """Finds points late in a burst at which a twin can be stopped.

    Args:
        rows: the burst, or its beginning.
        inspect: tells an instruction by its address; None for one whose executions the rows do not
            tell (repeated, masked, gathering ones, or such of several operands in memory).
    """

    def __init__(self, rows: AccessChunk, inspect: Callable[[int], Instruction | None]) -> None:
        self._ip = rows.ip
        self._address = rows.address
        self._size_bytes = rows.size_bytes
        self._is_write = rows.is_write
        self._inspect_anew = inspect
        self._known: dict[int, Instruction | None] = {}

    def _inspect(self, ip: int) -> Instruction | None:
        if ip not in self._known:
            self._known[ip] = self._inspect_anew(ip)
        return self._known[ip]

    def latest(self, start: int, stop: int) -> EndPoint | None:
        """Find the best point between two rows, for a twin that stands at ``start``.

        Best is what leaves the least relative error: what starting, ending and the stops on the way
        disturb, by the rows that are passed.
        """
        hopes = [
            *(
                (_worth_of(row, _EXECUTE_COST), row, self._execute)
                for row in _candidates(self._ip[start:stop], 0)
            ),
            *(
                (_worth_of(row + 2, _TOUCH_COST), row, self._touch)
                for row in _candidates(self._address[start:stop], _GRANULE_BITS)
            ),
        ]
        best, best_worth = None, 0.0
        for hope, row, make in sorted(hopes, key=lambda each: each[0], reverse=True):
            if best_worth >= hope:
                break  # none that is left can be better
            point = make(start + row, start)
            if point is not None and point.rows <= stop:
                worth = _worth(point, start)
                if worth > best_worth:
                    best, best_worth = point, worth
        return best

    def _execute(self, row: int, start: int) -> EndPoint | None:
        """Before the execution that a row belongs to."""
        ip = int(self._ip[row])
        instruction = self._inspect(ip)
        if instruction is None or ip == self._ip[start]:
            return None
        if instruction.is_update and self._is_write[row]:
            row -= 1
        hits = np.concatenate(
            [each.start + np.flatnonzero(self._ip[each] == ip) for each in _chunks(start, row + 1)]
        )
        arrivals = self._executions(hits)
        if arrivals is None or arrivals > _ARRIVALS_MAXIMUM:
            return None
        return EndPoint(EndKind.EXECUTE, ip, arrivals, row, ip)

    def _touch(self, row: int, start: int) -> EndPoint | None:
        """Behind the instruction that a row belongs to."""
        ip = int(self._ip[row])
        instruction = self._inspect(ip)
        if instruction is None or not instruction.falls_through:
            return None
        if instruction.is_update and not self._is_write[row]:
            row += 1
        low = int(self._address[row]) >> _GRANULE_BITS << _GRANULE_BITS
        arrivals = self._executions(self._overlapping(low, start, row + 1))
        if arrivals is None or not 0 < arrivals <= _ARRIVALS_MAXIMUM:
            return None
        return EndPoint(EndKind.TOUCH, low, arrivals, row + 1, ip + instruction.length)

    def _overlapping(self, low: int, start: int, stop: int) -> NDArray[np.int64]:
        """Rows that reference any of the bytes that the CPU watches."""
        reach = np.uint64(min(low, _SIZE_MAXIMUM))
        found = [np.empty(0, np.int64)]
        for each in _chunks(start, stop):
            offset = self._address[each] + reach - np.uint64(low)  # wraps below the reach
            near = each.start + np.flatnonzero(offset < reach + np.uint64(1 << _GRANULE_BITS))
            found.append(near[self._address[near] + self._size_bytes[near] > low])
        return np.concatenate(found)

    def _executions(self, rows: NDArray[np.int64]) -> int | None:
        """How many executions these rows belong to; None if that cannot be told."""
        known = {int(ip): self._inspect(int(ip)) for ip in np.unique(self._ip[rows])}
        count = 0
        for ip, instruction in known.items():
            if instruction is None:
                return None
            mine = rows[self._ip[rows] == ip]
            stores = np.count_nonzero(self._is_write[mine]) if instruction.is_update else 0
            count += len(mine) - int(stores)
        return count


def _worth(point: EndPoint, start: int) -> float:
    cost = _TOUCH_COST if point.kind is EndKind.TOUCH else _EXECUTE_COST
    return _worth_of(point.rows - start, cost * point.stops)


def _worth_of(rows: int, cost: float) -> float:
    return rows / (_BASE_COST + cost)


def _chunks(start: int, stop: int) -> Iterator[slice]:
    """Slices short enough that what is made of each stays in a cache, and in recycled memory."""
    for begin in range(start, stop, _CHUNK_ROWS):
        yield slice(begin, min(begin + _CHUNK_ROWS, stop))


def _candidates(keys: NDArray[np.uint64], shift: int) -> set[int]:
    """Rows whose key (without its low bits) is new, or rare: the last of both kinds, but row 0.

    Keys are hashed; two that collide hide each other but make no wrong candidate of the first
    kind, and of the second one that the exact count then judges.
    """
    return {*_core.late_rows(keys, shift, _ARRIVALS_MAXIMUM, _CANDIDATES)} - {0}


@dataclass(frozen=True, slots=True)
class TwinPlan:
    """Where a twin's time begins and ends to count.

    Attributes:
        lead_in: what is run before, to fill caches, without counting; None: nothing.
        end: the end.
    """

    lead_in: EndPoint | None
    end: EndPoint

    @property
    def first_row(self) -> int:
        """The first row that counts."""
        return 0 if self.lead_in is None else self.lead_in.rows


def plan_twin(
    rows: AccessChunk, inspect: Callable[[int], Instruction | None], *, ends_in_call: bool
) -> TwinPlan | None:
    """Choose where to time the twin of an execution.

    Args:
        rows: what the execution referenced, from its beginning on.
        inspect: see :class:`EndPointFinder`.
        ends_in_call: a system call comes next.

    Returns:
        The plan; None if there is no point to stop at.
    """
    finder = EndPointFinder(rows, inspect)
    searched = min(len(rows), ROWS_MAXIMUM)
    lead_in = finder.latest(0, int(searched * _LEAD_IN_SHARE))
    end: EndPoint | None
    if ends_in_call and len(rows) <= ROWS_MAXIMUM:
        end = EndPoint(EndKind.CALL, 0, 1, len(rows), None)
    else:
        end = finder.latest(0 if lead_in is None else lead_in.rows, searched)
    if end is None:
        return None
    plan = TwinPlan(lead_in, end)
    return plan if end.rows - plan.first_row >= _ROWS_MINIMUM else None


def plan_by_course(course: Course | None) -> TwinPlan | None:
    """Choose where to time the twin of an execution that was counted beyond what it recorded.

    Returns:
        The plan; None if it did not go far, or met no point to stop at.
    """
    if course is None:
        return None
    lead_in = None if course.lead_in is None else _at_instruction(course.lead_in)
    if course.ends_in_call:
        end = EndPoint(EndKind.CALL, 0, 1, course.rows, None)
    elif course.end is not None:
        end = _at_instruction(course.end)
    else:
        return None
    plan = TwinPlan(lead_in, end)
    least = _COURSE_ROWS_MINIMUM if lead_in is None else _COURSE_ROWS_MINIMUM // 4
    return plan if end.rows - plan.first_row >= least else None


def _at_instruction(point: CoursePoint) -> EndPoint:
    return EndPoint(EndKind.EXECUTE, point.ip, point.arrivals, point.rows, point.ip)


def count_accesses(
    address: NDArray[np.uint64], size_bytes: NDArray[np.uint16], line_bytes: int
) -> int:
    """Lines referenced, a reference that crosses into another counting for each."""
    line = np.uint64(line_bytes)
    further = 0
    for each in _chunks(0, len(address)):
        last = address[each] + np.maximum(size_bytes[each], 1) - np.uint64(1)
        further += int(np.sum(last // line - address[each] // line))
    return len(address) + further


def touched_pages(rows: AccessChunk, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Pages that the first rows read or execute but do not write, and pages that they write.

    Returns:
        Addresses of pages, ascending, shapes (r,) and (w,), uint64.
    """
    read, written = (
        np.unique(np.frombuffer(pages, np.uint64))
        for pages in _core.touched_pages(
            rows.ip[:count], rows.address[:count], rows.size_bytes[:count], rows.is_write[:count]
        )
    )
    return np.setdiff1d(read, written, assume_unique=True), written


class KeptRows:
    """Hands the rows of a streamed burst on and keeps the first of them for its twin.

    Args:
        consume: gets every chunk.
    """

    def __init__(self, consume: Consumer) -> None:
        self._consume = consume
        self._kept: list[AccessChunk] = []
        self._count = 0

    def add(self, chunk: AccessChunk) -> None:
        """Take in a chunk."""
        wanted = ROWS_MAXIMUM - self._count
        if wanted > 0:
            self._kept.append(
                AccessChunk(
                    chunk.ip[:wanted].copy(),
                    chunk.address[:wanted].copy(),
                    chunk.size_bytes[:wanted].copy(),
                    chunk.is_write[:wanted].copy(),
                )
            )
            self._count += len(self._kept[-1])
        self._consume(chunk)

    def rows(self) -> AccessChunk:
        """What was kept."""
        nothing = np.empty(0, np.bool_)
        return AccessChunk(
            np.concatenate([nothing, *(chunk.ip for chunk in self._kept)], dtype=np.uint64),
            np.concatenate([nothing, *(chunk.address for chunk in self._kept)], dtype=np.uint64),
            np.concatenate([nothing, *(chunk.size_bytes for chunk in self._kept)], dtype=np.uint16),
            np.concatenate([nothing, *(chunk.is_write for chunk in self._kept)], dtype=np.bool_),
        )


class TwinRunner:
    """Times twins.

    Args:
        line_bytes: size of the lines that accesses are counted in.
        proc: root of the proc file system.
    """

    def __init__(self, line_bytes: int = 64, proc: Path = PROC) -> None:
        self._line_bytes = line_bytes
        self._proc = proc
        self._runner = _core.NativeRunner()

    def cancel(self) -> None:
        """End the present run and all later ones at once; from any thread."""
        self._runner.cancel()

    def run(
        self,
        shadow: Shadow,
        rows: AccessChunk,
        deadline_seconds: float,
        *,
        ends_in_call: bool,
        course: Course | None = None,
    ) -> TwinMeasurement | None:
        """Time what another shadow of the same stop did.

        Args:
            shadow: the twin, where it was made.
            rows: what the other referenced, from its beginning on.
            deadline_seconds: wall time that the twin has at most.
            ends_in_call: the other came to a system call behind these rows.
            course: how the other went on, if it did.

        Returns:
            The measurement; None if the other came to no point to stop at, or the twin did not come
            to it (it need not, if the program reads the time stamp counter, say).

        Raises:
            OSError: the shadow is gone.
        """
        memory = os.open(self._proc / str(shadow.pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            plan = plan_by_course(course) or plan_twin(
                rows, inspector(memory), ends_in_call=ends_in_call
            )
        finally:
            os.close(memory)
        if plan is None:
            return None
        read, written = touched_pages(rows, plan.end.rows)
        before = os.sched_getaffinity(0)
        try:
            share_one_cpu(shadow, before, self._proc)
            self._runner.emulate(emulation_of(shadow, self._proc))
            # On the CPU that will run the twin: pages that are copied are then in its caches.
            _core.native_touch_pages(shadow.pid, read.tobytes(), False)
            _core.native_touch_pages(shadow.pid, written.tobytes(), True)
            allowed = _DEADLINE_SECONDS + _DEADLINE_SECONDS_PER_ROW * plan.end.rows
            give_up = time.monotonic() + min(deadline_seconds, allowed)
            return self._time(shadow, rows, plan, give_up)
        finally:
            os.sched_setaffinity(0, before)

    def _time(
        self, shadow: Shadow, rows: AccessChunk, plan: TwinPlan, give_up: float
    ) -> TwinMeasurement | None:
        if plan.lead_in is not None and self._go(shadow, plan.lead_in, give_up) is None:
            return None
        before = self._runner.emulated_calls()
        gone = self._go(shadow, plan.end, give_up)
        calls = self._runner.emulated_calls() - before
        overheads = self._runner.overheads(shadow.pid, plan.end.kind, _OVERHEAD_RUNS)
        if gone is None or not overheads:
            return None
        cpu_seconds, faults = gone
        stop_seconds = 1e-9 * statistics.median(overheads) * plan.end.stops
        if calls:
            answered = self._runner.overheads(shadow.pid, EndKind.CALL, _OVERHEAD_RUNS)
            stop_seconds += 1e-9 * statistics.median(answered or overheads) * calls
        taken_off_seconds = stop_seconds + FAULT_SECONDS * faults
        net_seconds = cpu_seconds - taken_off_seconds
        if net_seconds <= 0:
            return None
        return TwinMeasurement(
            accesses=self._count(rows, plan.first_row, plan.end.rows),
            cpu_seconds=net_seconds,
            faults=faults,
            end=plan.end.kind.name.lower(),
            lead_in_accesses=self._count(rows, 0, plan.first_row),
            taken_off_seconds=taken_off_seconds,
        )

    def _count(self, rows: AccessChunk, start: int, stop: int) -> int:
        """Accesses of some rows; of those that were only counted, at the ratio of the others."""
        first, last = (start, stop) if stop <= len(rows) else (0, len(rows))
        accesses = count_accesses(
            rows.address[first:last], rows.size_bytes[first:last], self._line_bytes
        )
        if stop <= len(rows):
            return accesses
        return round(accesses * (stop - start) / max(1, len(rows)))

    def _go(self, shadow: Shadow, point: EndPoint, give_up: float) -> tuple[float, int] | None:
        """Run to a point: CPU seconds and faults on the way; None if it did not get there."""
        how, ip, arrivals, _, cpu_nanoseconds, faults = self._runner.run(
            shadow.pid, point.kind, point.address, point.arrivals, give_up
        )
        wanted = "call" if point.kind is EndKind.CALL else "reached"
        if how != wanted or arrivals != point.arrivals or point.ip not in (None, ip):
            return None
        return 1e-9 * cpu_nanoseconds, faults


def inspector(memory: int) -> Callable[[int], Instruction | None]:
    """A function that tells an instruction of a process by its address.

    Args:
        memory: descriptor of its /proc/PID/mem.
    """

    def read_code(address: int, size_bytes: int) -> bytes:
        """As much as is mapped: code may end with its page."""
        for end in (address + size_bytes, (address & -_PAGE_BYTES) + _PAGE_BYTES):
            try:
                return os.pread(memory, end - address, address)
            except (OSError, OverflowError):
                continue
        return b""

    decoder = RecipeDecoder(read_code)

    def inspect(ip: int) -> Instruction | None:
        recipes = decoder.block(ip, 1)
        if len(recipes) == 0 or recipes[0]["flags"] & REPEATED or recipes[0]["references"] != 1:
            return None
        recipe, reference = recipes[0], recipes[0]["reference"][0]
        if reference["kind"] != PLAIN or recipe["flags"]:
            return None
        code = bytes(recipe["code"][: recipe["length"]])
        flow = iced_x86.Decoder(64, code, ip=ip).decode().flow_control
        return Instruction(
            length=int(recipe["length"]),
            is_update=bool(reference["loads"]) and bool(reference["stores"]),
            falls_through=flow == iced_x86.FlowControl.NEXT,
        )

    return inspect
