"""Samples of a thread in quick succession: how its registers go on within a millisecond."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
from contextlib import ExitStack

import numpy as np

from memsampd import _core
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.perf.source import branch_samples
from memsampd.sampler.records import BranchSamples

PERIOD_SECONDS = 1e-4
"""Shorter, and interrupts would take most of it; longer, and loops begin anew in between."""
SAMPLES = 32
_PATIENCE_SECONDS = 0.03
_RING_BYTES = 2 * mmap.PAGESIZE
_LEAST_RECORD_BYTES = 160


def sample_closely(tid: int, cancelled_fd: int) -> BranchSamples | None:
    """Sample a thread 32 times in 3.2 ms of its CPU time.

    Args:
        tid: the thread.
        cancelled_fd: ends the wait when there is something to read from it.

    Returns:
        The samples, with registers, fewer where the thread sleeps; None if the kernel refuses, or
        the thread has ended.
    """
    with ExitStack() as stack:
        try:
            fd = _core.perf_open_sampler(
                tid,
                -1,
                round(PERIOD_SECONDS * 1e9),
                (SAMPLES - 1) * _LEAST_RECORD_BYTES,
                _core.INHERIT_NOTHING,
                sample_type=_core.SAMPLE_REGISTERS,
            )
            stack.callback(os.close, fd)
            ring = _core.PerfRing(fd, _RING_BYTES)
        except OSError:
            return None
        stack.callback(ring.close)
        fcntl.ioctl(fd, _core.PERF_EVENT_IOC_REFRESH, SAMPLES)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(cancelled_fd, select.POLLIN)
        poll.poll(_PATIENCE_SECONDS * 1000)
        samples = np.frombuffer(ring.drain()[0], SAMPLE_DTYPE)
    return branch_samples(samples, PERIOD_SECONDS)
