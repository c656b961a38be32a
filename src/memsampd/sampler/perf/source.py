"""The branch source that works everywhere: the kernel's task clock as a sampling event."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.closing import Closing
from memsampd.errors import CapabilityError, TargetError, UsageError
from memsampd.sampler.perf.costs import PERIODS_SECONDS
from memsampd.sampler.perf.counts import NO_COUNTERS, CounterSet, Readings
from memsampd.sampler.perf.duty import DutyCycle
from memsampd.sampler.perf.groups import TASK_CLOCK, SamplerOptions
from memsampd.sampler.perf.rings import Drained, TaskEvent
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.perf.switches import shortened
from memsampd.sampler.protocols import BranchSource
from memsampd.sampler.records import BranchSamples

# The kernel throttles above kernel.perf_event_max_sample_rate, 100 kHz by default, and rounds
# shorter periods up to 10 us itself (perf_swevent_start_hrtimer).
_PERIOD_SECONDS_MIN = 10e-6
RECORD_BYTES = 176  # of one sample in the ring
COUNTED_RECORD_BYTES = 256  # with what counters told, about
RING_BYTES = 128 * 1024
_WAKEUP_SECONDS = 0.05  # CPU time's worth of samples in one ring that ends a wait
_MOST_SAMPLES = 200  # of a thread while it is sampled without a pause
_PAUSE_SECONDS = 0.01  # of who waits for samples of a target that is sampled now and then


class StreamedBranches(Closing, BranchSource):
    """What branch sources by a stream of samples have in common.

    Args:
        period_seconds: CPU time that a sample stands for.
        counters: counted beside the sampled event, and read at each sample.
        options: how events are opened.
        record_bytes: of one sample in a ring.
        cpus: CPUs to sample on; None: all that are online.

    Attributes:
        not_thinned: why it cannot sample for a part of the time only; empty if it can.
    """

    not_thinned = "a PMU's events are sampled"

    def __init__(
        self,
        period_seconds: float,
        counters: CounterSet,
        options: SamplerOptions,
        record_bytes: int,
        cpus: Sequence[int] | None = None,
    ) -> None:
        self.period_seconds = period_seconds
        self._options, self._cpus, self._record_bytes = options, cpus, record_bytes
        self._readings = Readings(counters)
        self._stream = SampleStream(options, cpus)
        self._events: list[TaskEvent] = []
        self._lost = 0
        self._notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it should be, a sentence each."""
        return (*self._stream.notes, *self._readings.notes, *self._notes)

    @property
    def ended(self) -> bool:
        """Whether the last ``read`` found no thread left to sample (or the source is closed)."""
        return self._stream.ended

    @property
    def ring_samples(self) -> int:
        """So many samples of a CPU wait to be read before others are lost."""
        return self._stream.ring_bytes // self._record_bytes

    @property
    def share(self) -> float:
        """For so large a part of the time it samples."""
        return 1.0

    @property
    def weight(self) -> float:
        """CPU time of the target by that for which it was sampled, lately."""
        return 1.0

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that it has at present."""
        return ()

    def thin(self, share: float) -> None:
        """Sample for so large a part of the time from now on, 1 for all of it.

        Raises:
            CapabilityError: it cannot.
        """
        if share < 1:
            raise CapabilityError("sampling for a part of the time", self.not_thinned)

    def latest(self, count: int) -> BranchSamples:
        """Return so many of the latest samples of the process itself, to be read all the same.

        None where fewer have come since the last look or read, or an exec among them.
        """
        return branch_samples(self._stream.latest(count, self._of_user_code), self.period_seconds)

    def _of_user_code(self, samples: NDArray[np.void]) -> NDArray[np.void]:
        """Those that found their thread in user mode: all, where the kernel takes no others."""
        return samples

    def _found(self, timeout_seconds: float) -> Drained:
        """Wait for samples, at most so long, and take all that have come."""
        found = self._stream.read(timeout_seconds)
        self._events += self._stream.take_events()
        self._readings.forget(found.gone)
        lost, self._lost = self._lost, 0
        return replace(found, lost=found.lost + lost)

    def _open_anew(self, options: SamplerOptions) -> bool:
        """Open all events anew: those that threads have inherited keep their period."""
        try:
            stream = SampleStream(options, self._cpus)
        except TargetError:  # it has just ended
            return False
        except CapabilityError as error:
            self._notes = (f"the period of samples cannot be changed: {error.cause}",)
            return False
        last = self._stream.read(0.0)
        self._lost += last.lost + len(last.samples)
        self._events += self._stream.take_events()
        self._stream.close()
        self._stream = stream
        return True

    def _told(
        self, found: Drained, cpu_seconds: NDArray[np.float64] | None = None
    ) -> BranchSamples:
        """Make branch samples of what was read."""
        return replace(
            branch_samples(found.samples, self.period_seconds),
            lost=found.lost,
            throttled=found.throttled,
            overflowed=found.overflowed,
            cpu_seconds=cpu_seconds,
            counted=self._readings.counted(found.samples),
        )

    def take_events(self) -> tuple[TaskEvent, ...]:
        """Births, ends and execs of threads that came with the samples read since last asked."""
        events, self._events = self._events, []
        return tuple(sorted(events, key=lambda event: event.time_seconds))

    def close(self) -> None:
        """Release every descriptor and mapping; may be called twice."""
        self._stream.close()


def branch_samples(samples: NDArray[np.void], period_seconds: float) -> BranchSamples:
    """Make branch samples of those that a ring gave, of SAMPLE_DTYPE, shape (n,)."""
    return BranchSamples(
        ip=samples["ip"].astype(np.uint64),
        pid=samples["pid"].astype(np.int32),
        tid=samples["tid"].astype(np.int32),
        time_seconds=samples["time_ns"].astype(np.float64) * 1e-9,
        period_seconds=period_seconds,
        registers=samples["registers"],
    )


def wakeup_bytes(period_seconds: float, record_bytes: int, ring_bytes: int) -> int:
    """Bytes in a ring that end a wait in ``read``: one sample at least, half of it at most."""
    wanted = int(_WAKEUP_SECONDS / period_seconds) * record_bytes
    return min(max(wanted, record_bytes), ring_bytes // 2)


class TaskClockSource(StreamedBranches):
    """Branch samples by PERF_COUNT_SW_TASK_CLOCK.

    Each thread is sampled every ``period_seconds`` of its CPU time; the ticks that find it in the
    kernel give no sample, so a sample stands for one period of user CPU time. Threads born later
    are sampled from their first instruction. Works for one's own processes up to
    kernel.perf_event_paranoid 2, and needs no PMU.

    Args:
        pid: the process to sample.
        period_seconds: CPU time between samples, at least 10 us.
        follow_forks: sample processes that it starts, too.
        ring_bytes: size of each ring buffer (one a CPU), a power of two of pages; smaller rings
            are used where the limit of locked memory asks for it.
        cpus: CPUs to sample on; None: all that are online.
        most_files: descriptors that may be opened; None: what the process may.
        counters: counted beside it, and read at each sample.
        seed: of the times for which it samples, if not always.

    Attributes:
        name: "perf-task-clock".
        notes: what is not as it should be, a sentence each.

    Raises:
        TargetError: the process is gone or not ours.
        CapabilityError: perf events are refused; with the cause and what to do.
        UsageError: a period that the kernel would not keep.
    """

    name = "perf-task-clock"

    def __init__(
        self,
        pid: int,
        *,
        period_seconds: float = PERIODS_SECONDS[0],
        follow_forks: bool = False,
        ring_bytes: int = RING_BYTES,
        cpus: Sequence[int] | None = None,
        most_files: int | None = None,
        counters: CounterSet = NO_COUNTERS,
        seed: int = 0,
    ) -> None:
        if not period_seconds >= _PERIOD_SECONDS_MIN:
            raise UsageError(
                f"a sampling period of {period_seconds:g} s is too short",
                f"the kernel keeps {_PERIOD_SECONDS_MIN:g} s and longer",
            )
        self._whole_period_seconds, self._seed = period_seconds, seed
        record_bytes = COUNTED_RECORD_BYTES if counters.kinds else RECORD_BYTES
        options = SamplerOptions(
            pid=pid,
            period=round(period_seconds * 1e9),
            wakeup_bytes=wakeup_bytes(period_seconds, record_bytes, ring_bytes),
            ring_bytes=ring_bytes,
            follow_forks=follow_forks,
            most_files=most_files,
            groups=counters.groups([TASK_CLOCK]),
            fields=_core.SAMPLE_REGISTERS | counters.fields,
            seed=seed,
        )
        super().__init__(period_seconds, counters, options, record_bytes, cpus)
        self.not_thinned = ""
        if follow_forks or counters.kinds:
            what = "child processes are sampled" if follow_forks else "counters are read"
            self.not_thinned = f"{what}, too"
        self._lock = threading.Lock()
        self._cycle: DutyCycle | None = None

    @property
    def share(self) -> float:
        """For so large a part of the time it samples."""
        return 1.0 if self._cycle is None else self._cycle.share

    @property
    def weight(self) -> float:
        """CPU time of the target by that for which it was sampled, lately."""
        return 1.0 if self._cycle is None else self._cycle.weight

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that it has at present."""
        return () if self._cycle is None else (self._cycle.thread,)

    def thin(self, share: float) -> None:
        """Sample for so large a part of the time from now on, 1 for all of it.

        The period becomes shorter by as much, as far as that is sensible: samples are as many, and
        each stands for as much CPU time.
        """
        if self.not_thinned:
            super().thin(share)
            return
        if self._cycle is not None:
            self._cycle.close()
            self._cycle = None
        self._change_period(shortened(self._whole_period_seconds, share))
        if share < 1:
            self._cycle = DutyCycle(
                self._options.pid,
                share,
                self._stream,
                self._lock,
                most_seconds=_MOST_SAMPLES * self.period_seconds,
                seed=self._seed,
            )

    def _change_period(self, period_seconds: float) -> None:
        if period_seconds == self.period_seconds:
            return
        wakeup = wakeup_bytes(period_seconds, self._record_bytes, self._options.ring_bytes)
        period = round(period_seconds * 1e9)
        if self._open_anew(replace(self._options, period=period, wakeup_bytes=wakeup)):
            self.period_seconds = period_seconds

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come, in order of time."""
        if self._cycle is None:
            return self._read(timeout_seconds)
        deadline_seconds = time.monotonic() + timeout_seconds
        while True:  # the cycle goes on meanwhile
            with self._lock:
                samples = self._read(0.0)
            left_seconds = deadline_seconds - time.monotonic()
            if len(samples) or left_seconds <= 0 or self.ended:
                return samples
            time.sleep(min(left_seconds, _PAUSE_SECONDS))

    def latest(self, count: int) -> BranchSamples:
        """Return so many of the latest samples of the process itself, to be read all the same.

        None where fewer have come since the last look or read, or an exec among them.
        """
        with self._lock:  # the cycle goes on meanwhile
            return super().latest(count)

    def _read(self, timeout_seconds: float) -> BranchSamples:
        told = self._told(self._found(timeout_seconds))
        if self._cycle is None:
            return told
        pid = self._options.pid
        for seconds in self._cycle.take_execs():
            self._events.append(TaskEvent("exec", pid, pid, 0, seconds, ""))
        return replace(told, weight=self.weight)

    def close(self) -> None:
        """Release every descriptor and mapping; may be called twice."""
        if self._cycle is not None:
            self._cycle.close()
        super().close()
