"""What tells how fast threads go: what is timed of them, and what the core would take."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd import _core

DISTANT_CYCLES: int = _core.DISTANT_CYCLES


class TimedStretch(msgspec.Struct, frozen=True):
    """How long the target itself took for some of its accesses.

    Attributes:
        accesses: to lines.
        cpu_seconds: CPU time of the thread in user mode for them.
        method: how it was timed, for people ("registers").
        error: estimate of the relative standard error; 0 if not known.
    """

    accesses: int
    cpu_seconds: float
    method: str
    error: float = 0.0

    @property
    def accesses_per_cpu_second(self) -> float:
        """The rate that was measured; only where it took any time."""
        return self.accesses / self.cpu_seconds


class Stretch(msgspec.Struct, frozen=True):
    """What a burst tells of a thread's registers.

    Attributes:
        time_seconds: CLOCK_MONOTONIC time of the burst.
        tid: its thread.
        accesses: made until each moment whose registers are known, shape (k,), ascending from 0.
        registers: those, shape (k, 16), uint64: :attr:`Burst.stretch`.
        ip: where it was at these moments, shape (k,), uint64.
        code_ip: its loops: instructions that it executed often, shape (c,), uint64, ascending.
        limits: the lowest and the highest rate that are possible, accesses per second.
        modelled: the rate that is likely where nobody times it; NaN where that is not known.
    """

    time_seconds: float
    tid: int
    accesses: NDArray[np.float64]
    registers: NDArray[np.uint64]
    ip: NDArray[np.uint64]
    code_ip: NDArray[np.uint64]
    limits: tuple[float, float] = (1e5, 2e10)
    modelled: float = math.nan

    @property
    def advance(self) -> NDArray[np.int64]:
        """Of each register up to each moment, shape (k, 16), int64."""
        return np.asarray((self.registers - self.registers[0]).view(np.int64))

    def between(self, first: int, last: int) -> Stretch:
        """The part from one of its moments to another."""
        part = slice(first, last + 1)
        accesses = self.accesses[part] - self.accesses[first]
        return replace(self, accesses=accesses, registers=self.registers[part], ip=self.ip[part])


class CodeRate(msgspec.Struct, frozen=True):
    """How fast some code went for a while.

    Attributes:
        code: its id, given by the clock.
        accesses_per_cpu_second: the rate.
        pairs: pairs of samples that tell it.
    """

    code: int
    accesses_per_cpu_second: float
    pairs: int


class Speed(msgspec.Struct, frozen=True):
    """How fast a process went for a while, by such CPU time as windows are made of.

    Attributes:
        accesses_per_cpu_second: loads and stores.
        instructions_per_cpu_second: all of them.
        cycles_per_instruction: CPI; NaN where no instruction was counted.
        cpu_seconds: for which that was counted.
    """

    accesses_per_cpu_second: float
    instructions_per_cpu_second: float
    cycles_per_instruction: float
    cpu_seconds: float


class CoreTimes(msgspec.Struct, frozen=True):
    """How long parts of a burst would take on a modelled core (``_core/translator/core_model.h``).

    Attributes:
        instructions: executed in these parts.
        accesses: that they made.
        distant: those of them that are in no small cache, and of which nothing told that they come.
        near_cycles: if all accesses hit in the nearest cache.
        distant_cycles: if each distant one takes :data:`DISTANT_CYCLES` more.
    """

    instructions: int
    accesses: int
    distant: int
    near_cycles: float
    distant_cycles: float


class AccessRate(msgspec.Struct, frozen=True):
    """Accesses per second of CPU time, as far as it is known.

    Attributes:
        accesses_per_cpu_second: the estimate; None if nothing is known.
        spread: relative standard deviation of the estimate; None if unknown.
        method: how it was found, for people ("in-target", "unknown", ...).
    """

    accesses_per_cpu_second: float | None
    spread: float | None
    method: str


UNKNOWN_RATE = AccessRate(None, None, "unknown")
