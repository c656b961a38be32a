"""Sampling for a part of the time, that is made of moments at random."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from memsampd import _core
from memsampd.closing import Closing
from memsampd.errors import CapabilityError, TargetError
from memsampd.sampler.perf.groups import SamplerOptions
from memsampd.sampler.perf.rings import SAMPLE_DTYPE, Drained, TaskEvent
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import program_mark

_ON_SECONDS, _CYCLE_SECONDS = 0.005, 0.04  # at least
_CYCLE_SECONDS_MOST = 2.0
_OWN_SHARE = 0.005  # of the target's CPU time: so much may be used for opening and closing
_MEMORY_SECONDS = 5.0
_ASSUMED_NS = 1e7  # of CPU time, as if so much had been sampled as planned
_LONGEST_PAUSE = 4.0  # of those planned: after an on-time that became far too long
_MOST_LEFT_OVER = 0.1  # of CPU time: so much may give no sample
_NEW_PART = 0.5  # of an on-time in what is known of that


class DutyCycle(Closing):
    """Samples a process for a share of the time, from a thread of its own.

    In pauses it has no events: each switch takes longer with events that are disabled, too. But
    timers begin anew with each event: threads that run for less than a period in an on-time would
    never be seen. Where that is more than a little, events are kept, disabled, and timers go on.

    On-times begin at random, whatever the program does. What they come to in CPU time of the target
    is counted by the events themselves: an on-time that ends late, for no CPU is idle, misleads
    nobody.

    Args:
        options: how each event is opened.
        cpus: CPUs to sample on.
        share: of the time.
        most_seconds: no on-time is to be longer.
        seed: of the on-times.

    Attributes:
        ended: whether the process has no thread left to sample.
        notes: what is not as it should be, a sentence each.
        keeps_events: whether there are events in pauses, that are disabled.
    """

    def __init__(
        self,
        options: SamplerOptions,
        cpus: Sequence[int],
        share: float,
        *,
        most_seconds: float = math.inf,
        seed: int = 0,
    ) -> None:
        self.share = share
        self.ended = False
        self.notes: tuple[str, ...] = ()
        self.keeps_events = False
        self._left_over = 0.0  # of CPU time, if timers began anew
        self._stream: SampleStream | None = None
        self._options, self._cpus = options, cpus
        self._most_seconds = most_seconds
        self._rng = random.Random(seed)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._has_samples = threading.Event()
        self._found: list[Drained] = []
        self._events: list[TaskEvent] = []
        self._cpu_ns = self._read_cpu_ns()
        self._seen_seconds = time.monotonic()
        self._used_ns = self._sampled_ns = 0.0  # CPU time lately, all, and that of on-times
        self._own_seconds, self._busy_share = 2e-4, 1.0  # of a cycle; of the target
        self.thread = threading.Thread(target=self._run, name="memsampd-sampling", daemon=True)
        self.thread.start()

    @property
    def weight(self) -> float:
        """CPU time of the target by that of on-times, lately."""
        planned_ns = self.share * _ASSUMED_NS
        return max((self._used_ns + _ASSUMED_NS) / (self._sampled_ns + planned_ns), 1.0)

    def read(self, timeout_seconds: float) -> Drained:
        """Wait for samples, at most so long, and return those of on-times that are over."""
        self._has_samples.wait(timeout_seconds)
        with self._lock:
            found, self._found = self._found, []
            self._has_samples.clear()
        samples = [each.samples for each in found]
        return Drained(
            np.concatenate([np.empty(0, SAMPLE_DTYPE), *samples]),
            (),
            sum(each.lost for each in found),
            sum(each.throttled for each in found),
        )

    def take_events(self) -> tuple[TaskEvent, ...]:
        """Births, ends and execs of threads since this was asked last; of pauses, execs only."""
        with self._lock:
            events, self._events = tuple(self._events), []
        return events

    def close(self) -> None:
        """Sample no more; may be called twice."""
        self._closing.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            with _any_event():
                self._go_on_and_off()
        except TargetError:  # gone
            self.ended = True
        self._forget_stream()
        self._has_samples.set()  # none will come any more

    def _go_on_and_off(self) -> None:
        pid, proc = self._options.pid, self._options.proc
        mark = program_mark(pid, proc)
        self._closing.wait(self._rng.random() * _ON_SECONDS / self.share)
        while not self._closing.is_set() and not self.ended:
            before_seconds = time.thread_time()
            on_seconds, cycle_seconds = self._times()
            if mark not in (None, program_mark(pid, proc) or mark):
                with self._lock:
                    now = time.monotonic()
                    self._events.append(TaskEvent("exec", pid, pid, 0, 0, now, ""))
            lasted = self._sample(on_seconds)
            mark = program_mark(pid, proc) or mark
            # An on-time ends late where the target keeps the CPU: it has more of it than its share.
            late = min(max(1 / (self.share * self.weight), 1.0), _LONGEST_PAUSE)
            pause = min(lasted * (1 / self.share - 1) * late, _LONGEST_PAUSE * cycle_seconds)
            self._own_seconds += 0.1 * (time.thread_time() - before_seconds - self._own_seconds)
            self._closing.wait(pause * self._rng.uniform(0.5, 1.5))

    def _times(self) -> tuple[float, float]:
        """How long to be on, and how long that and the pause after it are in the mean, seconds.

        The longer, the less the target runs: opening is to cost little beside that.
        """
        cycle = self._own_seconds / (_OWN_SHARE * max(self._busy_share, 1e-3))
        cycle = min(max(cycle, _CYCLE_SECONDS, _ON_SECONDS / self.share), _CYCLE_SECONDS_MOST)
        on = min(cycle * self.share, self._most_seconds)
        return on, on / self.share

    def _sample(self, seconds: float) -> float:
        """Sample for so long, about; for how long it came to be."""
        try:
            stream = self._stream or SampleStream(self._options, self._cpus)
        except CapabilityError as error:
            self.notes = (f"there are no samples at present: {error.cause}",)
            return seconds
        before_ns: dict[int, int] = {}
        if self._stream is not None:
            before_ns = stream.counted()
            stream.switch(_core.PERF_EVENT_IOC_ENABLE)
        self._stream, began_seconds = stream, time.monotonic()
        self._closing.wait(seconds)
        lasted = time.monotonic() - began_seconds
        now_ns = stream.counted()
        counted_ns = [max(ns - before_ns.get(each, 0), 0) for each, ns in now_ns.items()]
        self._take(stream)
        self._count(sum(counted_ns))
        self._look_at_rest(counted_ns)
        if not self.keeps_events:
            self._forget_stream()
        elif not self._closing.is_set():
            stream.switch(_core.PERF_EVENT_IOC_DISABLE)
        return lasted

    def _take(self, stream: SampleStream) -> None:
        found, events = stream.read(0.0), stream.take_events()
        self.ended, self.notes = stream.ended, stream.notes
        with self._lock:
            self._found.append(found)
            self._events += events
            if len(found.samples):
                self._has_samples.set()

    def _look_at_rest(self, counted_ns: list[int]) -> None:
        """See what of each event's CPU time was left over after the last whole period."""
        if (used_ns := sum(counted_ns)) > 0:
            rest_ns = sum(ns % self._options.period for ns in counted_ns)
            self._left_over += _NEW_PART * (rest_ns / used_ns - self._left_over)
            self.keeps_events = self._left_over > _MOST_LEFT_OVER

    def _forget_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _count(self, sampled_ns: int) -> None:
        """Add up what the target used since this was done last, and what of it was sampled."""
        now, cpu_ns = time.monotonic(), max(self._read_cpu_ns(), self._cpu_ns)
        passed, used_ns = now - self._seen_seconds, cpu_ns - self._cpu_ns
        keep = math.exp(-passed / _MEMORY_SECONDS)
        self._used_ns = keep * self._used_ns + used_ns
        self._sampled_ns = keep * self._sampled_ns + sampled_ns
        self._busy_share += (1 - keep) * (1e-9 * used_ns / max(passed, 1e-6) - self._busy_share)
        self._cpu_ns, self._seen_seconds = cpu_ns, now

    def _read_cpu_ns(self) -> int:
        try:
            return process_cpu_ns(self._options.pid)
        except TargetError:  # gone: no more will come
            return 0


@contextmanager
def _any_event() -> Iterator[None]:
    """Keep an event of this thread, if that is permitted.

    A second after the last event of any thread was closed the kernel patches its code, and again
    when the next one is opened, which stops all CPUs.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            tid = threading.get_native_id()
            event = (_core.PERF_TYPE_SOFTWARE, _core.PERF_COUNT_SW_TASK_CLOCK)
            stack.callback(os.close, _core.perf_open_counter(tid, *event))
        yield
