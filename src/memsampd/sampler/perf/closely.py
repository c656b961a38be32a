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
from memsampd.sampler.perf.source import RECORD_BYTES, branch_samples
from memsampd.sampler.records import BranchSamples

PERIOD_SECONDS = 1e-4
"""Shorter, and interrupts would take most of it; longer, and loops begin anew in between."""
SAMPLES = 32
_PATIENCE_SECONDS = 0.03
_RING_BYTES = 2 * mmap.PAGESIZE
# Who waits is woken when more than so many bytes have come since the last time.
_WATERMARK_BYTES = SAMPLES * RECORD_BYTES - 1


class CloseSampler:
    """Samples a thread 32 times in 3.2 ms of its CPU time, whenever it is asked to.

    The event is kept, disabled, for as long as the same thread is sampled: to open and close one
    takes two milliseconds of our CPU time, to enable it again a tenth of that.

    Args:
        cancelled_fd: ends a wait when there is something to read from it.
    """

    def __init__(self, cancelled_fd: int) -> None:
        self._cancelled_fd = cancelled_fd
        self._tid: int | None = None
        self._opened = ExitStack()

    def sample(self, tid: int) -> BranchSamples | None:
        """Sample a thread.

        Returns:
            The samples, with registers, fewer where the thread sleeps or has just ended; None if
            the kernel refuses, or it has ended before.
        """
        try:
            if tid != self._tid:
                self.close()
                self._open(tid)
            self._poll.poll(0)
            self._ring.drain()  # the last one of those before may have come late
            fcntl.ioctl(self._fd, _core.PERF_EVENT_IOC_REFRESH, SAMPLES)
        except OSError:
            self.close()
            return None
        self._poll.poll(_PATIENCE_SECONDS * 1000)
        samples = np.frombuffer(self._ring.drain()[0], SAMPLE_DTYPE)
        if len(samples) < SAMPLES - 1:  # else the others would come when nobody waits for them
            self.close()
        return branch_samples(samples, PERIOD_SECONDS)

    def close(self) -> None:
        """Leave nothing; may be called twice."""
        self._tid = None
        self._opened.close()

    def _open(self, tid: int) -> None:
        """Have an event of a thread, which is disabled.

        Raises:
            OSError: the kernel refuses, or the thread has ended.
        """
        self._fd = _core.perf_open_sampler(
            tid,
            -1,
            round(PERIOD_SECONDS * 1e9),
            _WATERMARK_BYTES,
            _core.INHERIT_NOTHING,
            sample_type=_core.SAMPLE_REGISTERS,
            disabled=True,
        )
        self._opened.callback(os.close, self._fd)
        self._ring = _core.PerfRing(self._fd, _RING_BYTES)
        self._opened.callback(self._ring.close)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._cancelled_fd, select.POLLIN)
        self._tid = tid
