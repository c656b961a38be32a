"""Sampling for a part of the time: events are opened and closed again, at random moments."""

from __future__ import annotations

import math
import random
import threading
import time

from memsampd.errors import TargetError
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import program_mark

_ON_SECONDS, _CYCLE_SECONDS = 0.005, 0.04  # at least
_CYCLE_SECONDS_MOST = 2.0
_OWN_SHARE = 0.005  # of the target's CPU time: so much may be used for opening and closing
_MEMORY_SECONDS = 5.0
_ASSUMED_NS = 1e7  # of CPU time, as if so much had been sampled as planned
_LONGEST_PAUSE = 4.0  # of those planned: after an on-time that became far too long


class DutyCycle:
    """Samples a process for a share of the time, from a thread of its own.

    On-times begin at random, whatever the program does. What they come to in CPU time of the target
    is counted by the events themselves: an on-time that ends late, for no CPU is idle, misleads
    nobody.

    Args:
        pid: the process.
        share: of the time.
        stream: its samples.
        lock: held by who uses the stream.
        most_seconds: no on-time is to be longer.
        seed: of the on-times.
    """

    def __init__(
        self,
        pid: int,
        share: float,
        stream: SampleStream,
        lock: threading.Lock,
        *,
        most_seconds: float = math.inf,
        seed: int = 0,
    ) -> None:
        self.share = share
        self._pid = pid
        self._stream, self._lock = stream, lock
        self._most_seconds = most_seconds
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._execs: list[float] = []
        self._cpu_ns = self._read_cpu_ns()
        self._seen_seconds = time.monotonic()
        self._used_ns = self._sampled_ns = 0.0  # CPU time lately, all, and that of on-times
        self._own_seconds, self._busy_share = 1e-4, 1.0  # of a cycle; of the target
        self.thread = threading.Thread(target=self._run, name="memsampd-sampling", daemon=True)
        self.thread.start()

    @property
    def weight(self) -> float:
        """CPU time of the target by that of on-times, lately."""
        planned_ns = self.share * _ASSUMED_NS
        return max((self._used_ns + _ASSUMED_NS) / (self._sampled_ns + planned_ns), 1.0)

    def take_execs(self) -> list[float]:
        """CLOCK_MONOTONIC times at which the process was found to run another program.

        While its events are closed nothing else tells. The lock is held by who asks.
        """
        execs, self._execs = self._execs, []
        return execs

    def close(self) -> None:
        """Sample it all the time; may be called twice."""
        if not self._ended.is_set():
            self._ended.set()
            self.thread.join()
            with self._lock:
                self._stream.resume()

    def _run(self) -> None:
        mark = program_mark(self._pid)
        with self._lock:
            self._stream.suspend()  # what was sampled before is of no on-time
        self._ended.wait(self._rng.random() * _ON_SECONDS / self.share)
        while not self._ended.is_set():
            before_seconds, began_seconds = time.thread_time(), time.monotonic()
            with self._lock:
                self._stream.resume()
                if mark not in (None, program_mark(self._pid) or mark):
                    self._execs.append(began_seconds)
            on_seconds, cycle_seconds = self._times()
            self._ended.wait(on_seconds)
            mark = program_mark(self._pid) or mark
            with self._lock:
                self._pause()
            lasted = time.monotonic() - began_seconds
            # An on-time ends late where the target keeps the CPU: it has more of it than its share.
            late = min(max(1 / (self.share * self.weight), 1.0), _LONGEST_PAUSE)
            pause = min(lasted * (1 / self.share - 1) * late, _LONGEST_PAUSE * cycle_seconds)
            self._own_seconds += 0.1 * (time.thread_time() - before_seconds - self._own_seconds)
            self._ended.wait(pause * self._rng.uniform(0.5, 1.5))

    def _times(self) -> tuple[float, float]:
        """How long to be on, and how long that and the pause after it are in the mean, seconds.

        The longer, the less the target runs: opening events is to cost little beside that.
        """
        cycle = self._own_seconds / (_OWN_SHARE * max(self._busy_share, 1e-3))
        cycle = min(max(cycle, _CYCLE_SECONDS, _ON_SECONDS / self.share), _CYCLE_SECONDS_MOST)
        on = min(cycle * self.share, self._most_seconds)
        return on, on / self.share

    def _pause(self) -> None:
        """Pause, and add up what the target used since the last pause, and what was sampled."""
        gained_ns = self._stream.suspend()
        now, cpu_ns = time.monotonic(), max(self._read_cpu_ns(), self._cpu_ns)
        passed, used_ns = now - self._seen_seconds, cpu_ns - self._cpu_ns
        keep = math.exp(-passed / _MEMORY_SECONDS)
        self._used_ns = keep * self._used_ns + used_ns
        self._sampled_ns = keep * self._sampled_ns + gained_ns
        self._busy_share += (1 - keep) * (1e-9 * used_ns / max(passed, 1e-6) - self._busy_share)
        self._cpu_ns, self._seen_seconds = cpu_ns, now

    def _read_cpu_ns(self) -> int:
        try:
            return process_cpu_ns(self._pid)
        except TargetError:  # gone: no more will come
            return 0
