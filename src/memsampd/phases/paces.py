"""At which rates bursts saw code go.

Code that goes at a rate which no burst of it had works on other data, most likely: a burst of it is
worth as much as the first one of a phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memsampd.sampler.records import CodeRate

_OTHER_DATA = 0.1  # logarithm: on the same data rates are mostly 4 % apart at most
_TRIES = 2  # at one rate: a burst may come too late for it
_CODES = 64
_LEAST_PART = 0.25  # of a window's samples: else a rate speaks of little time


class Paces:
    """Remembers at which rates code was seen, or sought often enough."""

    def __init__(self) -> None:
        self._known: dict[int, list[float]] = {}  # logarithms of rates, by id of the code

    def add(self, code: int, accesses_per_cpu_second: float, times: int = _TRIES) -> None:
        """A burst of some code was timed, or, once, tried for."""
        missing = min(_TRIES - self._near(code, accesses_per_cpu_second), times)
        self._known.setdefault(code, []).extend(missing * [math.log(accesses_per_cpu_second)])
        if len(self._known) > _CODES:
            del self._known[next(iter(self._known))]

    def seek(self, rates: Sequence[CodeRate], samples: int) -> bool:
        """Whether a burst is to be tried for: code went in a window as in no burst of it.

        Args:
            rates: of the window.
            samples: branch samples in it.
        """
        lacking = [
            (each.code, each.accesses_per_cpu_second)
            for each in rates
            if each.pairs >= _LEAST_PART * samples
            and self._near(each.code, each.accesses_per_cpu_second) < _TRIES
        ]
        for code, rate in lacking:
            self.add(code, rate, 1)
        return bool(lacking)

    def _near(self, code: int, rate: float) -> int:
        """How many of those that are known are like a rate."""
        log = math.log(rate)
        return sum(abs(log - each) < _OTHER_DATA for each in self._known.get(code, ()))
