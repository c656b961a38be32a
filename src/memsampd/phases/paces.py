"""At which rates bursts saw code go.

Code that goes steadily at a rate which no burst of it had works on other data, most likely: a burst
of it is worth as much as the first one of a phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memsampd.sampler.records import CodeRate

_OTHER_DATA = 0.1  # logarithm: on the same data rates are mostly 4 % apart at most
_STEADY = 0.05  # the same of two windows in a row: else rates vary, and bursts come to all of them
_TRIES = 2  # at one rate: a burst may come too late for it
_CODES = 64
_LEAST_PART = 0.5  # of a window's samples: else a rate speaks of little time


class Paces:
    """Remembers at which rates code was seen, or sought often enough."""

    def __init__(self) -> None:
        self._known: dict[int, list[float]] = {}  # logarithms of rates, by id of the code
        self._latest: dict[int, float] = {}
        self._steady: list[tuple[int, float]] = []

    def add(self, code: int, accesses_per_cpu_second: float) -> None:
        """A burst of some code was timed."""
        self._note(code, math.log(accesses_per_cpu_second), _TRIES)

    def add_window(self, rates: Sequence[CodeRate], samples: int) -> None:
        """A window has ended.

        Args:
            rates: of its code.
            samples: branch samples in it.
        """
        before = self._latest
        self._latest = {
            each.code: math.log(each.accesses_per_cpu_second)
            for each in rates
            if each.pairs >= _LEAST_PART * samples
        }
        self._steady = [
            (code, log)
            for code, log in self._latest.items()
            if abs(log - before.get(code, math.inf)) < _STEADY
        ]

    def seek(self) -> bool:
        """Whether a burst is to be tried for: code goes as in no burst of it."""
        lacking = [each for each in self._steady if self._near(*each) < _TRIES]
        for code, log in lacking:
            self._note(code, log, 1)
        return bool(lacking)

    def _note(self, code: int, log: float, times: int) -> None:
        missing = min(_TRIES - self._near(code, log), times)
        self._known.setdefault(code, []).extend(missing * [log])
        if len(self._known) > _CODES:
            del self._known[next(iter(self._known))]

    def _near(self, code: int, log: float) -> int:
        """How many of those that are known are like a rate."""
        return sum(abs(log - each) < _OTHER_DATA for each in self._known.get(code, ()))
