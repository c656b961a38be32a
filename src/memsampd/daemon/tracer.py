"""The thread that takes bursts while the session goes on."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.daemon.threads import choose_thread, wait_for_run
from memsampd.errors import CaptureError, MemsampdError
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.open_lines import OpenLine, open_lines
from memsampd.sampler.clock.code import often_executed
from memsampd.sampler.clock.fitted import MOMENTS_LEAST
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.perf.closely import CloseSampler
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.protocols import AccessSource
from memsampd.sampler.records import BranchSamples, Burst, BurstCost, BurstRequest

_CODE_SAMPLES = 1024
# A thread that was found to run may sleep again before it can be held: it is waited for again.
_TRIES = 4
# After so many bursts in a row of which too few registers are known, only every eighth thread is
# sampled in quick succession.
_FEW, _RARELY = 3, 8
_OPEN_LINES_ACCESSES = 100_000  # of a burst are gone through for lines that it leaves open
_OPEN_LINES_ROWS = 4000  # of these are of lines that are looked at, if all are touched as often
_OPEN_LEAST_ACCESSES = 64  # for so long an open line was not touched


class CaptureOrder(msgspec.Struct, frozen=True):
    """A burst that is wanted.

    Attributes:
        thread_samples: branch samples of each thread lately: one is chosen in proportion.
        delay_seconds: time to wait first.
        max_accesses: length of the burst.
        max_stop_seconds: how long the target may be held for it.
        beyond_seconds: for how long to go on when the hold is over.
        patience_seconds: for how long to wait until a thread runs, where all of them sleep.
        seek_ips: places of code that is sought: the burst begins when the thread comes to one of
        them.
        seek_seconds: for how long to wait for that.
        open_lines: how many lines to tell that had not returned when it ended; 0: none.
        open_accesses: tell them of a burst that is no longer than this.
        sample_seconds: what a sample takes from the thread, of those taken in quick succession;
            None: there is no need of them.
        is_thinned: switches between its threads cost the target so much that branches are sampled
            for a part of the time: no event is to stay open.
    """

    thread_samples: Mapping[int, int]
    delay_seconds: float
    max_accesses: int
    max_stop_seconds: float
    beyond_seconds: float = 0.0
    patience_seconds: float = 0.0
    seek_ips: tuple[int, ...] = ()
    seek_seconds: float = 0.0
    open_lines: int = 0
    open_accesses: float = math.inf
    sample_seconds: float | None = None
    is_thinned: bool = False


class CountedBurst(msgspec.Struct, frozen=True):
    """What is kept of a burst.

    Attributes:
        burst: the burst without its rows.
        histogram: reuse distances of the lines that these touch.
        code_ips: addresses of instructions that it executed, such as samples at even distances of
            them would find, shape (1024,) or (0,), uint64.
        code_ip: instructions that it executed often, shape (c,), uint64, ascending.
        open_lines: lines that it left open, as far as they were asked for.
        close_samples: of its thread in quick succession, just before it; None if there are none.
        rest: its other parts, if its code changed to such as goes at another speed.
    """

    burst: Burst
    histogram: ReuseHistogram
    code_ips: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))
    code_ip: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))
    open_lines: tuple[OpenLine, ...] = ()
    close_samples: BranchSamples | None = None
    rest: tuple[CountedBurst, ...] = ()

    @property
    def parts(self) -> tuple[CountedBurst, ...]:
        """All of its parts, in order; of one that is a later part, that one."""
        return (self, *self.rest)


class CaptureResult(msgspec.Struct, frozen=True):
    """What came of an order.

    Attributes:
        counted: the burst; None if there is an error.
        error: why there is none, or None.
    """

    counted: CountedBurst | None
    error: CaptureError | None = None

    @property
    def cost(self) -> BurstCost:
        """What it cost, in vain or not."""
        if self.counted is not None:
            return self.counted.burst.cost
        return self.error.cost if self.error is not None else BurstCost()


def _counted(burst: Burst, counter: _core.ReuseCounter) -> CountedBurst:
    """Keep a few of the instructions in place of a count of all."""
    executed = np.cumsum(burst.code_times)
    ips = np.empty(0, np.uint64)
    if len(executed):
        moments = (np.arange(_CODE_SAMPLES) + 0.5) / _CODE_SAMPLES * float(executed[-1])
        ips = burst.code_ip[np.searchsorted(executed, moments)]
    none = np.empty(0, np.uint64)
    histogram = ReuseHistogram.from_counter(counter)
    code_ip = often_executed(burst.code_ip, burst.code_times)
    return CountedBurst(replace(burst, code_ip=none, code_times=none), histogram, ips, code_ip)


def _sampling_seconds(order: CaptureOrder, samples: BranchSamples | None) -> float:
    """What samples in quick succession took from the target."""
    return 0.0 if samples is None else len(samples) * (order.sample_seconds or 0.0)


class TracerThread:
    """Takes bursts in a thread of its own, one at a time, and counts their reuse distances.

    Args:
        pid: the target.
        make_source: makes the access source; called in the thread.
        rng: chooses threads.
        line_bytes: size of a cache line, a power of two.

    Attributes:
        is_waiting: whether the present order waits for a thread to run.

    Raises:
        MemsampdError: what ``make_source`` raised.
    """

    def __init__(
        self,
        pid: int,
        make_source: Callable[[], AccessSource],
        rng: random.Random,
        line_bytes: int = 64,
    ) -> None:
        self._pid = pid
        self._rng = rng
        self._line_bytes = line_bytes
        self._counter = _core.ReuseCounter()
        self._without_moments = 0  # bursts in a row
        self._orders: queue.SimpleQueue[CaptureOrder | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[CaptureResult] = queue.SimpleQueue()
        self.is_waiting = False
        self._closing = threading.Event()
        self._closing_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._seek_end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._close_sampler = CloseSampler(self._closing_fd)
        self._started: queue.SimpleQueue[AccessSource | BaseException] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=self._run, args=(make_source,), name="tracer", daemon=True
        )
        self.thread.start()
        source = self._started.get()
        if isinstance(source, BaseException):
            self.thread.join()
            self._close_descriptors()
            raise source
        self._source = source
        self.source_name = source.name

    def order(self, order: CaptureOrder) -> None:
        """Have a burst taken, once the last one's result has been told."""
        self._orders.put(order)

    def end_seeking(self) -> None:
        """Wait no longer for a thread to come to code that is sought."""
        if not self._closing.is_set():
            os.eventfd_write(self._seek_end, 1)

    @property
    def has_results(self) -> bool:
        """Whether something has come since :meth:`results` was called."""
        return not self._results.empty()

    def results(self) -> list[CaptureResult]:
        """What has come since the last call: one result an order."""
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def close(self) -> None:
        """End the present burst, leave nothing in the target, end the thread."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.eventfd_write(self._closing_fd, 1)
        self._source.cancel()
        self._orders.put(None)
        self.thread.join()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        os.close(self._closing_fd)
        os.close(self._seek_end)

    def _run(self, make_source: Callable[[], AccessSource]) -> None:
        try:
            source = make_source()
        except BaseException as error:  # handed to the thread that waits for it
            self._started.put(error)
            return
        self._started.put(source)
        try:
            while (order := self._orders.get()) is not None:
                self._results.put(self._take_or_tell(source, order))
        finally:
            self._close_sampler.close()
            source.close()

    def _take_or_tell(self, source: AccessSource, order: CaptureOrder) -> CaptureResult:
        """Whatever happens to a burst, the thread goes on and the failure is counted."""
        try:
            return CaptureResult(self._take(source, order))
        except CaptureError as error:
            return CaptureResult(None, error)
        except MemsampdError as error:
            return CaptureResult(None, CaptureError("failed", error.cause, error.remedy))
        except OSError as error:
            return CaptureResult(None, CaptureError("failed", str(error)))
        except Exception as error:
            return CaptureResult(None, CaptureError("internal", repr(error)))

    def _take(self, source: AccessSource, order: CaptureOrder) -> CountedBurst:
        self._closing.wait(order.delay_seconds)
        give_up = time.monotonic() + order.patience_seconds
        wasted, tries = BurstCost(), 0
        while True:
            tries += 1
            try:
                tid = self._running_thread(order, give_up - time.monotonic())
                return self._observe(source, order, tid, wasted)
            except CaptureError as error:
                wasted = error.cost = error.cost + wasted
                is_over = tries == _TRIES or time.monotonic() >= give_up
                if error.reason != "not-running" or is_over:
                    raise

    def _running_thread(self, order: CaptureOrder, seconds: float) -> int:
        """Choose a thread; if it sleeps, wait until it runs, or another one."""
        alive = self._alive()
        tid: int | None = choose_thread(self._pid, order.thread_samples, alive, self._rng)
        if tid is not None and seconds > 0:
            self.is_waiting = True
            try:
                tid = wait_for_run(
                    self._pid,
                    tid,
                    order.thread_samples,
                    alive,
                    seconds,
                    self._closing_fd,
                )
            finally:
                self.is_waiting = False
        if self._closing.is_set():
            raise CaptureError("closed", "the session ends")
        if tid is None:
            raise CaptureError("none-ran", f"no thread of process {self._pid} ran")
        return tid

    def _observe(
        self, source: AccessSource, order: CaptureOrder, tid: int, wasted: BurstCost
    ) -> CountedBurst:
        request = BurstRequest(
            tid,
            order.max_accesses,
            order.max_stop_seconds,
            order.beyond_seconds,
            order.seek_ips,
            order.seek_seconds,
            self._seek_end if order.seek_ips else -1,
        )
        with contextlib.suppress(BlockingIOError):  # it was meant for an earlier one
            os.eventfd_read(self._seek_end)
        close = self._sample_closely(order, tid)
        self._counter.begin()
        try:
            burst = source.count_lines(request, self._line_bytes, self._counter)
        except CaptureError as error:
            error.cost += BurstCost(hit_seconds=_sampling_seconds(order, close))
            raise
        cost = wasted + BurstCost(hit_seconds=_sampling_seconds(order, close))
        burst = replace(burst, cost=burst.cost + cost)
        counted = replace(_counted(burst, self._counter), close_samples=close)
        counted = self._with_open_lines(counted, source, order)
        counted = self._with_rest(counted, source)
        moments = (len(each.burst.stretch) for each in counted.parts)
        has_moments = max(moments) >= MOMENTS_LEAST
        self._without_moments = 0 if has_moments else self._without_moments + 1
        return counted

    def _with_rest(self, counted: CountedBurst, source: AccessSource) -> CountedBurst:
        """Add the other parts of a burst, what they cost to the first."""
        started = time.thread_time()
        rest = []
        self._counter.begin()
        while (burst := source.count_rest(self._line_bytes, self._counter)) is not None:
            part = _counted(replace(burst, cost=BurstCost()), self._counter)
            rest.append(replace(part, close_samples=counted.close_samples))
            self._counter.begin()
        if not rest:
            return counted
        more = BurstCost(tracer_cpu_seconds=time.thread_time() - started)
        whole = replace(counted.burst, cost=counted.burst.cost + more)
        return replace(counted, burst=whole, rest=tuple(rest))

    def _sample_closely(self, order: CaptureOrder, tid: int) -> BranchSamples | None:
        """Sample a thread in quick succession, unless that was of no use lately.

        It tells nothing of bursts whose registers are known at few moments. Before it comes to code
        that is sought a thread is elsewhere. An event that stays open costs the thread something at
        each switch.
        """
        is_of_use = self._without_moments < _FEW or self._without_moments % _RARELY == 0
        samples = None
        if order.sample_seconds is not None and is_of_use and not order.seek_ips:
            samples = self._close_sampler.sample(tid)
        if samples is None or order.is_thinned:
            self._close_sampler.close()
        return samples

    def _with_open_lines(
        self, counted: CountedBurst, source: AccessSource, order: CaptureOrder
    ) -> CountedBurst:
        """Add lines that did not return within half of a burst or more."""
        burst = counted.burst
        accesses = min(burst.accesses, _OPEN_LINES_ACCESSES)
        least_accesses = accesses // 2
        is_wanted = order.open_lines and burst.accesses <= order.open_accesses
        if not is_wanted or least_accesses < _OPEN_LEAST_ACCESSES:
            return counted
        started = time.thread_time()
        choice = LineChoice.of(_OPEN_LINES_ROWS / accesses, self._line_bytes, self._rng)
        at, rows = source.rows_again(accesses, choice)
        told = open_lines(
            at,
            rows.address,
            accesses,
            self._line_bytes,
            least_accesses,
            order.open_lines,
            self._rng,
        )
        more = BurstCost(tracer_cpu_seconds=time.thread_time() - started)
        return replace(counted, burst=replace(burst, cost=burst.cost + more), open_lines=told)

    def _alive(self) -> frozenset[int]:
        return frozenset(list_threads(self._pid))
