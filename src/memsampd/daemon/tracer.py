"""The one thread that traces: the kernel binds a tracee to the thread that seized it."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import CaptureError, MemsampdError, TargetError
from memsampd.models.counting import LineCounter
from memsampd.models.histogram import ReuseHistogram
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.protocols import AccessSource
from memsampd.sampler.records import Burst, BurstCost, BurstRequest, LineChunk

_CODE_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    """A burst that is wanted.

    Attributes:
        thread_samples: branch samples of each thread lately: one is chosen in proportion.
        delay_seconds: time to wait first.
        max_accesses: length of the burst.
        deadline_seconds: wall time after which it ends early.
        measure_rate: time a native twin as well.
        gaps_seconds: from one burst to the next, of those wanted besides, of the same stop; asked
            for one by one, by the tracing thread.
    """

    thread_samples: Mapping[int, int]
    delay_seconds: float
    max_accesses: int
    deadline_seconds: float
    measure_rate: bool = False
    gaps_seconds: Iterable[float] = ()


@dataclass(frozen=True, slots=True)
class CountedBurst:
    """What is kept of a burst.

    Attributes:
        burst: the burst without its rows.
        histogram: reuse distances of the lines that these touch.
        writes: stores among the rows.
        code_ips: addresses of instructions that it executed, such as samples at even distances of
            them would find, shape (1024,) or (0,), uint64.
    """

    burst: Burst
    histogram: ReuseHistogram
    writes: int
    code_ips: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What came of an order.

    Attributes:
        counted: the burst; None if there is an error, and behind the last burst of a stop.
        error: why there is none, or None.
        cost: what it cost; behind the last burst of a stop, what that cost besides.
        contention_seconds: time that the target's threads waited for a CPU because the shadow and
            its tracer ran.
        is_first: nothing came of the same stop before.
    """

    counted: CountedBurst | None
    error: CaptureError | None
    cost: BurstCost
    contention_seconds: float
    is_first: bool = True

    @property
    def is_last(self) -> bool:
        """Whether nothing else will come of the order."""
        return self.counted is None


def waiting_seconds(pid: int, proc: Path = PROC) -> float:
    """Time that the threads of a process have waited for a CPU (field 2 of schedstat)."""
    total = 0
    for tid in list_threads(pid, proc):
        try:
            text = (proc / str(pid) / "task" / str(tid) / "schedstat").read_text()
        except OSError:
            continue
        total += int(text.split()[1])
    return total * 1e-9


