"""Branch samples by the ticks that the kernel interrupts each CPU with anyway.

A timer of our own costs an interrupt for each sample, and more at each switch between threads; in
virtual machines that is dear. The tick is there in any case. A tracepoint tells of it, with the
registers of the thread that it interrupted. Who may use tracepoints (root, CAP_PERFMON) can have
samples for next to nothing.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import time
from collections import Counter
from collections.abc import Container
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CapabilityError, MemsampdError, TargetError
from memsampd.machines.cpulist import tickless_cpus
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.costs import SamplingCost, SwitchCost, tick_seconds
from memsampd.sampler.perf.counts import NO_COUNTERS
from memsampd.sampler.perf.groups import (
    TASK_CLOCK,
    EventGroup,
    SamplerOptions,
    close_all,
    own_thread,
)
from memsampd.sampler.perf.refusal import explain_refusal
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.perf.source import (
    RING_BYTES,
    StreamedBranches,
    wakeup_bytes,
)
from memsampd.sampler.process.cputime import process_cpu_ns
from memsampd.sampler.process.schedstat import ThreadTimes
from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import BranchSamples

TRACEFS = Path("/sys/kernel/tracing")
SYMBOLS = Path("/proc/kallsyms")
SAMPLE_SECONDS = 9e-6
"""What a sample takes of a thread that uses its caches; 1 us of others (docs/sampling.md)."""
_TRACEPOINT = "events/timer/hrtimer_expire_entry"
# Where the core looks for the function of the timer (_core/perf/records.c).
_FUNCTION_FIELD = re.compile(r"void \* function;\s*offset:24;\s*size:8;")
# Until Linux 6.6, of 6.7 and 6.8, and since then; the last is another function until 6.6. All of
# them are made of one file, so they lie near each other.
_TICK_FUNCTIONS = (b"tick_sched_timer", b"tick_nohz_highres_handler", b"tick_nohz_handler")
_NEAR_BYTES = 64 << 10
_RECORD_BYTES = 352  # of one sample in the ring, about
_TRIAL_RING_BYTES = 64 << 10
_TRIAL_FIELDS = _core.SAMPLE_CHAIN | _core.SAMPLE_RAW | _core.SAMPLE_REGISTERS
_TRIAL_TICKS, _TRIAL_TICKS_MOST = 4, 16  # worth of CPU time of this thread
_TRIAL_LEAST = 3  # that must have come, and be alike
_TRIAL_REGULAR, _TRIAL_OFF_MOST = 0.75, 0.1  # so many of them, so close to a multiple of a tick
_TRIAL_PART = 0.5  # of the ticks that its CPU time stands for
_TRIAL_MOST_SECONDS = 1.0
_UNSEEN_PERIOD_NS = 1 << 40  # nothing comes of it
_PURE_TURNS = 10_000  # of a loop in user mode, some 0.2 ms, from one look at the clock to the next
# Of the ticks that the target's CPU time stands for: fewer or more, and it runs in step with them.
_IN_STEP = 1.6
_HARDLY_ANY = 0.05  # so few come, one a second, where the tick is off
_JUDGED_TICKS = 250
_NEVER_WAITS = 0.85  # of the time on a CPU, at least


class Ticks(msgspec.Struct, frozen=True):
    """What came of trying them.

    Attributes:
        event: the tracepoint, with a filter for the tick; None: it cannot be had.
        entry: address from which the kernel was entered, if it was from user mode.
        seconds: from one tick to the next.
        why_not: why they cannot be had, and what to do.
        tells_time: samples can tell the CPU time of their threads, new ones too (Linux 6.13).
        descriptor: of a disabled event that stays open: when the last one of a tracepoint is
            closed the kernel waits for all CPUs, 20 to 50 ms, and so would each session. -1: none.
    """

    event: HardwareEvent | None = None
    entry: int = 0
    seconds: float = 0.0
    why_not: str = ""
    tells_time: bool = False
    descriptor: int = -1

    def every(self, period_seconds: float) -> int:
        """Every how many ticks a sample is to be taken, to come near a period."""
        return max(round(period_seconds / self.seconds), 1)

    def close(self) -> None:
        """Close the descriptor, once; sources that were made of it go on."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


