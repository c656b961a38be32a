"""The seams of the sampler: the daemon never knows which backend stands behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.line_choice import LineChoice
from memsampd.sampler.rates import CodeRate, Speed, Stretch, TimedStretch
from memsampd.sampler.records import AccessChunk, BranchSamples, Burst, BurstRequest


@runtime_checkable
class BranchSource(Protocol):
    """A stream of instruction addresses, sampled at a fixed period of CPU time.

    Contract: ``read`` never blocks longer than ``timeout_seconds``, returns samples in order of
    time, counts what was lost, and returns an empty record (never raises) once the target is gone.
    ``close`` may be called twice.
    """

    name: str
    period_seconds: float

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come."""

    def close(self) -> None:
        """Release every descriptor and mapping."""


@runtime_checkable
class AccessSource(Protocol):
    """Something that can say which data a thread references, for a while.

    Contract: the target is left running as it was, whatever happens; an accepted request returns
    a burst (perhaps empty) with its end and cost; a refusal raises
    :class:`~memsampd.errors.CaptureError` with the reason. Calls come from one thread at a time,
    no matter which; ``cancel`` from any at any time. ``close`` may be called twice.
    """

    name: str

    def capture(self, request: BurstRequest) -> Burst:
        """Observe one thread from where it is now."""

    def count_lines(
        self, request: BurstRequest, line_bytes: int, counter: _core.ReuseCounter
    ) -> Burst:
        """The same, the reuse distances of lines being counted as they are made: least work.

        The counter's burst has begun; a line is a power of two long.
        """

    def count_rest(self, line_bytes: int, counter: _core.ReuseCounter) -> Burst | None:
        """The next part of the last burst that was counted; None: there is none.

        A burst whose code changes to such as goes at quite another speed is told in parts.
        """

    def rows_again(self, most: int, choice: LineChoice) -> tuple[NDArray[np.uint32], AccessChunk]:
        """Which of the first rows of the last burst are of chosen lines, and these rows.

        Chosen by their first byte; none if the burst is not kept.
        """

    def cancel(self) -> None:
        """End the present burst and all later ones at once."""

    def close(self) -> None:
        """Leave nothing behind in the target or on the machine."""


@runtime_checkable
class AccessClock(Protocol):
    """How many accesses a second of CPU time is worth: models speak per access, stops in time.

    Contract: it is told all samples, in order; what it cannot tell it does not guess.
    """

    name: str

    def add(self, samples: BranchSamples, cpu_seconds: Mapping[int, float] | None = None) -> None:
        """Take in samples of the running target.

        ``cpu_seconds`` is what threads used since the last time, that in the kernel included;
        rates are told by user time, as samples are, unless these tell all of it.
        """

    def measure(
        self, stretch: Stretch, close: BranchSamples | None = None
    ) -> tuple[TimedStretch, int] | None:
        """Time the code of a burst; the id of that code says which windows' rates are its own.

        ``close`` are samples of its thread in quick succession, just before it was taken.
        """

    def rates(self, start_seconds: float, end_seconds: float) -> tuple[CodeRate, ...]:
        """How fast code that is known went from one moment to another (CLOCK_MONOTONIC)."""

    def by_user_time(self, tid: int, start_seconds: float, end_seconds: float) -> float:
        """CPU time of a thread in a second of its user time, 1 where that is not known."""

    def speed(self, start_seconds: float, end_seconds: float) -> Speed | None:
        """How fast the process went all in all; None if nothing was counted."""
