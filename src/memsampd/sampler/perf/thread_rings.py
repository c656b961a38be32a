"""Events of each thread on any CPU, one ring a thread: new threads are looked for."""

from __future__ import annotations

import errno
import fcntl
import mmap
import random
import select
import time

from memsampd import _core
from memsampd.errors import CapabilityError, TargetError
from memsampd.sampler.perf.groups import MORE_FILES, SamplerOptions, close_all
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.rings import (
    Drained,
    NoRoomForRingError,
    count,
    gather,
    join,
    map_ring,
    note_unsampled,
)
from memsampd.sampler.process.status import list_threads

# How often new threads are looked for while waiting.
_SEARCH_SECONDS = 0.02


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
        self.ring_bytes = options.ring_bytes
        self._options = options
        self._threads: dict[int, tuple[list[tuple[int, ...]], _core.PerfRing]] = {}
        self._last: list[Drained] = []  # from rings that were closed
        self._is_suspended = False
        # How many threads there were, and had a ring, when there were no more descriptors; and in
        # which second that was: others may give some back.
        self._full: tuple[int, int, int] | None = None
        self._rng = random.Random(options.seed)
        try:
            self._find_threads()
        except BaseException:
            self.close()
            raise
        if not self._threads:
            raise TargetError(f"process {options.pid} is gone")

    def _find_threads(self) -> None:
        options, files = self._options, self._options.files_of_a_thread
        while True:
            threads = list_threads(options.pid)
            new = [tid for tid in threads if tid not in self._threads]
            now = int(time.monotonic())
            if not new or (len(threads), len(self._threads), now) == self._full:
                return
            room = options.affordable(len(new), files, len(self._threads) * files)
            chosen = new if len(new) <= room else self._rng.sample(new, room)
            before = tuple(self._threads)
            opened = [tid for tid in chosen if self._open_thread(tid)]
            if options.pid in opened:
                # Perhaps another thread has executed a program, and has this id now and two events.
                for tid in before:
                    self._close_thread(tid)
            if len(chosen) < len(new):  # it takes too long to be asked each time
                self._full = len(threads), len(self._threads), now
                options.check_files((len(self._threads) + 1) * files)
                raise CapabilityError(
                    f"process {options.pid} has more threads than descriptors are left for",
                    MORE_FILES,
                )
            if not opened:
                return

    def _open_thread(self, tid: int) -> bool:
        options = self._options
        try:
            groups = options.open_groups(tid, -1, _core.INHERIT_NOTHING)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return False
            raise explain_refusal(error, f"sampling process {options.pid}") from error
        try:
            first = groups[0][0]
            self._threads[tid] = groups, map_ring(first, options)
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
        for tid, (groups, _) in tuple(self._threads.items()):
            if _has_hung_up(groups[0][0]):
                self._close_thread(tid)

    def _close_thread(self, tid: int) -> None:
        groups, ring = self._threads.pop(tid)
        self._last.append(gather([ring]))
        ring.close()
        close_all(groups)

    def _find_new(self) -> None:
        try:
            self._find_threads()
        except NoRoomForRingError as error:
            if self.ring_bytes <= mmap.PAGESIZE:
                note_unsampled(self, error)
                return
            self._options = self._options.halved()
            self.ring_bytes = self._options.ring_bytes
            self._find_new()
        except (CapabilityError, TargetError) as error:
            note_unsampled(self, error)

    def _poll(self, timeout_seconds: float) -> bool:
        poll = select.poll()
        for groups, _ in self._threads.values():
            poll.register(groups[0][0], select.POLLIN)
        # A thread that has just exited makes its descriptor ready: only samples end the wait.
        ready = poll.poll(max(0.0, timeout_seconds) * 1000)
        return any(mask & select.POLLIN for _, mask in ready)

    def drain(self) -> Drained:
        """Empty all rings."""
        parts = [*self._last, gather(ring for _, ring in self._threads.values())]
        self._last = []
        return join(parts)

    def peek(self) -> Drained:
        """Tell what is in the rings, and leave it there; those of new threads are opened."""
        if not self._is_suspended:
            self._find_new()
        now = gather((ring for _, ring in self._threads.values()), leaves=True)
        return join([*self._last, now])

    def sampling_files(self) -> list[int]:
        """Descriptors of the events that are sampled."""
        return [group[0] for groups, _ in self._threads.values() for group in groups]

    def opened_threads(self) -> list[int]:
        """Threads whose events these are."""
        return list(self._threads)

    def suspend(self) -> int:
        """Sample no more for now; CPU time that was sampled since the last ``resume``, ns."""
        self._is_suspended = True
        sampled_ns = count(self.sampling_files())
        for tid in tuple(self._threads):
            self._close_thread(tid)
        return sampled_ns

    def resume(self) -> None:
        """Sample again, after ``suspend``."""
        self._is_suspended, self._full = False, None
        self._find_new()
        self.ended = not self._threads

    def close(self) -> None:
        """Release everything; may be called twice."""
        for groups, ring in self._threads.values():
            ring.close()
            close_all(groups)
        self._threads.clear()
        self.ended = True


def _has_hung_up(fd: int) -> bool:
    """Whether the event's thread and all that inherited the event have exited."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(mask & select.POLLHUP for _, mask in poll.poll(0))