NO_TICKS = Ticks(why_not="ticks were not tried")


def cost_of_ticks(timer: SamplingCost) -> SamplingCost:
    """What sampling by ticks takes: at switches what an event does that is open, but no timer.

    Args:
        timer: what sampling by a timer takes.
    """
    open_seconds = timer.switch.open_seconds
    return SamplingCost(SAMPLE_SECONDS, SwitchCost(open_seconds, open_seconds))


def tickless_cpus_of(pid: int, sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """CPUs that threads of a process may run on, and that have no tick then, ascending.

    Args:
        pid: the process.
        sys_root: root of sysfs.
    """
    tickless, found = frozenset(tickless_cpus(sys_root)), set[int]()
    for tid in list_threads(pid) if tickless else ():
        with suppress(OSError):  # it has just ended
            found |= tickless & os.sched_getaffinity(tid)
    return tuple(sorted(found))


def tracepoint_id(root: Path = TRACEFS) -> int:
    """The number of the tracepoint of timers that expire.

    Args:
        root: where tracefs is.

    Raises:
        CapabilityError: there is none, or it may not be read.
    """
    folder = root / _TRACEPOINT
    try:
        number, form = (folder / "id").read_text(), (folder / "format").read_text()
    except OSError as error:
        raise CapabilityError(
            f"{folder}: {os.strerror(error.errno or 0)}",
            "be root, with tracefs mounted there (mount -t tracefs none /sys/kernel/tracing)",
        ) from error
    if not _FUNCTION_FIELD.search(form):
        raise CapabilityError(
            f"{folder}/format has another form", "nothing: it is another kernel's"
        )
    return int(number)


def tick_function(symbols: Path = SYMBOLS) -> int:
    """Return the address of the function that handles ticks; 0: the kernel does not tell it.

    Args:
        symbols: the kernel's list of them.
    """
    found = dict[bytes, int]()
    with suppress(OSError), symbols.open("rb") as lines:
        for line in lines:  # in order of addresses
            address, _, name = line.split()[:3]
            if name in _TICK_FUNCTIONS:
                found[name] = int(address, 16)
            elif found and int(address, 16) > min(found.values()) + _NEAR_BYTES:
                break
    return next((found[name] for name in _TICK_FUNCTIONS if name in found), 0)


def try_ticks(root: Path = TRACEFS, symbols: Path = SYMBOLS) -> Ticks:
    """Find out how ticks look here, on this thread: some 30 ms of CPU time.

    Args:
        root: where tracefs is.
        symbols: the kernel's list of them.
    """
    try:
        timers = HardwareEvent(
            "the tracepoint of timers",
            _core.PERF_TYPE_TRACEPOINT,
            tracepoint_id(root),
            excludes_kernel=False,
        )
        with ExitStack() as opened:
            groups = own_thread(timers, 1, _TRIAL_RING_BYTES, _TRIAL_FIELDS)
            opened.callback(close_all, groups)
            ((descriptor,),) = groups
            with closing(_core.PerfRing(descriptor, _TRIAL_RING_BYTES, _TRIAL_FIELDS)) as ring:
                found = _found_ticks(ring, timers, symbols)
            if found.event is None:
                return found
            fcntl.ioctl(descriptor, _core.PERF_EVENT_IOC_DISABLE, 0)
            opened.pop_all()
            return replace(found, tells_time=_tells_time(), descriptor=descriptor)
    except MemsampdError as error:
        return Ticks(why_not=str(error))
    except OSError as error:
        return Ticks(why_not=str(explain_refusal(error, "the tracepoint of timers")))


def _tells_time() -> bool:
    """Whether events that new threads inherit can be read at each sample."""
    try:
        groups = own_thread(
            TASK_CLOCK,
            _UNSEEN_PERIOD_NS,
            _TRIAL_RING_BYTES,
            _core.SAMPLE_COUNTS,
            _core.INHERIT_THREADS,
        )
    except OSError:
        return False
    close_all(groups)
    return True


def _found_ticks(ring: _core.PerfRing, timers: HardwareEvent, symbols: Path) -> Ticks:
    """Be in user mode until some ticks have come: from where these enter the kernel, that is it."""
    seconds = tick_seconds()
    give_up_seconds = time.monotonic() + _TRIAL_MOST_SECONDS
    told = tick_function(symbols)
    ring.drain()
    found = np.empty(0, SAMPLE_DTYPE)
    _compute((_TRIAL_TICKS - 1) * seconds)
    for ticks in range(_TRIAL_TICKS, _TRIAL_TICKS_MOST):
        _compute(seconds)
        found = np.concatenate([found, np.frombuffer(ring.drain()[0], SAMPLE_DTYPE)])
        function = told or _regular_function(found, ticks, seconds)
        if function and (entry := _entry(found[found["data_source"] == function])):
            event = replace(timers, name="ticks", filter=f"function=={function:#x}")
            return Ticks(event, entry, seconds)
        if time.monotonic() > give_up_seconds:
            break
    return Ticks(why_not=f"none of {len(found)} timers that interrupted a thread was the tick")


def _compute(seconds: float) -> None:
    """Use so much CPU time of this thread in user mode, hardly any in the kernel."""
    end_seconds = time.thread_time() + seconds
    while time.thread_time() < end_seconds:
        for _ in range(_PURE_TURNS):
            pass


def _regular_function(samples: NDArray[np.void], ticks: int, seconds: float) -> int:
    """Which function of timers expires as often as ticks, and at regular times; 0: none does.

    Where another program's timer does so, too, the more frequent one is taken: it may be wrong.

    Args:
        samples: of SAMPLE_DTYPE, with raw records.
        ticks: that the thread's CPU time stands for.
        seconds: from one tick to the next.
    """
    for function, count in Counter(samples["data_source"].tolist()).most_common():
        of_it = samples[samples["data_source"] == function]
        if count >= _TRIAL_PART * ticks and _is_regular(of_it, seconds):
            return int(function)
    return 0


def _is_regular(samples: NDArray[np.void], seconds: float) -> bool:
    ticks = (samples["time_ns"] - samples["time_ns"][0]) * 1e-9 / seconds
    off = np.abs(ticks - np.round(ticks))
    return bool((off < _TRIAL_OFF_MOST).mean() >= _TRIAL_REGULAR)


def _entry(samples: NDArray[np.void]) -> int:
    """From where the kernel was entered when a timer expired in user mode; 0: that is not clear.

    Args:
        samples: of SAMPLE_DTYPE, with chains: of a thread in user mode, mostly.
    """
    # What interrupts the kernel, another interrupt's work included, has its frames besides.
    entries = samples["address"][samples["frames"] == samples["frames"].min(initial=1 << 15)]
    if len(entries) < _TRIAL_LEAST or not (entries == entries[0]).all():
        return 0
    return int(entries[0])


class _Asked(msgspec.Struct, frozen=True):
    """When threads were asked for their CPU time, and which: on a busy machine that takes long."""

    began_seconds: float = -math.inf
    ended_seconds: float = -math.inf
    tids: Container[int] = ()


class TickSource(StreamedBranches):
    """A :class:`~memsampd.sampler.protocols.BranchSource` by ticks that come anyway.

    A sample is taken at every tick, or every so many, that interrupts a thread in user mode. Where
    a tick finds it in the kernel it was entered from elsewhere, and there is no sample. A program
    that runs in step with ticks is seen too often, or not at all: that is noticed, and told. They
    come at even distances of wall time: each tells its thread's CPU time, where the kernel does.

    Args:
        pid: the process to sample.
        ticks: how they look here.
        period_seconds: CPU time that a sample stands for, about: a multiple of a tick is used.
        follow_forks: sample processes that it starts, too.
        ring_bytes: size of each ring buffer (one a CPU), a power of two of pages.
        most_files: descriptors that may be opened; None: what the process may.
        seed: of the choice among threads where not all can be sampled.

    Attributes:
        name: "kernel-ticks".

    Raises:
        TargetError: the process is gone or not ours.
        CapabilityError: perf events are refused; with the cause and what to do.
    """

    name = "kernel-ticks"
    not_thinned = "ticks come anyway"

    def __init__(
        self,
        pid: int,
        ticks: Ticks,
        *,
        period_seconds: float,
        follow_forks: bool = False,
        ring_bytes: int = RING_BYTES,
        most_files: int | None = None,
        seed: int = 0,
    ) -> None:
        assert ticks.event is not None
        every = ticks.every(period_seconds)
        period_seconds = every * ticks.seconds
        self._pid, self._entry, self._tells_time = pid, ticks.entry, ticks.tells_time
        self._times = ThreadTimes(pid)
        self._asked = _Asked()
        self._judges = not follow_forks
        self._ticks, self._judged_cpu_seconds = 0, process_cpu_ns(pid) * 1e-9
        fields = _core.SAMPLE_CHAIN | _core.SAMPLE_REGISTERS
        if ticks.tells_time:
            fields |= _core.SAMPLE_COUNTS
        options = SamplerOptions(
            pid=pid,
            period=every,
            wakeup_bytes=wakeup_bytes(period_seconds, _RECORD_BYTES, ring_bytes),
            ring_bytes=ring_bytes,
            follow_forks=follow_forks,
            most_files=most_files,
            groups=(EventGroup(ticks.event),),
            fields=fields,
            seed=seed,
        )
        super().__init__(period_seconds, NO_COUNTERS, options, _RECORD_BYTES)

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come, in order of time."""
        found = self._found(timeout_seconds)
        if self._judges and not self.ended:
            self._judge(len(found.samples) + found.lost)
        samples = self._of_user_code(found.samples)
        told = self._told(replace(found, samples=samples))
        return replace(told, thread_seconds=self._thread_seconds(samples))

    def _thread_seconds(self, samples: NDArray[np.void]) -> NDArray[np.float64]:
        """CPU time of each sample's thread; where samples do not tell, of threads that never wait.

        These had a CPU for nearly all of the time since they were asked at the last read: they used
        as much CPU time as passed.
        """
        if self._tells_time:  # an event goes on to be enabled wherever its thread runs
            return np.asarray(samples["enabled_ns"] * 1e-9)
        last, tids = self._asked, dict.fromkeys(samples["tid"].tolist())
        began_seconds = time.monotonic()
        used = self._times.since(tids)
        self._asked = _Asked(began_seconds, time.monotonic(), tids.keys())
        least_seconds = _NEVER_WAITS * (self._asked.ended_seconds - last.began_seconds)
        never_wait = [
            tid for tid, seconds in used.items() if tid in last.tids and seconds > least_seconds
        ]
        at_seconds = samples["time_ns"] * 1e-9
        is_known = np.isin(samples["tid"], never_wait) & (at_seconds > last.ended_seconds)
        return np.where(is_known, at_seconds, np.nan)

    def _of_user_code(self, samples: NDArray[np.void]) -> NDArray[np.void]:
        chosen: NDArray[np.void] = samples[samples["address"] == self._entry]
        return chosen

    def _judge(self, ticks: int) -> None:
        """Compare what ticks stand for with the CPU time of the process, now and then."""
        self._ticks += ticks
        try:
            cpu_seconds = process_cpu_ns(self._pid) * 1e-9
        except TargetError:  # it has just ended
            return
        expected = (cpu_seconds - self._judged_cpu_seconds) / self.period_seconds
        if max(expected, self._ticks) < _JUDGED_TICKS:
            return
        part = self._ticks / expected if expected > 0 else float("inf")
        self._notes = ()
        if not 1 / _IN_STEP < part < _IN_STEP:
            why = (
                "its CPUs have hardly any ticks, as with nohz_full="
                if part < _HARDLY_ANY
                else "it runs in step with the kernel's ticks"
            )
            self._notes = (
                f"{why}: these stand for {part:.2g} times its CPU time "
                "(--branches timer samples it by a timer of its own)",
            )
        self._ticks, self._judged_cpu_seconds = 0, cpu_seconds
