"""One line that is watched: breakpoints on its words, and what their hits tell."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.process.schedstat import read_scheduled

FEW_HITS, MOST_HITS = 12, 40
"""Of one word: then it is no longer watched. Most lines need few, and each costs the target."""
SWITCH_SECONDS = 0.5e-6
"""What each event, a word or its clock, takes whenever its thread is switched to and away from.

Measured here (docs/long-distances.md); charged, whatever it is.
"""
_LONGEST_SECONDS = 60.0  # of wall time: a target that sleeps tells nothing
# A pause counts as the one that is sought from so many times its least length on: how long that
# is, is only estimated here.
_CERTAIN = 2.0
_TIMES_AS_LONG = 3.0
_HIT = np.dtype(
    [
        ("task_ns", "u8"),
        ("time_ns", "u8"),
        ("ip", "u8"),
        ("counted", "u8"),
        ("point", "u4"),
        ("in_kernel", "u4"),
    ]
)

Ending = Literal["returned", "patience", "hits", "evicted", "gone"]


class WatchOrder(msgspec.Struct, frozen=True):
    """Words of a line, to be watched together.

    Attributes:
        addresses: of 8 aligned bytes each, at most ``POINTS``.
        tid: the thread whose accesses are meant; others are watched too, as far as they are given.
        least_seconds: CPU time without a touch that is sought, about.
        number: for the caller to know it by.
        most_hits: of each word.
        limit_seconds: CPU time of any of the threads after which the kernel ends it, and the
            patience; None: the usual patience, and no limit.
    """

    addresses: tuple[int, ...]
    tid: int
    least_seconds: float
    number: int = 0
    most_hits: int = FEW_HITS
    limit_seconds: float | None = None


class Watched(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        order: what was asked for.
        times_seconds: CLOCK_MONOTONIC times of its begin, each hit, and its end.
        cpu_seconds: CPU time of the thread since the begin at these moments; what hits took is
            taken off.
        hit_words: which of the addresses each hit touched.
        end: why it ended.
        patience_seconds: CPU time without a hit after which it was to end.
        lost_seconds: CPU time that hits, and events at switches between threads, took from the
            target. What its copies took longer is not known here; who pays for it adds it.
        counted: what counters counted in the thread since the begin at these moments: at its own
            hits exactly, at those of other threads as if it had gone evenly between its own; empty
            where none counted.
    """

    order: WatchOrder
    times_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    hit_words: tuple[int, ...]
    end: Ending
    patience_seconds: float
    lost_seconds: float
    counted: tuple[float, ...] = ()


def has_seen_enough(hits_seconds: NDArray[np.float64], least_seconds: float) -> bool:
    """Whether a pause was long enough, and others than the one before the first hit had a chance.

    A watch begins within a long pause rather than a short one, and what follows a long one may be a
    short one each time: so it goes on for some times as long as the first hit took to come.

    Args:
        hits_seconds: CPU times of hits since the begin, shape (n,).
        least_seconds: how long a pause is sought, about.
    """
    if not np.any(np.diff(hits_seconds) >= least_seconds):
        return False
    first, last = float(hits_seconds[0]), float(hits_seconds[-1])
    return last - first >= _TIMES_AS_LONG * max(first, _CERTAIN * least_seconds)


