"""Data breakpoints on words of a target's memory, while it runs: when is each touched again?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.process.schedstat import read_scheduled

POINTS = 4
"""Debug registers of an x86 thread."""
FEW_HITS, MOST_HITS = 12, 40
"""Of one word: then it is no longer watched. Most lines need few, and each costs the target."""
MOST_THREADS = 8
"""A word is watched in so many threads: each takes two descriptors a word."""
PATIENCE_SECONDS = 0.5
SWITCH_SECONDS = 0.5e-6
"""What each event, a word or its clock, takes whenever its thread is switched to and away from.

Measured here (docs/long-distances.md); charged, whatever it is.
"""
_LONGEST_SECONDS = 60.0  # of wall time: a target that sleeps tells nothing
# A pause counts as the one that is sought from so many times its least length on: how long that
# is, is only estimated here.
_CERTAIN = 2.0
_TIMES_AS_LONG = 3.0
_HIT = np.dtype([("task_ns", "u8"), ("time_ns", "u8"), ("ip", "u8"), ("point", "u4"), ("_", "u4")])

Ending = Literal["returned", "patience", "hits", "evicted", "gone"]


class WatchOrder(msgspec.Struct, frozen=True):
    """Words of a line, to be watched together.

    Attributes:
        addresses: of 8 aligned bytes each, at most ``POINTS``.
        tid: the thread whose accesses are meant; others are watched too, as far as they are given.
        least_seconds: CPU time without a touch that is sought, about.
        number: for the caller to know it by.
        most_hits: of each word.
    """

    addresses: tuple[int, ...]
    tid: int
    least_seconds: float
    number: int = 0
    most_hits: int = FEW_HITS


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
            target.
    """

    order: WatchOrder
    times_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    hit_words: tuple[int, ...]
    end: Ending
    patience_seconds: float
    lost_seconds: float


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


