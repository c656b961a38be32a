"""Waiting until one of some sleeping threads runs: nothing is done, nor touched, before it does."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import time
from collections.abc import Sequence
from contextlib import ExitStack

from memsampd import _core
from memsampd.errors import CapabilityError
from memsampd.sampler.perf.refusal import explain_refusal

# CPU time of its own code after which a thread counts as running; each event fires once.
_RUN_NS = 100_000
# So many threads are waited for at most: each takes a descriptor and two pages of locked memory.
_MOST_THREADS = 16


def wait_until_one_runs(tids: Sequence[int], seconds: float, cancelled_fd: int) -> int | None:
    """Wait until one of some threads has used a little CPU time in its own code.

    A timer of each thread's CPU time tells. It stands still while the thread sleeps, and who waits
    sleeps, too. The thread that runs is interrupted once for a microsecond, as by a sample; it may
    sleep again when this returns.

    Args:
        tids: threads, those that are most likely to run first: only some are waited for.
        seconds: how long to wait.
        cancelled_fd: ends the wait when there is something to read from it.

    Returns:
        The thread that ran first; None if none did, all have ended, or the wait was cancelled.

    Raises:
        CapabilityError: the kernel refuses such timers; why, and what to do.
    """
    with ExitStack() as stack:
        rings: dict[int, tuple[int, _core.PerfRing]] = {}
        for tid in tids[:_MOST_THREADS]:
            opened = _open(tid, stack)
            if opened is not None:
                fd, ring = opened
                rings[fd] = tid, ring
        return _wait(rings, time.monotonic() + seconds, cancelled_fd)


def one_shot_timer(
    tid: int, cpu_ns: int, stack: ExitStack, sample_type: int = _core.SAMPLE_REGISTERS
) -> int:
    """Make a timer of a thread's CPU time that takes one sample of it, once it is started.

    Args:
        tid: the thread.
        cpu_ns: when.
        stack: closes it.
        sample_type: what is in the sample.

    Returns:
        The event.

    Raises:
        OSError: the kernel refuses, or the thread has ended.
    """
    fd = _core.perf_open_sampler(
        tid, -1, cpu_ns, 1, _core.INHERIT_NOTHING, sample_type=sample_type, disabled=True
    )
    stack.callback(os.close, fd)
    return fd


def start_timer(fd: int) -> None:
    """Start a timer whose ring is there: one that fires before that tells nobody.

    Raises:
        OSError: the kernel refuses.
    """
    fcntl.ioctl(fd, _core.PERF_EVENT_IOC_REFRESH, 1)


def _open(tid: int, stack: ExitStack) -> tuple[int, _core.PerfRing] | None:
    """A timer of a thread that fires once, and where it says so; None if the thread has ended."""
    try:
        fd = one_shot_timer(tid, _RUN_NS, stack)
        ring = _core.PerfRing(fd, mmap.PAGESIZE)
        stack.callback(ring.close)
        start_timer(fd)
    except ProcessLookupError:
        return None
    except OSError as error:
        refusal = explain_refusal(error, f"a timer of the CPU time of thread {tid}")
        raise CapabilityError(refusal.cause, refusal.remedy) from error
    return fd, ring


def _wait(
    rings: dict[int, tuple[int, _core.PerfRing]], deadline_seconds: float, cancelled_fd: int
) -> int | None:
    poll = select.poll()
    for fd in (cancelled_fd, *rings):
        poll.register(fd, select.POLLIN)
    while rings and (left_seconds := deadline_seconds - time.monotonic()) > 0:
        for fd, mask in poll.poll(left_seconds * 1000):
            if fd == cancelled_fd:
                return None
            tid, ring = rings[fd]
            if ring.drain()[0]:  # else it was told that the thread forked, or the like
                return tid
            if mask & (select.POLLHUP | select.POLLERR):
                poll.unregister(fd)
                del rings[fd]
    return None
