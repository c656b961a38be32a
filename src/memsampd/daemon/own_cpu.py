"""CPU time of this process, shared out among the targets that it observes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class ProcessCpu:
    """Keeps an account for each target.

    An account pays for its threads, for what other threads are told to do for it, and for threads
    of the core that take its bursts. The first one pays for all that is nobody else's, too: the
    start of the process, the threads that serve results. So the accounts' sum is the process's CPU
    time.

    Args:
        process_seconds: CPU time of the process so far, injected for tests.
        thread_seconds: CPU time of a thread so far, injected for tests.
    """

    def __init__(
        self,
        process_seconds: Callable[[], float] = time.process_time,
        thread_seconds: Callable[[threading.Thread], float | None] | None = None,
    ) -> None:
        self._process_seconds = process_seconds
        self._thread_seconds = thread_seconds or _thread_seconds
        self._accounts: list[CpuAccount] = []
        self._closed_seconds = 0.0

    def open(self) -> CpuAccount:
        """Return the account of another target."""
        account = CpuAccount(self, self._thread_seconds)
        self._accounts.append(account)
        return account

    def used_by(self, account: CpuAccount) -> float:
        """CPU time of an account in seconds."""
        first, *others = self._accounts
        if account is not first:
            return account.direct_seconds()
        rest = self._closed_seconds + sum(other.direct_seconds() for other in others)
        return self._process_seconds() - rest

    def close(self, account: CpuAccount) -> None:
        """Add nothing more to an account; not to the first one's."""
        if account in self._accounts[1:]:
            self._accounts.remove(account)
            self._closed_seconds += account.direct_seconds()


class CpuAccount:
    """What one target costs this process, see :class:`ProcessCpu`."""

    def __init__(
        self, process: ProcessCpu, thread_seconds: Callable[[threading.Thread], float | None]
    ) -> None:
        self._process = process
        self._thread_seconds = thread_seconds
        # By thread: its CPU time before it was this target's, and when it was last looked at.
        self._threads: dict[threading.Thread, tuple[float, float]] = {}
        self._charged_seconds = 0.0  # by others, and by threads that have ended
        self._burst_seconds = 0.0  # of the core's threads; the thread that has bursts taken adds it

    def add_thread(self, thread: threading.Thread) -> None:
        """Count what a live thread uses from now on."""
        used = self._thread_seconds(thread) or 0.0
        self._threads[thread] = used, used

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Count what the calling thread does meanwhile, which is nobody's."""
        before = time.thread_time()
        try:
            yield
        finally:
            self._charged_seconds += time.thread_time() - before

    def charge_burst(self, seconds: float) -> None:
        """Count what a thread of the core's took for a burst; by one thread at a time."""
        self._burst_seconds += seconds

    def direct_seconds(self) -> float:
        """CPU time of these threads, those that have ended as they were seen last."""
        for thread, (before, last) in tuple(self._threads.items()):
            used = self._thread_seconds(thread)
            if used is not None:
                self._threads[thread] = before, used
            else:
                del self._threads[thread]
                self._charged_seconds += last - before
        alive_seconds = sum(last - before for before, last in self._threads.values())
        return self._charged_seconds + self._burst_seconds + alive_seconds

    @property
    def used_seconds(self) -> float:
        """All that this target has cost the process so far."""
        return self._process.used_by(self)

    def close(self) -> None:
        """No more will come."""
        self._process.close(self)


class HelperCpu:
    """CPU time of processes that come and go, as each was seen last.

    Args:
        seconds: CPU time of a process so far; None if it has ended.
    """

    def __init__(self, seconds: Callable[[int], float | None]) -> None:
        self._seconds = seconds
        self._seen: dict[int, float] = {}

    def used_seconds(self, pids: Iterable[int]) -> float:
        """CPU time of these and of those that were named before."""
        for pid in pids:
            used = self._seconds(pid)
            if used is not None:
                self._seen[pid] = max(used, self._seen.get(pid, 0.0))
        return sum(self._seen.values())


def _thread_seconds(thread: threading.Thread) -> float | None:
    """CPU time of a thread; None if it has ended."""
    if not thread.is_alive() or thread.native_id is None:
        return None
    try:  # the clock that pthread_getcpuclockid(3) names, which must not be asked of the dead
        return time.clock_gettime((~thread.native_id << 3) | 6)
    except OSError:
        return None