class _Watch(msgspec.Struct):
    """One under way: breakpoints by thread, the order's own first.

    ``times`` is how often each thread had been switched to when it was first watched, ``past`` the
    hits of those that have ended.
    """

    order: WatchOrder
    points: dict[int, _core.Breakpoints]
    began_seconds: float
    times: dict[int, int]
    looks: list[tuple[float, float]] = msgspec.field(default_factory=list)  # time, CPU time
    end: Ending | None = None
    past: list[bytes] = msgspec.field(default_factory=list)

    def follow(self, tids: Sequence[int], most_threads: int) -> None:
        """Watch threads that have begun since, in place of those that have ended.

        Raises:
            OSError: the kernel refuses one; none of the new ones is watched.
        """
        for tid in self.points.keys() - {self.order.tid, *tids}:
            ended = self.points.pop(tid)
            self.past.append(ended.hits())
            ended.close()
        room = max(most_threads - len(self.points), 0)
        new = _open(self.order, [tid for tid in tids if tid not in self.points][:room])
        _arm(new)
        self.points |= new
        self.times |= _times_of(new)

    def look(self, patience_seconds: float) -> None:
        """See whether it is over."""
        task_ns, is_alive = self.points[self.order.tid].clock()
        now, cpu = time.monotonic(), task_ns * 1e-9
        self.looks = [*self.looks[-1:], (now, cpu)]
        _, cpus, words = self.moments()
        hits = cpus[1:-1]
        if not is_alive:
            self.end = "gone"
        elif has_seen_enough(hits, self.order.least_seconds):
            self.end = "returned"
        elif cpu - (hits[-1] if len(hits) else 0.0) >= patience_seconds:
            self.end = "patience"
        elif np.any(np.bincount(words) >= self.order.most_hits):
            self.end = "hits"
        elif now - self.began_seconds > _LONGEST_SECONDS:
            self.end = "evicted"

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Times, and CPU times of the thread, of the begin, the hits and the end; words of hits."""
        told = [*(each.hits() for each in self.points.values()), *self.past]
        mine, *others = (np.frombuffer(each, _HIT) for each in told)
        looks = np.array(self.looks)
        known_times = np.concatenate([[self.began_seconds], mine["time_ns"] * 1e-9, looks[:, 0]])
        known_cpus = np.concatenate([[0.0], mine["task_ns"] * 1e-9, looks[:, 1]])
        order = np.argsort(known_times, kind="stable")
        hits = np.concatenate([mine, *others])
        hits = hits[np.argsort(hits["time_ns"], kind="stable")]
        times = np.concatenate([[self.began_seconds], hits["time_ns"] * 1e-9, looks[-1:, 0]])
        times = np.maximum.accumulate(times)
        cpus = np.interp(times, known_times[order], np.maximum.accumulate(known_cpus[order]))
        return times, cpus, hits["point"].astype(np.int64)

    def close(self) -> None:
        _close(self.points)

    def told(self, patience_seconds: float) -> Watched:
        """What came of it; it is over."""
        times, cpus, words = self.moments()
        # Each hit took some of the CPU time after it.
        taken = HIT_SECONDS * np.concatenate([[0], np.arange(len(words) + 1)])
        cpus = np.maximum.accumulate(np.maximum(cpus - taken, 0.0))
        return Watched(
            self.order,
            tuple(times.tolist()),
            tuple(cpus.tolist()),
            tuple(words.tolist()),
            self.end or "evicted",
            patience_seconds,
            len(words) * HIT_SECONDS + self._switch_seconds(),
        )

    def _switch_seconds(self) -> float:
        """What events took at switches; of threads that are gone that is not known."""
        now = _times_of(self.times)
        switches = sum(now.get(tid, before) - before for tid, before in self.times.items())
        return switches * SWITCH_SECONDS * (1 + len(self.order.addresses))


def _open(order: WatchOrder, tids: Iterable[int]) -> dict[int, _core.Breakpoints]:
    """Breakpoints of each thread that is not gone, not armed yet; all or none."""
    words = [(_core.BREAKPOINT_ACCESS, address) for address in order.addresses]
    points: dict[int, _core.Breakpoints] = {}
    try:
        for tid in tids:
            with contextlib.suppress(ProcessLookupError):
                points[tid] = _core.Breakpoints(tid, words, order.most_hits)
    except OSError:
        _close(points)
        raise
    return points


def _arm(points: dict[int, _core.Breakpoints]) -> None:
    """Start them; all or none."""
    try:
        for each in points.values():
            each.arm()
    except OSError:
        _close(points)
        raise


def _close(points: dict[int, _core.Breakpoints]) -> None:
    for each in points.values():
        each.close()


def _times_of(tids: Iterable[int]) -> dict[int, int]:
    """How often threads have been switched to, those that tell."""
    told = {tid: read_scheduled(tid) for tid in tids}
    return {tid: each.times for tid, each in told.items() if each is not None}


class Watchpoints:
    """Watches words of one process, as many at a time as there are debug registers.

    The thread is interrupted at each hit for a moment, and nothing else happens to it: nothing is
    stopped, written or traced. Only accesses in user mode count: what the kernel does with the
    word on behalf of the thread (``read(2)`` into it, say) is not seen. All ends with this object,
    or with this process.

    A watch goes on until it has seen pauses of the length that is sought between hits, for some
    times as long as the first hit took to come; or until there was no hit for ``patience_seconds``
    of CPU time, or too many hits came.

    Args:
        patience_seconds: of the thread's CPU time.
        most_files: descriptors that may be opened, about; fewer threads are then watched.
    """

    name = "watchpoints"

    def __init__(
        self,
        patience_seconds: float = PATIENCE_SECONDS,
        most_files: int | None = None,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._points = POINTS
        threads = MOST_THREADS if most_files is None else most_files // (2 * POINTS)
        self._threads = min(max(threads, 1), MOST_THREADS)
        self._watches: list[_Watch] = []
        self._told: list[Watched] = []

    @property
    def is_watching(self) -> bool:
        """Whether any word is watched."""
        return bool(self._watches)

    @property
    def free(self) -> int:
        """How many more words can be watched."""
        return self._points - sum(len(each.order.addresses) for each in self._watches)

    def start(self, order: WatchOrder, tids: Sequence[int] = ()) -> None:
        """Watch words.

        Args:
            order: which.
            tids: other threads that may touch them.

        Raises:
            CaptureError: the thread is gone.
            MemsampdError: the kernel refuses; why, and what to do.
        """
        others = [tid for tid in tids if tid != order.tid][: self._threads - 1]
        what = f"watching memory of thread {order.tid}"
        try:
            points = _open(order, (order.tid, *others))
            if order.tid not in points:
                _close(points)
                raise CaptureError("gone", f"{what}: it is gone")
            began_seconds = time.monotonic()
            _arm(points)
        except OSError as error:
            raise explain_refusal(error, what) from error
        self._watches.append(_Watch(order, points, began_seconds, _times_of(points)))

    def follow(self, tids: Sequence[int]) -> None:
        """Watch the words in threads that have begun since, too.

        Where the kernel refuses one, its watches end: touches by that thread would be missed.

        Args:
            tids: threads that the process has now.
        """
        for watch in self._watches:
            try:
                watch.follow(tids, self._threads)
            except OSError:
                watch.look(self._patience_seconds)
                watch.end = watch.end or "evicted"
        self._end([watch for watch in self._watches if watch.end is not None])

    def poll(self) -> list[Watched]:
        """What has come to an end since the last call."""
        for watch in self._watches:
            watch.look(self._patience_seconds)
        self._end([watch for watch in self._watches if watch.end is not None])
        told, self._told = self._told, []
        return told

    def suspend(self) -> None:
        """Give the debug registers back: all watches end, and are told next."""
        for watch in self._watches:
            watch.look(self._patience_seconds)
            watch.end = watch.end or "evicted"
        self._end(list(self._watches))

    def close(self) -> None:
        """End all watches; may be called twice."""
        self.suspend()
        self._points = 0

    def _end(self, watches: Sequence[_Watch]) -> None:
        for watch in watches:
            self._told.append(watch.told(self._patience_seconds))
            watch.close()
            self._watches.remove(watch)
