"""At which rates and on which data bursts saw code go.

Code that goes steadily at a rate which no burst of it had, or on data that lie clearly nearer to or
farther from each other than those of its phase's bursts, works on other data, most likely: a burst
of it is worth as much as the first one of a phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

_OTHER_RATE = 0.1  # logarithm: on the same data rates are mostly 4 % apart at most
_OTHER_SPACING = 1.0  # octaves: windows of the same data are mostly half of one apart at most
# Two windows in a row are steady if they differ by less than this part of what tells other data:
# where more, they vary, and bursts come to all of them.
_STEADY = 0.5
_TRIES = 2  # at one level: a burst may come too late for it
_KEYS = 256  # of 64 phases, and of the code of all that is remembered
_LEAST_PART = 0.5  # of a window's samples: else a rate speaks of little time

_Key = tuple[str, int]


class Paces:
    """Remembers at which levels code was seen, or sought often enough.

    A level is a logarithm of a rate, of code that was timed, or a spacing of data, of a phase; each
    in units of what tells other data.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, list[float]] = {}
        self._latest: dict[_Key, float] = {}
        self._steady: list[tuple[_Key, float]] = []

    def add(self, code: int, accesses_per_cpu_second: float) -> None:
        """A burst of some code was timed."""
        self._note(*_rate_level(code, accesses_per_cpu_second), _TRIES)

    def add_spacing(self, phase: int, spacing: Spacing | None) -> None:
        """A burst was taken in a window whose data lay so far apart."""
        for key, level in _spacing_levels(phase, spacing):
            self._note(key, level, _TRIES)

    def add_window(
        self, rates: Sequence[CodeRate], samples: int, phase: int, spacing: Spacing | None
    ) -> None:
        """A window has ended.

        Args:
            rates: of its code.
            samples: branch samples in it.
            phase: its phase.
            spacing: how far apart its data lay.
        """
        before = self._latest
        told = [
            _rate_level(each.code, each.accesses_per_cpu_second)
            for each in rates
            if each.pairs >= _LEAST_PART * samples
        ]
        self._latest = dict(told + _spacing_levels(phase, spacing))
        self._steady = [
            (key, level)
            for key, level in self._latest.items()
            if abs(level - before.get(key, math.inf)) < _STEADY
        ]

    def merge(self, gone: int, into: int) -> None:
        """A phase turned out to be another one: its data lay where that one's do."""
        old, new = ("spacing", gone), ("spacing", into)
        for level in self._known.pop(old, ()):
            self._note(new, level, 1)
        self._latest = {new if key == old else key: each for key, each in self._latest.items()}
        self._steady = [(new if key == old else key, each) for key, each in self._steady]

    def seek(self) -> bool:
        """Whether a burst is to be tried for: code goes as in no burst of it."""
        lacking = [each for each in self._steady if self._near(*each) < _TRIES]
        for key, level in lacking:
            self._note(key, level, 1)
        return bool(lacking)

    def _note(self, key: _Key, level: float, times: int) -> None:
        missing = min(_TRIES - self._near(key, level), times)
        # Put back behind the others: what was met last is forgotten last.
        self._known[key] = [*self._known.pop(key, []), *(missing * [level])]
        if len(self._known) > _KEYS:
            del self._known[next(iter(self._known))]

    def _near(self, key: _Key, level: float) -> int:
        """How many of those that are known are like a level."""
        return sum(abs(level - each) < 1 for each in self._known.get(key, ()))


def _rate_level(code: int, accesses_per_cpu_second: float) -> tuple[_Key, float]:
    return ("rate", code), math.log(accesses_per_cpu_second) / _OTHER_RATE


def _spacing_levels(phase: int, spacing: Spacing | None) -> list[tuple[_Key, float]]:
    """At most one: a spacing that is not known well tells nothing."""
    if spacing is None or spacing.error > _STEADY * _OTHER_SPACING:
        return []
    return [(("spacing", phase), spacing.octaves / _OTHER_SPACING)]
