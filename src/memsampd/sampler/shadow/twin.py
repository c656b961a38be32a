"""The native twin: timing, without instrumentation, what another shadow of the same stop did.

A burst tells what a thread references, not how long that takes. A second shadow of the same moment
therefore runs at full speed over a stretch whose ends are known in the burst: the n-th time that it
comes to some instruction, or the system call that ends the burst. Its CPU time between them counts.
"""

from __future__ import annotations

import os
import statistics
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.maps import read_maps
from memsampd.sampler.records import TwinMeasurement
from memsampd.sampler.shadow.arrivals import ArrivalCounter
from memsampd.sampler.shadow.emulation import emulation_of
from memsampd.sampler.shadow.executors import Course
from memsampd.sampler.shadow.snapshots import EmulationIdentity, Shadow
from memsampd.sampler.shadow.stepping import share_one_cpu

# A fault on what was not made present before, where none can be timed: so long in a VM.
_FAULT_SECONDS = 2e-6
# A counter's instructions: 0.1 ns in a loop that waits for data, 1.8 ns in one that does not.
ARRIVAL_SECONDS = 1e-9
# Entering and leaving the kernel, likewise.
_STOP_SECONDS = 5e-6

_PAGE_BYTES = 4096
_ORIG_RAX_OFFSET = 15 * 8  # in struct user_regs_struct
_ROWS_MINIMUM = 1000
_OVERHEAD_RUNS = 15
_DEADLINE_SECONDS = 0.5
_DEADLINE_SECONDS_PER_ROW = 50e-9
_PRESENT, _FILE, _EXCLUSIVE = (np.uint64(1 << bit) for bit in (63, 61, 56))  # proc_pid_pagemap(5)


@dataclass(frozen=True, slots=True)
class UsedPages:
    """Pages that a shadow used, and that its twin would have to fault for.

    Attributes:
        of_files: addresses of pages of files that it read or executed, shape (r,), uint64.
        written: addresses of pages that are its own, for it wrote to them, shape (w,), uint64.
    """

    of_files: NDArray[np.uint64]
    written: NDArray[np.uint64]