class Watch(msgspec.Struct):
    """A watch under way: breakpoints by thread, the order's own first.

    ``times`` is how often each thread had been switched to when it was first watched, ``past`` the
    hits of those that have ended, ``looks`` the time, the CPU time and the counts at the last look,
    and at those before and after hits. What hits say is worked out when others have come: ``seen``
    bytes of them were there, the last one at ``last_hit_seconds`` of CPU time, and when it was
    ``last_hit_time_seconds`` (CLOCK_MONOTONIC). Hits by the kernel only use words up. At
    ``blind_seconds`` (CLOCK_MONOTONIC) the kernel ended it in the first thread that had reached the
    limit: what others touched later tells nothing.
    """

    order: WatchOrder
    points: dict[int, _core.Breakpoints]
    began_seconds: float
    times: dict[int, int]
    patience_seconds: float
    sees_kernel: bool
    counters: Sequence[HardwareEvent] = ()
    looks: list[tuple[float, float, float]] = msgspec.field(default_factory=list)
    end: Ending | None = None
    past: list[bytes] = msgspec.field(default_factory=list)
    lost_counters: bool = False
    seen: int = 0
    last_hit_seconds: float = 0.0
    last_hit_time_seconds: float = -math.inf
    blind_seconds: float = math.inf

    def follow(self, tids: Sequence[int], most_threads: int) -> None:
        """Watch threads that have begun since, in place of those that have ended.

        Raises:
            OSError: the kernel refuses one; none of the new ones is watched.
        """
        for tid in self.points.keys() - {self.order.tid, *tids}:
            ended = self.points.pop(tid)
            self.past.append(ended.hits())
            self._note_end(ended)
            ended.close()
        room = max(most_threads - len(self.points), 0)
        tids = [tid for tid in tids if tid not in self.points][:room]
        new = open_points(self.order, tids, sees_kernel=self.sees_kernel)
        arm(new)
        self.points |= new
        self.times |= times_of(new)

    def look(self) -> None:
        """See whether it is over."""
        task_ns, is_alive, counted, is_given_up = self.points[self.order.tid].clock()
        now, cpu = time.monotonic(), task_ns * 1e-9
        if is_given_up and self.looks:  # nothing is read any more
            _, cpu, last = self.looks[-1]
            counted = int(last)
        ends = {tid: self._note_end(points) for tid, points in self.points.items()}
        if ends[self.order.tid] < math.inf:  # its clock may stand still below the limit
            now, cpu = ends[self.order.tid], max(cpu, self.order.limit_seconds or 0.0)
        self.looks.append((now, cpu, float(counted)))
        by_hits = self._look_at_hits()
        self._forget_look()
        is_cut = self.blind_seconds < now  # another thread reached the limit before
        if is_given_up and self.counters:
            self.end, self.lost_counters = "evicted", True
        elif not is_alive:
            self.end = "gone"
        elif by_hits == "returned":
            self.end = "returned"
        elif not is_cut and cpu - self.last_hit_seconds >= self.patience_seconds:
            self.end = "patience"
        elif by_hits is not None:
            self.end = by_hits
        elif is_cut or now - self.began_seconds > _LONGEST_SECONDS or self._is_at_limit(cpu):
            self.end = "evicted"

    def _forget_look(self) -> None:
        """Forget the last look but one, if no hit came between its neighbours."""
        times = [self.began_seconds, *(each[0] for each in self.looks[-3:])][-3:]
        if len(times) == 3 and self.last_hit_time_seconds <= times[0]:
            del self.looks[-2]

    def _note_end(self, points: _core.Breakpoints) -> float:
        """Note when the kernel ended it in a thread, and return that; infinity if it has not."""
        ended_seconds = points.ended_ns() * 1e-9 or math.inf
        self.blind_seconds = min(self.blind_seconds, ended_seconds)
        return ended_seconds

    def _is_at_limit(self, cpu_seconds: float) -> bool:
        limit = self.order.limit_seconds
        return limit is not None and cpu_seconds >= limit

    def _look_at_hits(self) -> Ending | None:
        """What hits that have come since the last look end, if anything."""
        hits = self._hits()
        before, self.seen = self.seen, sum(map(len, hits))
        if self.seen == before:
            return None
        times, cpus, _, words = self.moments()
        if len(words):
            self.last_hit_seconds = float(cpus[-2])
            self.last_hit_time_seconds = float(times[-2])
            if has_seen_enough(cpus[1:-1], self.order.least_seconds):
                return "returned"
        if np.any(np.bincount(words) >= self.order.most_hits):
            return "hits"
        points = np.frombuffer(b"".join(hits), _HIT)["point"].astype(np.int64)
        return "evicted" if np.any(np.bincount(points) >= self.order.most_hits) else None

    def _hits(self) -> list[bytes]:
        """Hits of each thread, the order's own first."""
        return [*(each.hits() for each in self.points.values()), *self.past]

    def moments(self) -> tuple[NDArray[np.float64], ...]:
        """Times, CPU times and counts of the thread, of begin, hits and end; words of the hits."""
        told = [np.frombuffer(each, _HIT) for each in self._hits()]
        mine, *others = (each[each["in_kernel"] == 0] for each in told)
        looks = np.array(self.looks)
        known_times = np.concatenate([[self.began_seconds], mine["time_ns"] * 1e-9, looks[:, 0]])
        known_cpus = np.concatenate([[0.0], mine["task_ns"] * 1e-9, looks[:, 1]])
        known_counts = np.concatenate([[0.0], mine["counted"].astype(np.float64), looks[:, 2]])
        order = np.argsort(known_times, kind="stable")
        hits = np.concatenate([mine, *others])
        hits = hits[hits["time_ns"] * 1e-9 <= self.blind_seconds]
        hits = hits[np.argsort(hits["time_ns"], kind="stable")]
        end_seconds = min(self.looks[-1][0], self.blind_seconds)
        times = np.concatenate([[self.began_seconds], hits["time_ns"] * 1e-9, [end_seconds]])
        times = np.maximum.accumulate(times)
        cpus, counts = (
            np.interp(times, known_times[order], np.maximum.accumulate(known[order]))
            for known in (known_cpus, known_counts)
        )
        return times, cpus, counts, hits["point"].astype(np.int64)

    def close(self) -> None:
        """Give the debug registers back."""
        close_points(self.points)

    def told(self) -> Watched:
        """What came of it; it is over."""
        times, cpus, counts, words = self.moments()
        # Each hit took some of the CPU time after it.
        taken = HIT_SECONDS * np.concatenate([[0], np.arange(len(words) + 1)])
        cpus = np.maximum.accumulate(np.maximum(cpus - taken, 0.0))
        return Watched(
            self.order,
            tuple(times.tolist()),
            tuple(cpus.tolist()),
            tuple(words.tolist()),
            self.end or "evicted",
            self.patience_seconds,
            self.seen // _HIT.itemsize * HIT_SECONDS + self._switch_seconds(),
            tuple(counts.tolist()) if counts[-1] > 0 else (),
        )

    def _switch_seconds(self) -> float:
        """What events took at switches; of threads that are gone that is not known."""
        now = times_of(self.times)
        switches = sum(now.get(tid, before) - before for tid, before in self.times.items())
        events = 1 + len(self.counters) + len(self.order.addresses)
        return switches * SWITCH_SECONDS * events


