"""Peak memory bandwidth of this machine, by a micro-benchmark of some seconds."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from memsampd import _core
from memsampd.errors import CapabilityError

Operation = Literal["read", "write", "copy"]
OPERATIONS: tuple[Operation, ...] = ("read", "write", "copy")

BUSY_SHARE = 0.1
"""With more of the CPUs in use by others than this, the machine is too busy to measure its peak."""
_LOOK_SECONDS = 0.5
_ROUNDS = 3  # the best of them counts: a peak is what nobody else disturbed
_CACHES = 4  # the areas of all threads together are so many times the largest cache
_AREA_LEAST = 256 << 20
_THREAD_LEAST = 32 << 20
_MEMORY_SHARE = 0.25  # of the memory that is available
_GROUP_SHARE = 0.5  # of what a control group has left: nobody else is meant to have it
_OUTSIDE = (
    "measure outside of the container with --output FILE, and put that to "
    "/var/lib/memsampd/machine.json in it"
)


class Bandwidth(msgspec.Struct, frozen=True):
    """How fast memory is gone through.

    Attributes:
        operation: "read", "write" or "copy", by ordinary loads and stores.
        threads: threads that did so at once, each on a CPU of its own.
        bytes_per_second: bytes that all of them loaded and stored. Behind a byte stored there is
            more traffic where the machine fetches lines before they are overwritten: what it costs
            is in the figure, how much it is, is not.
    """

    operation: Operation
    threads: int
    bytes_per_second: float


class Measurement(msgspec.Struct, frozen=True):
    """All that was measured.

    Attributes:
        bandwidths: of each operation, by one thread and by all.
        others_cpu_share: share of the CPUs that other processes used meanwhile, 0..1.
        area_bytes: memory that was gone through.
    """

    bandwidths: tuple[Bandwidth, ...]
    others_cpu_share: float
    area_bytes: int


def check_idle(proc: Path = Path("/proc")) -> float:
    """Look for half a second whether others use the CPUs; returns the share that they use.

    Raises:
        CapabilityError: they use too much for a peak to be measured.
    """
    others = OthersCpu(proc)
    time.sleep(_LOOK_SECONDS)
    share = others.share()
    if share > BUSY_SHARE:
        raise CapabilityError(
            f"this machine is busy: others use {share:.0%} of its CPU time; a peak measured now "
            "would be too low",
            "try again when it is idle, or measure all the same with --even-if-busy",
        )
    return share


def allowed_cpus(quota_cpus: float | None) -> float:
    """Return how many CPUs this process may use at once.

    Args:
        quota_cpus: CPU time that its control group allows in a second, in seconds; None: any.
    """
    affine = len(os.sched_getaffinity(0))
    return affine if quota_cpus is None else min(affine, quota_cpus)


def check_cpus(allowed: float, online: int) -> None:
    """Check that all CPUs may be used at once.

    Args:
        allowed: so many may: :func:`allowed_cpus`.
        online: CPUs of the machine.

    Raises:
        CapabilityError: they are fewer.
    """
    if allowed < online:
        raise CapabilityError(
            f"memsampd may use {allowed:g} of {online} CPUs here: a peak measured so would be too "
            "low",
            f"measure without a CPU quota and on all CPUs, or {_OUTSIDE}, or measure all the same "
            "with --even-if-busy",
        )


def measure_bandwidth(
    largest_cache_bytes: int,
    seconds: float,
    tell: Callable[[Bandwidth], None] = lambda bandwidth: None,
    proc: Path = Path("/proc"),
    group_room_bytes: int | None = None,
) -> Measurement:
    """Go through memory in every way for so many seconds in all.

    Args:
        largest_cache_bytes: of all last-level caches together; 0 if unknown.
        seconds: time for all of it; filling the areas comes on top.
        tell: told of each figure as it comes.
        proc: the proc file system.
        group_room_bytes: memory that our control group may still use; None: it has no limit.

    Raises:
        CapabilityError: there is too little memory available, or not a thread for each CPU.
    """
    cpus = sorted(os.sched_getaffinity(0))
    area_bytes = _area_bytes(largest_cache_bytes, len(cpus), proc, group_room_bytes)
    counts = sorted({1, len(cpus)})
    pass_seconds = seconds / (len(OPERATIONS) * len(counts) * _ROUNDS)
    others = OthersCpu(proc)
    found = []
    for threads in counts:
        areas = [mmap.mmap(-1, area_bytes // threads) for _ in range(threads)]
        try:
            for operation in OPERATIONS:
                best = max(_round(operation, areas, cpus, pass_seconds) for _ in range(_ROUNDS))
                found.append(Bandwidth(operation, threads, best))
                tell(found[-1])
        finally:
            areas.clear()  # unmapped as soon as no thread goes through them
    return Measurement(tuple(found), others.share(), area_bytes)


def _area_bytes(
    largest_cache_bytes: int, threads: int, proc: Path, group_room_bytes: int | None
) -> int:
    wanted = max(_CACHES * largest_cache_bytes, _AREA_LEAST, _THREAD_LEAST * threads)
    fields = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) << 10
    if wanted > _MEMORY_SHARE * available:
        raise CapabilityError(
            f"measuring takes {wanted >> 20} MiB of memory, a quarter of what is available at most",
            f"free some: {available >> 20} MiB are available",
        )
    if group_room_bytes is not None and wanted > _GROUP_SHARE * group_room_bytes:
        raise CapabilityError(
            f"measuring takes {wanted >> 20} MiB of memory, half of what the control group has "
            f"left at most, and it has {group_room_bytes >> 20} MiB",
            f"raise the group's memory limit for that time, or {_OUTSIDE}",
        )
    return wanted


def _round(operation: Operation, areas: list[mmap.mmap], cpus: list[int], seconds: float) -> float:
    """All threads at once for so long; returns bytes per second that they went through."""
    barrier = threading.Barrier(len(areas))
    rates, failures = [0.0] * len(areas), list[BaseException]()

    def end(failure: BaseException) -> None:
        """Have no thread go on, nor wait for one that will not come."""
        failures.append(failure)
        barrier.abort()

    def work(at: int) -> None:
        try:
            rates[at] = _rate(operation, areas[at], cpus[at], seconds, barrier)
        except Exception as error:
            end(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(areas))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # a thread could not be started, or we are interrupted
        end(error)
        for thread in threads:
            if thread.is_alive():
                thread.join()
    if failures:
        raise _explained(failures[0])
    return sum(rates)


def _rate(
    operation: Operation, area: mmap.mmap, cpu: int, seconds: float, barrier: threading.Barrier
) -> float:
    """Bytes per second that this thread went through, beside others that began with it.

    Raises:
        BrokenBarrierError: another one failed.
        OSError: it may not be on that CPU.
    """
    os.sched_setaffinity(0, {cpu})  # of this thread
    _core.memory_pass("w", area)  # its pages are there from now on, and near this CPU
    barrier.wait()
    begin, passes = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds or not passes:
        if barrier.broken:
            raise threading.BrokenBarrierError
        _core.memory_pass(operation[0], area)
        passes += 1
    return passes * len(area) / spent


def _explained(failure: BaseException) -> BaseException:
    """What is said of it: of a thread there is OSError, or RuntimeError where none is started."""
    if not isinstance(failure, OSError | RuntimeError):
        return failure
    return CapabilityError(
        f"there cannot be a thread on each CPU: {failure}",
        "raise the limit of processes (pids.max, ulimit -u), and try again",
    )


class OthersCpu:
    """CPU time that others use from now on: processes, interrupts, and other virtual machines."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._begin = self._read()

    def share(self) -> float:
        """Return the share of all CPU time since the start, 0..1."""
        busy, total, own = (now - then for now, then in zip(self._read(), self._begin, strict=True))
        return min(max((busy - own) / total, 0.0), 1.0) if total > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """Seconds of all CPUs: in use, in all; and those that this process used."""
        line = (self._proc / "stat").read_text().partition("\n")[0]
        # user nice system idle iowait irq softirq steal; guests are in user and nice already
        ticks = [int(word) for word in line.split()[1:9]]
        tick = 1 / os.sysconf("SC_CLK_TCK")
        busy = sum(ticks) - ticks[3] - ticks[4]
        return busy * tick, sum(ticks) * tick, time.process_time()
