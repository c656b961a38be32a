"""Random periods of sampling, so that no program runs in step with it."""

from __future__ import annotations

import contextlib
import fcntl
import random
import struct
import time
from collections.abc import Sequence

from memsampd import _core

_SPREAD = 0.25
_RENEW_SECONDS = 0.25
_SAMPLES_TO_JUDGE, _SECONDS_TO_JUDGE = 32, 0.5
MOST_OFF = 2.0  # from the CPU time that a sample should stand for
_FILES_AT_ONCE = 64  # each may interrupt a CPU


class PeriodJudge:
    """Says by which factor a period has to change for samples to stand for so much CPU time.

    Args:
        period_seconds: CPU time that a sample is to stand for, about.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._samples, self._seconds = 0, 0.0  # since it was last said

    def factor(self, samples: int, cpu_seconds: float) -> float:
        """Take in more samples; 1 where too few have come, or they are about right."""
        self._samples += samples
        self._seconds += cpu_seconds
        is_told = self._samples >= _SAMPLES_TO_JUDGE or self._seconds >= _SECONDS_TO_JUDGE
        if not (self._samples and self._seconds and is_told):
            return 1.0
        factor = self._period_seconds * self._samples / self._seconds
        self._samples, self._seconds = 0, 0.0
        return 1.0 if 1 / MOST_OFF < factor < MOST_OFF else factor


class RandomPeriods:
    """Periods about a mean.

    Args:
        mean: events between two samples.
        step: periods are multiples of it.
        rng: chooses.
    """

    def __init__(self, mean: int, step: int, rng: random.Random) -> None:
        self.mean = mean
        self._step = step
        self._rng = rng
        self._renewed_seconds = time.monotonic()
        self._next = 0

    def draw(self) -> int:
        """A period between 0.75 and 1.25 times the mean."""
        period = self.mean * self._rng.uniform(1 - _SPREAD, 1 + _SPREAD)
        return max(round(period / self._step), 1) * self._step

    def renew(self, files: Sequence[int], *, now: bool = False) -> None:
        """Give events new periods, some at a time, a few times a second.

        Threads that were born since have the period that their creator had then.

        Args:
            files: descriptors of events.
            now: the mean has changed: give all of them one at once.
        """
        seconds = time.monotonic()
        if not files or (not now and seconds - self._renewed_seconds < _RENEW_SECONDS):
            return
        self._renewed_seconds = seconds
        count = len(files) if now else min(len(files), _FILES_AT_ONCE)
        for index in range(self._next, self._next + count):
            with contextlib.suppress(OSError):  # its thread has just exited
                fcntl.ioctl(
                    files[index % len(files)],
                    _core.PERF_EVENT_IOC_PERIOD,
                    struct.pack("Q", self.draw()),
                )
        self._next = (self._next + count) % len(files)
