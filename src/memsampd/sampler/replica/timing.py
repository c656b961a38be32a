"""How fast the target makes the accesses of a burst (docs/clock.md).

A burst knows what the thread does right after its release. Events that the core starts with the
release interrupt it at moments of its CPU time, for its registers; where in the burst's rows a
moment was, its next accesses tell. What lies between two such places took the time between them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import MemsampdError
from memsampd.sampler.clock.arrivals import HITS, time_arrivals
from memsampd.sampler.clock.costs import HitCosts, measure_costs
from memsampd.sampler.clock.landmarks import find_landmark
from memsampd.sampler.clock.moments import Moment, collect_moments
from memsampd.sampler.clock.places import ReadCode, find_places
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.records import AccessChunk, BurstRequest, TimedStretch
from memsampd.sampler.replica.endings import read_code

# CPU time from the release on. The thread comes back to caches that others have used: a stream is
# three times slower in the first 50 µs, and right from 200 µs on. The last ones are for slow code.
MOMENTS_SECONDS = (200e-6, 320e-6, 600e-6, 1200e-6)
_PATIENCE_SECONDS = 0.05
# Own CPU time that a burst's search for places may take: code that repeats itself takes the most,
# and gives nothing.
_SEARCH_SECONDS = 0.015
_REPEATED = 2  # moments that fit several places: so will the others
# Searches for landmarks in vain, one after the other, before they are tried only now and then.
_VAIN_SEARCHES = 1
_SEARCH_AGAIN_AFTER = 16
# How far pieces of one stretch may differ, before a place is taken to be a wrong one.
_UNEVEN = 6.0
_COST_DOUBT = 0.5
# No code is so slow that its first moments lie within fewer.
_MIN_ROWS = 1_000
_MIN_LANDMARK_ROWS = 20_000
_LANDMARK_ROWS = 250_000  # searching more takes tens of milliseconds
_FAST_RATE = 1.5e9  # landmarks that are far enough apart for this are never timed for being slow
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Place:
    """Where a moment was found in the rows.

    Attributes:
        row: the accesses before it.
        cpu_seconds: CPU time from the release to it.
        interrupts: moments before it.
    """

    row: int
    cpu_seconds: float
    interrupts: int


RELEASE = Place(0, 0.0, 0)


def find_moments(moments: Sequence[Moment], rows: Rows, read: ReadCode) -> list[Place]:
    """The moments whose next accesses occur in the rows at exactly one place.

    Args:
        moments: of the thread after its release, ascending.
        rows: what it does from its release on.
        read: reads the program's code.
    """
    found: list[Place] = []
    repeated = 0
    give_up = time.thread_time() + _SEARCH_SECONDS
    for number, moment in enumerate(moments):
        if time.thread_time() > give_up:
            break
        places = find_places(rows, moment, read)
        if len(places) == 1:
            found.append(Place(int(places[0]), moment.cpu_seconds, number))
        repeated += len(places) > 1
        if repeated == _REPEATED and not found:
            break
    return found


def rate_of(places: Sequence[Place], moment_seconds: float) -> tuple[int, float] | str:
    """The rows and the CPU time from the first place to the last, or why they tell nothing.

    The piece from the release to the first place is only a check: the thread came back to caches
    that others had used.

    Args:
        places: at least two.
        moment_seconds: what an interrupt costs the thread.
    """

    def piece(first: Place, last: Place) -> tuple[int, float]:
        lost = (last.interrupts - first.interrupts) * moment_seconds
        return last.row - first.row, last.cpu_seconds - first.cpu_seconds - lost

    course = [RELEASE, *places]
    pieces = [piece(*pair) for pair in pairwise(course)]
    if any(rows <= 0 for rows, _ in pieces):
        return "order"
    rows, seconds = piece(places[0], places[-1])
    if seconds <= 0 or any(lasted <= 0 for _, lasted in pieces):
        return "dense"
    whole = rows / seconds
    if any(not whole / _UNEVEN <= n / lasted <= whole * _UNEVEN for n, lasted in pieces):
        return "uneven"
    return rows, seconds


class BurstTiming:
    """Times bursts of one process.

    Args:
        memory_path: its /proc/PID/mem, for code.
        line_bytes: size of the lines that accesses are counted in.

    Attributes:
        untimed: how often a burst was not timed, by reason.
    """

    def __init__(self, memory_path: Path, line_bytes: int) -> None:
        self._memory_path = memory_path
        self._line_bytes = line_bytes
        self._costs: HitCosts | None = None
        self._vain_searches = 0
        self._child_cpu_seconds = 0.0
        self.untimed: Counter[str] = Counter()

    def take_child_cpu_seconds(self) -> float:
        """CPU time of child processes since this was asked last."""
        taken, self._child_cpu_seconds = self._child_cpu_seconds, 0.0
        return taken

    @contextmanager
    def waiting(self, request: BurstRequest) -> Iterator[_core.Moments | None]:
        """Events that wait for the release of a burst; None if not asked for or not to be had."""
        events = self._open(request.tid) if request.measure_rate else None
        try:
            yield events
        finally:
            if events is not None:
                events.close()

    def _open(self, tid: int) -> _core.Moments | None:
        try:
            if self._costs is None:
                self._costs = measure_costs()
                self._child_cpu_seconds = self._costs.child_cpu_seconds
            times = [round(at * _NANOSECONDS) for at in MOMENTS_SECONDS]
            return _core.Moments(tid, times, False)
        except (MemsampdError, OSError):
            return None

    def tell(
        self,
        request: BurstRequest,
        is_armed: bool,
        events: _core.Moments | None,
        ahead: Callable[[], AccessChunk],
    ) -> tuple[TimedStretch | None, float]:
        """Time a burst that was released, and count why not.

        Args:
            request: of the burst.
            is_armed: the burst started the events.
            events: of :meth:`waiting`.
            ahead: makes the rows that the thread does from the release on.

        Returns:
            The stretch, and the CPU time that the thread lost by interrupts.
        """
        if not request.measure_rate:
            return None, 0.0
        found = self._tell(request.tid, is_armed, events, ahead)
        if isinstance(found, Untimed):
            self.untimed[found.reason] += 1
            return None, found.hit_seconds
        return found, found.hit_seconds

    def _tell(
        self,
        tid: int,
        is_armed: bool,
        events: _core.Moments | None,
        ahead: Callable[[], AccessChunk],
    ) -> TimedStretch | Untimed:
        if events is None or self._costs is None:
            return Untimed("no-events", "the thread cannot be interrupted")
        if not is_armed:
            return Untimed("not-ahead", "the burst ended where the thread had gone on")
        moments = collect_moments(events, len(MOMENTS_SECONDS), _PATIENCE_SECONDS)
        cost = self._costs.moment_seconds
        try:
            memory = os.open(self._memory_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return Untimed("gone", "", len(moments), len(moments) * cost)
        chunk = ahead()
        if len(chunk) < _MIN_ROWS:
            os.close(memory)
            return Untimed("short", f"{len(chunk)} accesses", len(moments), len(moments) * cost)
        rows = Rows(chunk.ip, chunk.address, chunk.size_bytes)
        try:
            read = partial(read_code, memory)
            found = time_released(moments, rows, read, cost, self._line_bytes)
        finally:
            os.close(memory)
        if isinstance(found, TimedStretch):
            return found
        return self._with_arrivals(tid, rows, found, self._costs)

    def _with_arrivals(
        self, tid: int, rows: Rows, untimed: Untimed, costs: HitCosts
    ) -> TimedStretch | Untimed:
        """Code that repeats exactly has no places, but landmarks; else why it was not timed."""
        if len(rows) < _MIN_LANDMARK_ROWS or not self._may_search():
            return untimed
        landmark = find_landmark(
            rows.first(_LANDMARK_ROWS),
            hits=HITS,
            hit_seconds=max(costs.execute_seconds, costs.access_seconds),
            expected_rate=_FAST_RATE,
        )
        if landmark is None:
            return untimed
        try:
            found = time_arrivals(tid, landmark, costs, patience_seconds=_PATIENCE_SECONDS)
        except MemsampdError:
            return untimed
        lost = untimed.hit_seconds + found.hit_seconds
        if isinstance(found, Untimed):
            return replace(found, hits=untimed.hits + found.hits, hit_seconds=lost)
        lines = count_lines(rows.address, rows.size_bytes, self._line_bytes)
        accesses = round(found.accesses * lines / len(rows))
        self._vain_searches = 0
        return replace(found, accesses=accesses)

    def _may_search(self) -> bool:
        """Whether to look for a landmark: counted as in vain until one has served."""
        self._vain_searches += 1
        is_rare = self._vain_searches > _VAIN_SEARCHES
        return not is_rare or self._vain_searches % _SEARCH_AGAIN_AFTER == 0


def time_released(
    moments: Sequence[Moment], rows: Rows, read: ReadCode, moment_seconds: float, line_bytes: int
) -> TimedStretch | Untimed:
    """Time what a thread did after its release.

    Args:
        moments: of it, ascending.
        rows: what it does from its release on.
        read: reads the program's code.
        moment_seconds: what an interrupt costs it.
        line_bytes: size of the lines that are counted.
    """
    count = len(moments)
    lost = count * moment_seconds
    places = find_moments(moments, rows, read)
    if len(places) < 2:
        return Untimed("not-found", f"{len(places)} of {count} moments", count, lost)
    found = rate_of(places, moment_seconds)
    if isinstance(found, str):
        return Untimed(found, "the places of its moments do not make sense", count, lost)
    accesses, seconds = found
    first, last = places[0], places[-1]
    between = slice(first.row, last.row)
    taken_off = (last.interrupts - first.interrupts) * moment_seconds
    error = _COST_DOUBT * taken_off / seconds + 1 / accesses
    lines = count_lines(rows.address[between], rows.size_bytes[between], line_bytes)
    return TimedStretch(lines, seconds, "moments", count, lost, error)


def count_lines(
    address: NDArray[np.uint64], size_bytes: NDArray[np.uint16], line_bytes: int
) -> int:
    """Accesses to lines: one that crosses into a further line counts for each."""
    shift = np.uint64(line_bytes.bit_length() - 1)
    end = address + np.maximum(size_bytes, 1) - np.uint64(1)
    return len(address) + int(((end >> shift) - (address >> shift)).sum())
