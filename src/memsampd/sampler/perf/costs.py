"""What branch samples cost the thread that is sampled: interrupts, and more at each switch."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from memsampd import _core

_INTERRUPTS_PERIOD_NS = 50_000  # a millisecond of work is then delayed by several per cent
_PAIRS = 7
_TURNS = 10_000  # some 0.2 ms
# What an interrupt runs is in no cache of the core if so much was read since the last one.
_COLD_PERIOD_NS = 500_000
_COLD_AREA_BYTES = 8 << 20
_COLD_INTERRUPTS, _COLD_MOST_SECONDS = 11, 0.05

# Longer, and the tick of the CPU may be due before it: nothing has to be programmed then. Shorter,
# and interrupts come in between.
_SWITCHES_PERIOD_NS = 500_000
_CLOCK_MONOTONIC_COARSE = 6  # goes on by a tick
_SWITCH_TURNS = 5
_SWITCHES = 60  # a turn, three times: some 10 ms in all
PERIODS_SECONDS = 0.002, 0.004
"""Usual CPU time between two samples: from the one, where they are cheap, to the other."""
_INTERRUPTS_SHARE = 0.005  # of the target's CPU time, between these
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2.0, 3600.0  # until it is measured again


class SwitchCost(msgspec.Struct, frozen=True):
    """CPU time more whenever a thread is switched to and away from, all who run there together.

    Attributes:
        timer_seconds: while it is sampled, if its timer is what the CPU is to wake up for next.
        open_seconds: while its event is there, but disabled.
        tick_seconds: the CPU wakes up so often anyway.
    """

    timer_seconds: float = 0.0
    open_seconds: float = 0.0
    tick_seconds: float = 0.004

    def sampled_seconds(self, period_seconds: float) -> float:
        """While it is sampled: a timer that is due after the next tick is not programmed.

        What is left of the period, and of the time to the tick, is evenly spread.
        """
        ratio = period_seconds / self.tick_seconds
        sooner = 1 - ratio / 2 if ratio <= 1 else 0.5 / ratio
        return self.open_seconds + sooner * (self.timer_seconds - self.open_seconds)

    def mean_seconds(self, period_seconds: float, share: float, switches_a_second: float) -> float:
        """In the mean of all switches of a thread whose events are there for a share of its time.

        Who never waits for others switches more rarely while switches take longer.

        Args:
            period_seconds: of its samples meanwhile.
            share: of its CPU time.
            switches_a_second: how often it switches; 0 for one that others keep waiting.
        """
        took = self.sampled_seconds(period_seconds)
        return share * took / (1 + (1 - share) * switches_a_second * took)


USUAL_SWITCH_COST = SwitchCost(timer_seconds=10e-6, open_seconds=0.5e-6)
"""In virtual machines, whose timers the hypervisor programs; less on others."""


class SamplingCost(msgspec.Struct, frozen=True):
    """What sampling by a timer takes from a target.

    Attributes:
        interrupt_seconds: CPU time of one timer interrupt, of a thread that uses its caches.
        switch: at each switch between threads.
        quick_interrupt_seconds: of one that comes soon after another one.
    """

    interrupt_seconds: float = 0.0
    switch: SwitchCost = SwitchCost()
    quick_interrupt_seconds: float = 0.0

    @property
    def period_seconds(self) -> float:
        """CPU time between two samples: the longer, the more an interrupt takes."""
        shortest, longest = PERIODS_SECONDS
        return min(max(self.interrupt_seconds / _INTERRUPTS_SHARE, shortest), longest)

    @classmethod
    def measure(cls) -> SamplingCost:
        """Measure it on this thread (some 21 ms of CPU time)."""
        return cls._of_interrupts(measure_switch_cost())

    @classmethod
    def measure_interrupts(cls) -> SamplingCost:
        """Measure interrupts alone (some 11 ms); switches take what is usual."""
        return cls._of_interrupts(USUAL_SWITCH_COST)

    @classmethod
    def _of_interrupts(cls, switch: SwitchCost) -> SamplingCost:
        quick_seconds = measure_interrupt_seconds()
        return cls(measure_cold_interrupt_seconds(quick_seconds), switch, quick_seconds)


def measure_interrupt_seconds() -> float:
    """CPU time that one timer interrupt of the branch source takes, measured on this thread.

    The same work is done with and without the interrupts, in turns, some 3 ms in all; the median
    of the differences counts. Writing the sample itself is not in it, and makes no difference
    that can be seen.

    Returns:
        Seconds; 0 where that is too little to be seen, or the event is refused.
    """
    costs = []
    for _ in range(_PAIRS):
        alone_ns = _work_ns()
        try:
            event = _open_clock(_INTERRUPTS_PERIOD_NS)
        except OSError:
            return 0.0
        sampled_ns = _work_ns()
        os.close(event)
        costs.append((sampled_ns - alone_ns) / (sampled_ns / _INTERRUPTS_PERIOD_NS))
    return max(_median(costs), 0.0) * 1e-9


def measure_cold_interrupt_seconds(quick_seconds: float) -> float:
    """What one takes that finds nothing of its code and data in the core's caches any more.

    A thread reads memory, 8 MiB again and again, and looks at the clock. For how long an interrupt
    keeps it from that is seen directly, in the median of eleven (some 8 ms in all): turns with
    and without them would have to last for seconds. What the thread has to load again afterwards
    is not in it.

    Args:
        quick_seconds: what one takes at least.

    Returns:
        Seconds; what was given where none is seen.
    """
    if quick_seconds <= 0:
        return quick_seconds
    with mmap.mmap(-1, _COLD_AREA_BYTES) as area:
        with suppress(OSError):  # a kernel without huge pages
            area.madvise(mmap.MADV_HUGEPAGE)
        _core.memory_pass("w", area)
        try:
            event = _open_clock(_COLD_PERIOD_NS)
        except OSError:
            return quick_seconds
        try:
            pauses = _core.memory_pauses(
                area, quick_seconds / 2, _COLD_INTERRUPTS, _COLD_MOST_SECONDS
            )
        finally:
            os.close(event)
    return max(_median(pauses), quick_seconds) if pauses else quick_seconds


def _median(values: Sequence[float]) -> float:
    """The median, of an even number the higher one; the module for it takes 2 ms to load."""
    return sorted(values)[len(values) // 2]


def _open_clock(period_ns: int) -> int:
    """The event of the branch source, on this thread."""
    return _core.perf_open_counter(
        threading.get_native_id(),
        _core.PERF_TYPE_SOFTWARE,
        _core.PERF_COUNT_SW_TASK_CLOCK,
        period=period_ns,
    )


def _work_ns() -> int:
    """Do the work; CPU time that it took."""
    start_ns = time.thread_time_ns()
    for _ in range(_TURNS):
        pass
    return time.thread_time_ns() - start_ns


def tick_seconds() -> float:
    """Time from one tick of the kernel to the next, as it was built."""
    return time.clock_getres(_CLOCK_MONOTONIC_COARSE)


def measure_switch_cost() -> SwitchCost:
    """What switches take, measured on this thread and another one that wake each other on one CPU.

    In turns without an event on this thread, with one that is disabled, and with one that samples.
    Of that the median counts, as now and then a turn falls before a tick; a disabled event takes so
    little that the least times are compared. Hardly a sample comes: timers are started and stopped.

    Returns:
        The cost; nothing where it is too little to be seen, or the event is refused.
    """
    found: list[tuple[int, int, int]] = []
    with ExitStack() as stack:
        pass_bytes = stack.enter_context(_partner())
        for _ in range(_SWITCH_TURNS):
            alone_ns = pass_bytes()
            try:
                event = _open_clock(_SWITCHES_PERIOD_NS)
            except OSError:
                return SwitchCost()
            fcntl.ioctl(event, _core.PERF_EVENT_IOC_DISABLE, 0)
            open_ns = pass_bytes()
            fcntl.ioctl(event, _core.PERF_EVENT_IOC_ENABLE, 0)
            sampled_ns = pass_bytes()
            os.close(event)
            found.append((alone_ns, open_ns, sampled_ns))
    alone, opened, sampled = zip(*found, strict=True)
    open_seconds = max(min(opened) - min(alone), 0) / _SWITCHES * 1e-9
    timer_seconds = (_median(sampled) - _median(alone)) / _SWITCHES * 1e-9
    return SwitchCost(max(timer_seconds, open_seconds), open_seconds, tick_seconds())


class SwitchCostMeter:
    """What switches take, measured now and then, more and more rarely.

    Too little is measured where another timer of that CPU happens to be due sooner: who sleeps for
    50 us at a time beside it makes a twentieth of it. So the most that was ever measured counts.

    Args:
        measure: measures it once.
    """

    def __init__(self, measure: Callable[[], SwitchCost] = measure_switch_cost) -> None:
        self._measure = measure
        self._most = SwitchCost()
        self._due_seconds, self._pause_seconds = -math.inf, _FIRST_PAUSE_SECONDS

    def __call__(self, now_seconds: float) -> SwitchCost:
        """Return it; measure it before if it is time to.

        Args:
            now_seconds: monotonic time.
        """
        if now_seconds >= self._due_seconds:
            self._most = max(self._most, self._measure(), key=lambda cost: cost.timer_seconds)
            self._due_seconds = now_seconds + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
        return self._most


@contextmanager
def _partner() -> Iterator[Callable[[], int]]:
    """A function that passes bytes to and fro with another thread: CPU time of both, ns."""
    before = os.sched_getaffinity(0)
    from_it, to_me = os.pipe()
    from_me, to_it = os.pipe()
    told: list[int] = []

    def answer() -> None:
        while True:
            try:
                told.append(_core.pass_bytes(from_me, to_me, _SWITCHES, False))
            except OSError:  # closed: that is all
                return

    def pass_bytes() -> int:
        turns = len(told)
        mine_ns = _core.pass_bytes(from_it, to_it, _SWITCHES, True)
        while len(told) == turns:
            time.sleep(0)
        return mine_ns + told[-1]

    thread = threading.Thread(target=answer, name="memsampd-switches", daemon=True)
    try:
        os.sched_setaffinity(0, {min(before)})  # threads start on the CPUs of who starts them
        thread.start()
        yield pass_bytes
    finally:
        os.close(to_it)
        if thread.ident is not None:  # it began
            thread.join()
        for each in (from_it, to_me, from_me):
            os.close(each)
        os.sched_setaffinity(0, before)
