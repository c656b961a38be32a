"""Bursts that wait until the window of their moment has ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.daemon.closed import ClosedWindow, ClosedWindows
from memsampd.daemon.tracer import CountedBurst
from memsampd.phases.windows import WindowCutter


class WaitingBurst(msgspec.Struct, frozen=True):
    """A burst that waits.

    Attributes:
        counted: the burst.
        code: what it executed, as :attr:`memsampd.phases.records.Window.code`; all 0 if unknown.
    """

    counted: CountedBurst
    code: NDArray[np.float64]

    @property
    def time_seconds(self) -> float:
        """Its moment, CLOCK_MONOTONIC."""
        return self.counted.burst.time_seconds


class WaitingBursts:
    """Those of one program, in the order in which they came.

    Args:
        cutter: makes branch vectors.
    """

    def __init__(self, cutter: WindowCutter) -> None:
        self._cutter = cutter
        self._bursts: list[WaitingBurst] = []

    def __len__(self) -> int:
        return len(self._bursts)

    @property
    def first_seconds(self) -> float:
        """Moment of the first that tells something, CLOCK_MONOTONIC; inf if there is none."""
        return next(
            (each.time_seconds for each in self._bursts if each.counted.burst.tells), math.inf
        )

    def add(self, bursts: Iterable[CountedBurst]) -> None:
        """Have them wait."""
        for each in bursts:
            code = self._cutter.vector(each.burst.pid, each.code_ips)
            self._bursts.append(WaitingBurst(each, code))

    def seen_with(self, seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which bins they or others ran code of.

        Args:
            seen: bins that others ran code of, shape (bins,); of another length, it stays as it is.
        """
        alike = [each.code > 0 for each in self._bursts if len(each.code) == len(seen)]
        return np.asarray(np.logical_or.reduce([seen, *alike]))

    def ended(self, closed: ClosedWindows) -> Iterator[tuple[WaitingBurst, ClosedWindow]]:
        """Yield those whose window has ended, with the window: they wait no longer."""
        found = [(each, closed.find(each.time_seconds)) for each in self._bursts]
        self._bursts = [each for each, window in found if window is None]
        for each, window in found:
            if window is not None:
                yield each, window

    def take(self, until_seconds: float = math.inf) -> list[WaitingBurst]:
        """Return those before a moment, CLOCK_MONOTONIC: they wait no longer."""
        taken = [each for each in self._bursts if each.time_seconds < until_seconds]
        self._bursts = [each for each in self._bursts if each.time_seconds >= until_seconds]
        return taken