def open_points(
    order: WatchOrder,
    tids: Iterable[int],
    counters: Sequence[HardwareEvent] = (),
    *,
    sees_kernel: bool,
) -> dict[int, _core.Breakpoints]:
    """Breakpoints of each thread that is not gone, not armed yet; all or none.

    Counters are for the order's own thread: in its accesses distances are counted.
    """
    words = [(_core.BREAKPOINT_ACCESS, address) for address in order.addresses]
    counted = [
        (each.type, each.config, each.config1, each.config2, each.bp_type) for each in counters
    ]
    limit_ns = round(1e9 * (order.limit_seconds or 0.0))
    points: dict[int, _core.Breakpoints] = {}
    try:
        for tid in tids:
            with contextlib.suppress(ProcessLookupError):
                of_thread = counted if tid == order.tid else []
                points[tid] = _core.Breakpoints(
                    tid, words, order.most_hits, of_thread, sees_kernel, limit_ns
                )
    except OSError:
        close_points(points)
        raise
    return points


def arm(points: dict[int, _core.Breakpoints]) -> None:
    """Start them; all or none."""
    try:
        for each in points.values():
            each.arm()
    except OSError:
        close_points(points)
        raise


def close_points(points: dict[int, _core.Breakpoints]) -> None:
    """Give back what :func:`open_points` took."""
    for each in points.values():
        each.close()


def times_of(tids: Iterable[int]) -> dict[int, int]:
    """How often threads have been switched to, those that tell."""
    told = {tid: read_scheduled(tid) for tid in tids}
    return {tid: each.times for tid, each in told.items() if each is not None}
