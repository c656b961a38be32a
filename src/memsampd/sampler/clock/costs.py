"""What an interrupt of the clock costs the thread that it measures, tried on a child of our own."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.errors import CapabilityError
from memsampd.sampler.clock.hits import ACCESS, EXECUTE, breakpoints, read_hits
from memsampd.sampler.clock.moments import take_moments
from memsampd.sampler.process.cputime import process_cpu_ns

# Less than a µs a spin: what lies between two hits is then their cost, not the speed of the CPU.
_SPINS = 1_000
_HITS = 32
_ROUNDS = 3
_PATIENCE_SECONDS = 2.0
_MOMENTS_SECONDS = tuple(1e-6 * at for at in (1000, 1060, 1120, 1180, 1240, 1300, 1360, 1660))


@dataclass(frozen=True, slots=True)
class HitCosts:
    """CPU time that one interrupt takes from the thread, in seconds.

    Attributes:
        execute_seconds: a breakpoint on an instruction.
        access_seconds: a breakpoint on data.
        moment_seconds: a moment (:mod:`memsampd.sampler.clock.moments`).
        child_cpu_seconds: CPU time of the child that this was tried on.
    """

    execute_seconds: float
    access_seconds: float
    moment_seconds: float
    child_cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _LoopingChild:
    pid: int
    instructions: tuple[int, int]
    words: tuple[int, int]


@contextmanager
def _looping_child() -> Iterator[_LoopingChild]:
    child = _LoopingChild(*_core.spawn_looping_child(_SPINS))
    try:
        yield child
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


@cache
def measure_costs() -> HitCosts:
    """Measure them, once; each round with fresh events, so that arming again is tried as well.

    Raises:
        CapabilityError: breakpoints or the task clock do not count here.
        MemsampdError: they cannot be had.
    """
    with _looping_child() as child:
        return HitCosts(
            _median(_hit_cost(child.pid, EXECUTE, child.instructions) for _ in range(_ROUNDS)),
            _median(_hit_cost(child.pid, ACCESS, child.words) for _ in range(_ROUNDS)),
            _median(_moment_cost(child.pid) for _ in range(_ROUNDS)),
            process_cpu_ns(child.pid) * 1e-9,
        )


def _median(costs: Iterator[float]) -> float:
    """The median: one round that another process disturbed does not matter."""
    return statistics.median(costs)


def _median_of(values: NDArray[np.float64]) -> float:
    """The same of an array: np.median would import numpy.ma, which takes longer than all this."""
    return float(statistics.median(values.tolist()))


def _hit_cost(pid: int, kind: int, addresses: Sequence[int]) -> float:
    """Of two spins, one three times as long: three short ones less a long one leave two hits."""
    with breakpoints(pid, [(kind, address) for address in addresses], _HITS) as points:
        points.arm()
        points.wait(2 * _HITS, _PATIENCE_SECONDS)
        hits = read_hits(points)
    if len(hits) < 2 * _HITS:
        raise CapabilityError(
            f"breakpoints do not count here: {len(hits)} hits instead of {2 * _HITS}",
            "memsampd doctor may tell more",
        )
    after = np.diff(hits.cpu_seconds)
    short, long = (_median_of(after[hits.point[:-1] == point]) for point in (0, 1))
    return (3 * short - long) / 2


def _moment_cost(pid: int) -> float:
    """Of the rounds that the child came through in short times and in a long one."""
    seconds, rounds = _steps(pid)
    short, long = _median_of(seconds[:-1]), float(seconds[-1])
    fewer, more = _median_of(rounds[:-1]), float(rounds[-1])
    return (short * more - long * fewer) / (more - fewer)


def _steps(pid: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """CPU time and rounds from each moment to the next."""
    moments = take_moments(pid, _MOMENTS_SECONDS, _PATIENCE_SECONDS)
    if len(moments) < len(_MOMENTS_SECONDS):
        raise CapabilityError(
            f"the task clock does not interrupt here: {len(moments)} of {len(_MOMENTS_SECONDS)}",
            "memsampd doctor may tell more",
        )
    seconds = np.diff([moment.cpu_seconds for moment in moments])
    rounds = np.diff([float(moment.register("R12")) for moment in moments])
    return seconds, rounds