def used_pages(shadow: Shadow, proc: Path = PROC) -> UsedPages:
    """Find out what a shadow has used.

    Raises:
        OSError: it is gone.
    """
    of_files, written = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    pagemap = os.open(proc / str(shadow.pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for mapping in read_maps(shadow.pid, proc).mappings:
            if mapping.start >> 63 or mapping.path.startswith("/memfd:memsampd "):
                continue
            if mapping.perms.startswith("---"):  # reserved: often large, and never used
                continue
            size_bytes = mapping.size_bytes // _PAGE_BYTES * 8
            entries = np.frombuffer(
                os.pread(pagemap, size_bytes, mapping.start // _PAGE_BYTES * 8), np.uint64
            )
            bits = entries & (_PRESENT | _FILE | _EXCLUSIVE)
            in_file = bits & ~_EXCLUSIVE == _PRESENT | _FILE
            for kind, which in ((of_files, in_file), (written, bits == _PRESENT | _EXCLUSIVE)):
                pages = np.flatnonzero(which).astype(np.uint64) * np.uint64(_PAGE_BYTES)
                kind.append(pages + np.uint64(mapping.start))
    finally:
        os.close(pagemap)
    return UsedPages(np.concatenate(of_files), np.concatenate(written))


@dataclass(frozen=True, slots=True)
class Passage:
    """How far a shadow came by itself.

    Attributes:
        cpu_seconds: CPU time that this took.
        can_go_on: it stands at an instruction of its own, from where it can be run, or copied.
        measurement: what of it was timed.
        ip: where it stands, if it was run for some time.
    """

    cpu_seconds: float
    can_go_on: bool
    measurement: TwinMeasurement | None = None
    ip: int = 0


class TwinRunner:
    """Runs shadows natively, and times them.

    Args:
        proc: root of the proc file system.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._runner = _core.NativeRunner()
        self._is_cancelled = False

    def cancel(self) -> None:
        """End the present run and all later ones at once; from any thread."""
        self._is_cancelled = True
        self._runner.cancel()

    def begin(self, shadow: Shadow) -> None:
        """Prepare to run a shadow, from where it was made on."""
        self._runner.emulate(emulation_of(shadow, self._proc))

    def identity(self) -> EmulationIdentity | None:
        """Whom the shadow takes itself for, where it stands now."""
        return self._runner.identity()

    def run(
        self,
        shadow: Shadow,
        course: Course,
        pages: UsedPages,
        deadline_seconds: float,
        *,
        accesses_per_row: float = 1.0,
    ) -> TwinMeasurement | None:
        """Time what another shadow of the same stop did, and then be done with this one.

        Args: as for :meth:`follow`.

        Returns:
            The measurement; None if there is no point to stop at, or the twin did not come
            to it (it need not, if the program reads the time stamp counter, say).

        Raises:
            OSError: the shadow is gone, or cannot be stopped there.
        """
        self.begin(shadow)
        return self.follow(
            shadow, course, pages, deadline_seconds, accesses_per_row=accesses_per_row
        ).measurement

    def follow(
        self,
        shadow: Shadow,
        course: Course,
        pages: UsedPages,
        deadline_seconds: float,
        *,
        accesses_per_row: float = 1.0,
    ) -> Passage:
        """Time what another shadow did from where this one stands.

        Args:
            shadow: the twin.
            course: what the other did.
            pages: those that the other used.
            deadline_seconds: wall time that the twin has at most.
            accesses_per_row: accesses to lines by rows.

        Returns:
            How far it came. Without a point to stop at it stays where it is.

        Raises:
            OSError: the shadow is gone, or cannot be stopped there.
        """
        first_row = course.lead_in.rows if course.lead_in is not None else 0
        last_row = course.rows if course.ends_in_call or course.end is None else course.end.rows
        if last_row - first_row < _ROWS_MINIMUM or not (course.ends_in_call or course.end):
            return Passage(0.0, can_go_on=True)
        before = os.sched_getaffinity(0)
        try:
            share_one_cpu(shadow, before, self._proc)
            # On the CPU that will run the twin: pages that are copied are then in its caches.
            _core.native_touch_pages(shadow.pid, pages.of_files.tobytes(), False)
            _core.native_touch_pages(shadow.pid, pages.written.tobytes(), True)
            allowed = _DEADLINE_SECONDS + _DEADLINE_SECONDS_PER_ROW * last_row
            give_up = time.monotonic() + min(deadline_seconds, allowed)
            timed = self._time(shadow, course, give_up)
        finally:
            os.sched_setaffinity(0, before)
        if timed is None:
            return Passage(0.0, can_go_on=False)
        lead_in_seconds, cpu_seconds, taken_off_seconds, faults = timed
        own_seconds = max(cpu_seconds - taken_off_seconds, 0.0)
        measurement = TwinMeasurement(
            accesses=round((last_row - first_row) * accesses_per_row),
            cpu_seconds=own_seconds,
            faults=faults,
            end="call" if course.ends_in_call else "execute",
            lead_in_accesses=round(first_row * accesses_per_row),
            taken_off_seconds=taken_off_seconds,
        )
        return Passage(
            lead_in_seconds + own_seconds,
            not course.ends_in_call,
            measurement if own_seconds > 0 else None,
        )

    def advance(self, shadow: Shadow, seconds: float) -> Passage:
        """Run a shadow on, from where it stands, for so much wall time or up to a system call.

        Raises:
            OSError: it is gone.
        """
        before = os.sched_getaffinity(0)
        try:
            share_one_cpu(shadow, before, self._proc)
            how, ip, _, _, nanoseconds, _ = self._runner.run(
                shadow.pid, 0, time.monotonic() + seconds
            )
        finally:
            os.sched_setaffinity(0, before)
        # At a system call it cannot be copied.
        is_anywhere = how == "deadline" and not _is_in_call(_core.native_registers(shadow.pid))
        return Passage(1e-9 * nanoseconds, is_anywhere and not self._is_cancelled, ip=ip)

    def _time(
        self, shadow: Shadow, course: Course, give_up: float
    ) -> tuple[float, float, float, int] | None:
        """CPU seconds before the stretch, of it, what of that is not the program's, and faults."""
        end = None if course.ends_in_call else course.end
        lead_in_seconds = 0.0
        with ExitStack() as stack:
            # The lead-in's last: where both are one instruction, its arrivals come first.
            points = {point.ip: point for point in (end, course.lead_in) if point is not None}
            counters = {
                ip: stack.enter_context(
                    closing(ArrivalCounter(shadow, ip, point.arrivals, self._proc))
                )
                for ip, point in points.items()
            }
            if course.lead_in is not None:
                first = counters[course.lead_in.ip]
                led_in = self._go(shadow, first, give_up)
                if led_in is None:
                    return None
                lead_in_seconds = led_in[0]
                if end is not None and end.ip == course.lead_in.ip:
                    first.arm(end.arrivals - course.lead_in.arrivals)
                else:
                    first.remove()
            last = counters[end.ip] if end is not None else None
            arrivals = last.remaining() if last is not None else 0
            gone = self._go(shadow, last, give_up)
            if gone is None:
                return None
            cpu_seconds, stops, faults = gone
            if last is not None:
                last.remove()
            stop_seconds, fault_seconds = self._overheads(shadow, [*counters.values()])
        taken_off = stops * stop_seconds + faults * fault_seconds + arrivals * ARRIVAL_SECONDS
        return lead_in_seconds, cpu_seconds, taken_off, faults

    def _go(
        self, shadow: Shadow, counter: ArrivalCounter | None, give_up: float
    ) -> tuple[float, int, int] | None:
        """Run to where a counter stops it, or to a call: CPU seconds, stops and faults on the way.

        None if it did not get there.
        """
        how, ip, _, stops, nanoseconds, faults = self._runner.run(shadow.pid, 0, give_up)
        if counter is None:
            return (1e-9 * nanoseconds, stops, faults) if how == "call" else None
        if (how, ip) != ("trap", counter.stop_ip):
            return None
        return 1e-9 * nanoseconds, stops, faults

    def _overheads(self, shadow: Shadow, counters: Sequence[ArrivalCounter]) -> tuple[float, float]:
        """CPU time of a stop, and of a page fault: of runs in which nothing else happens.

        The shadow stands where it stood.
        """
        if not counters:
            return _STOP_SECONDS, _FAULT_SECONDS
        registers = _core.native_registers(shadow.pid)
        give_up = time.monotonic() + _DEADLINE_SECONDS
        stop_seconds = 1e-9 * statistics.median(
            self._runner.run(shadow.pid, counters[0].stop_ip - 1, give_up)[4]
            for _ in range(_OVERHEAD_RUNS)
        )
        how, *_, nanoseconds, faults = self._runner.run(shadow.pid, counters[0].faults_ip, give_up)
        _core.native_set_registers(shadow.pid, registers)
        if how != "trap" or faults == 0:
            return stop_seconds, _FAULT_SECONDS
        return stop_seconds, max(1e-9 * nanoseconds - stop_seconds, 0.0) / faults


def _is_in_call(registers: bytes) -> bool:
    (number,) = struct.unpack_from("<q", registers, _ORIG_RAX_OFFSET)
    return bool(number >= 0)
