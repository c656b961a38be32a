"""Data breakpoints on words of a target's memory, while it runs: when is each touched again?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memsampd import _core
from memsampd.errors import CaptureError
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.watch import (
    Watch,
    Watched,
    WatchOrder,
    arm,
    close_points,
    open_points,
    times_of,
)

POINTS = 4
"""Debug registers of an x86 thread."""
MOST_THREADS = 8
"""A word is watched in so many threads: each takes two descriptors a word."""
PATIENCE_SECONDS = 0.49
"""CPU time without a hit that ends a watch: by the next turn, which comes after 0.5 s at most."""


class Watchpoints:
    """Watches words of one process, as many at a time as there are debug registers.

    The thread is interrupted at each hit for a moment: nothing is stopped, written or traced. On
    some CPUs its copies take longer meanwhile (:mod:`~memsampd.sampler.perf.watching_cost`). Only
    accesses in user mode tell anything: where the kernel touches a word on behalf of the thread
    (``read(2)`` into it, say), that traps too, and ends the watch when it has come too often. All
    ends with this object, or with this process.

    A watch goes on until it has seen pauses of the length that is sought between hits, for some
    times as long as the first hit took to come; or until there was no hit for ``patience_seconds``
    of CPU time, or too many hits came.

    Args:
        patience_seconds: of the thread's CPU time.
        most_files: descriptors that may be opened, about; fewer threads are then watched.
        counters: events that together count accesses, at most two, read at each hit of one watch at
            a time: there are few counters; none: nothing is counted. They are given up for good
            where the kernel cannot have them beside the breakpoints.
        sees_kernel: hits by the kernel may be counted; else nothing bounds them.
    """

    name = "watchpoints"

    def __init__(
        self,
        patience_seconds: float = PATIENCE_SECONDS,
        most_files: int | None = None,
        counters: Sequence[HardwareEvent] = (),
        *,
        sees_kernel: bool = False,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._sees_kernel = sees_kernel
        self._points = POINTS
        self._counters = tuple(counters)
        self.notes: tuple[str, ...] = ()
        threads = MOST_THREADS if most_files is None else most_files // (2 * POINTS)
        self._threads = min(max(threads, 1), MOST_THREADS)
        self._watches: list[Watch] = []
        self._told: list[Watched] = []

    @property
    def is_watching(self) -> bool:
        """Whether any word is watched."""
        return bool(self._watches)

    @property
    def counts(self) -> bool:
        """Whether accesses between hits are counted."""
        return bool(self._counters)

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
            points = self._open(order, (order.tid, *others))
            if order.tid not in points:
                close_points(points)
                raise CaptureError("gone", f"{what}: it is gone")
            began_seconds = time.monotonic()
            arm(points)
        except OSError as error:
            raise explain_refusal(error, what) from error
        limit = order.limit_seconds
        watch = Watch(
            order,
            points,
            began_seconds,
            times_of(points),
            self._patience_seconds if limit is None else limit,
            self._sees_kernel,
            self._free_counters,
        )
        self._watches.append(watch)

    @property
    def _free_counters(self) -> tuple[HardwareEvent, ...]:
        return () if any(watch.counters for watch in self._watches) else self._counters

    def _open(self, order: WatchOrder, tids: Sequence[int]) -> dict[int, _core.Breakpoints]:
        """Open with counters, if any are free; without where only these are refused.

        Raises:
            OSError: the kernel refuses the breakpoints.
        """
        counters = self._free_counters
        sees_kernel = self._sees_kernel
        if not counters:
            return open_points(order, tids, sees_kernel=sees_kernel)
        try:
            return open_points(order, tids, counters, sees_kernel=sees_kernel)
        except OSError as error:
            points = open_points(order, tids, sees_kernel=sees_kernel)
            self._give_up_counters(error.strerror or "")
            return points

    def _give_up_counters(self, why: str) -> None:
        if self._counters:
            self._counters = ()
            self.notes = (
                f"accesses between touches of watched words are no longer counted: {why}; "
                "their distances are CPU time at the rates of windows",
            )

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
                watch.look()
                watch.end = watch.end or "evicted"
        self._end([watch for watch in self._watches if watch.end is not None])

    def poll(self) -> list[Watched]:
        """What has come to an end since the last call."""
        for watch in self._watches:
            watch.look()
        self._end([watch for watch in self._watches if watch.end is not None])
        told, self._told = self._told, []
        return told

    def suspend(self) -> None:
        """Give the debug registers back: all watches end, and are told next."""
        for watch in self._watches:
            watch.look()
            watch.end = watch.end or "evicted"
        self._end(list(self._watches))

    def close(self) -> None:
        """End all watches; may be called twice."""
        self.suspend()
        self._points = 0

    def _end(self, watches: Sequence[Watch]) -> None:
        for watch in watches:
            self._told.append(watch.told())
            watch.close()
            self._watches.remove(watch)
            if watch.lost_counters:
                self._give_up_counters("others have the counters")