def busy_seconds(proc: Path = PROC) -> float:
    """CPU time that all processes together have used (first line of /proc/stat)."""
    user, nice, system = (proc / "stat").read_text().split(maxsplit=4)[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


class ContentionMeter:
    """Tells how long the target waited for a CPU because a shadow ran.

    That is what it waited beyond its usual share of the time while none runs, and no more than our
    part of all that ran meanwhile: on a machine with nothing else to do both are all of it, on a
    loaded one much of its waiting is not our doing.

    Args:
        pid: the target.
        proc: root of the proc file system.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._usual_share = 0.0
        self._mark = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Now; waited so far; CPU time used so far by all but the target."""
        try:
            used = process_cpu_ns(self._pid) * 1e-9
        except TargetError:
            used = 0.0
        waited = waiting_seconds(self._pid, self._proc)
        return time.monotonic(), waited, busy_seconds(self._proc) - used

    def _since_mark(self) -> tuple[float, float, float]:
        before, self._mark = self._mark, self._read()
        elapsed, waited, others = (a - b for a, b in zip(self._mark, before, strict=True))
        return elapsed, max(waited, 0.0), others

    def start(self) -> None:
        """A shadow is about to run: what the target waited since the last one was gone is usual."""
        elapsed, waited, _ = self._since_mark()
        self._usual_share = waited / elapsed if elapsed > 0 else 0.0

    def stop(self, own_cpu_seconds: float) -> float:
        """It is gone and used, with its tracer, so much CPU time: seconds waited because of it."""
        elapsed, waited, others = self._since_mark()
        our_part = min(own_cpu_seconds / others, 1.0) if others > 0 else 1.0
        beyond_usual = max(waited - self._usual_share * elapsed, 0.0)
        return min(waited * our_part, beyond_usual, own_cpu_seconds)


def _counted(burst: Burst, histogram: ReuseHistogram, writes: int) -> CountedBurst:
    """Keep a few of the instructions in place of a count of all."""
    executed = np.cumsum(burst.code_times)
    ips = np.empty(0, np.uint64)
    if len(executed):
        moments = (np.arange(_CODE_SAMPLES) + 0.5) / _CODE_SAMPLES * float(executed[-1])
        ips = burst.code_ip[np.searchsorted(executed, moments)]
    none = np.empty(0, np.uint64)
    return CountedBurst(replace(burst, code_ip=none, code_times=none), histogram, writes, ips)


class TracerThread:
    """Takes bursts in a thread of its own, one at a time, and counts their reuse distances.

    Args:
        pid: the target.
        make_source: makes the access source; called in the thread.
        rng: chooses threads.
        line_bytes: size of a cache line, a power of two.
        proc: root of the proc file system.

    Raises:
        MemsampdError: what ``make_source`` raised.
    """

    def __init__(
        self,
        pid: int,
        make_source: Callable[[], AccessSource],
        rng: random.Random,
        line_bytes: int = 64,
        proc: Path = PROC,
    ) -> None:
        self._pid = pid
        self._rng = rng
        self._line_bytes = line_bytes
        self._counter = LineCounter()
        self._proc = proc
        self._contention = ContentionMeter(pid, proc)
        self._orders: queue.SimpleQueue[CaptureOrder | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[CaptureResult] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._started: queue.SimpleQueue[AccessSource | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(make_source,), name="tracer", daemon=True
        )
        self.is_busy = False
        self._thread.start()
        source = self._started.get()
        if isinstance(source, BaseException):
            self._thread.join()
            raise source
        self._source = source
        self.source_name = source.name

    def order(self, order: CaptureOrder) -> None:
        """Have a burst taken; not while :attr:`is_busy`."""
        self.is_busy = True
        self._orders.put(order)

    def results(self) -> list[CaptureResult]:
        """What has come since the last call."""
        found = []
        while not self._results.empty():
            found.append(self._results.get())
            self.is_busy = not found[-1].is_last
        return found

    def close(self) -> None:
        """End the present burst, leave nothing in the target, end the thread."""
        if self._thread.is_alive():
            self._closing.set()
            self._source.cancel()
            self._orders.put(None)
            self._thread.join()

    def _run(self, make_source: Callable[[], AccessSource]) -> None:
        try:
            source = make_source()
        except BaseException as error:  # handed to the thread that waits for it
            self._started.put(error)
            return
        self._started.put(source)
        try:
            while (order := self._orders.get()) is not None:
                for result in self._take_or_tell(source, order):
                    self._results.put(result)
        finally:
            source.close()

    def _take_or_tell(self, source: AccessSource, order: CaptureOrder) -> Iterator[CaptureResult]:
        """Whatever happens to a burst, the thread goes on and the failure is counted."""
        try:
            yield from self._take(source, order)
        except CaptureError as error:
            yield self._nothing(error)
        except MemsampdError as error:
            yield self._nothing(CaptureError("failed", error.cause, error.remedy))
        except OSError as error:
            yield self._nothing(CaptureError("failed", str(error)))
        except Exception as error:
            yield self._nothing(CaptureError("internal", repr(error)))

    def _nothing(self, error: CaptureError) -> CaptureResult:
        cost = BurstCost(stop_seconds=error.stop_seconds)
        return CaptureResult(None, error, cost, self._contention.stop(0.0))

    def _take(self, source: AccessSource, order: CaptureOrder) -> Iterator[CaptureResult]:
        self._closing.wait(order.delay_seconds)
        if self._closing.is_set():
            raise CaptureError("closed", "the session ends")
        request = BurstRequest(
            self._choose_thread(order.thread_samples),
            order.max_accesses,
            order.deadline_seconds,
            order.measure_rate,
            order.gaps_seconds,
        )
        self._contention.start()
        self._counter.begin()
        writes = 0

        def consume(chunk: LineChunk) -> None:
            nonlocal writes
            writes += chunk.writes
            self._counter.add(chunk.runs)

        is_first, ahead_seconds = True, 0.0
        bursts = source.stream_moments(request, self._line_bytes, consume)
        with closing(bursts):
            while True:
                try:
                    burst = next(bursts)
                except StopIteration as end:
                    yield self._result(None, end.value, is_first, 0.0)
                    return
                counted = _counted(burst, self._counter.histogram(), writes)
                # Its own run is charged in the end, but ours all the same.
                ran_seconds, ahead_seconds = (
                    burst.ahead_seconds - ahead_seconds,
                    burst.ahead_seconds,
                )
                yield self._result(counted, burst.cost, is_first, ran_seconds)
                is_first = False
                self._counter.begin()
                writes = 0

    def _result(
        self,
        counted: CountedBurst | None,
        cost: BurstCost,
        is_first: bool,
        ran_seconds: float,
    ) -> CaptureResult:
        own_seconds = cost.shadow_cpu_seconds + cost.tracer_cpu_seconds + ran_seconds
        return CaptureResult(counted, None, cost, self._contention.stop(own_seconds), is_first)

    def _choose_thread(self, thread_samples: Mapping[int, int]) -> int:
        alive = set(list_threads(self._pid, self._proc))
        weights = {tid: hits for tid, hits in thread_samples.items() if tid in alive and hits}
        if not weights:
            return self._pid
        return self._rng.choices(list(weights), list(weights.values()))[0]
