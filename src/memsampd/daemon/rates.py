"""Which bursts are to be timed: as many as the estimate of a phase's rate needs and no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from memsampd.sampler.protocols import AccessClock
from memsampd.sampler.records import UNKNOWN_RATE, AccessRate, Burst

_SPREAD_GOAL = 0.05
_BURSTS_KEPT = 64
_TRIES_AT_FIRST = 3


@dataclass
class _Phase:
    bursts: deque[Burst] = field(default_factory=lambda: deque(maxlen=_BURSTS_KEPT))
    rate: AccessRate = UNKNOWN_RATE
    is_stale: bool = False
    tries: int = 0  # since the phase was new or has drifted
    passed: int = 0  # bursts since the last try


class PhaseRates:
    """Says of each phase whether more is to be measured of its access rate.

    A phase is measured with every burst until the spread of its rate is within the goal. One that
    stays above it after some tries (its rate varies, or its bursts are too short) is then measured
    ever more rarely: the n-th time after n - 3 bursts without.

    Args:
        clock: makes rates of measurements.
        spread_goal: relative standard deviation that is good enough.
    """

    def __init__(self, clock: AccessClock, spread_goal: float = _SPREAD_GOAL) -> None:
        self._clock = clock
        self._spread_goal = spread_goal
        self._phases: dict[int, _Phase] = {}

    def wants(self, phase: int | None) -> bool:
        """Whether the next burst in a phase is to be timed."""
        if phase is None:
            return False
        known = self._phases.get(phase)
        if known is None or known.is_stale:
            return True
        spread = known.rate.spread
        if spread is not None and spread <= self._spread_goal:
            return False
        return known.passed >= known.tries - _TRIES_AT_FIRST

    def add(self, phase: int, burst: Burst) -> None:
        """Take in a burst of a phase, without its rows."""
        known = self._phases.setdefault(phase, _Phase())
        if burst.was_asked_time:
            known.tries += 1
            known.passed = 0
        else:
            known.passed += 1
        if burst.timed is None:
            return
        if known.is_stale:
            known.bursts.clear()
            known.is_stale = False
        known.bursts.append(burst)
        known.rate = self._clock.measure(tuple(known.bursts))

    def drift(self, phase: int) -> None:
        """The phase has changed: measure anew."""
        known = self._phases.get(phase)
        if known is not None:
            known.is_stale, known.tries, known.passed = True, 0, 0

    def merge(self, gone: int, into: int) -> None:
        """Carry over what is known of a phase that turned out to be another."""
        old = self._phases.pop(gone, None)
        if old is not None:
            known = self._phases.setdefault(into, _Phase())
            known.bursts.extendleft(reversed(old.bursts))
            known.tries += old.tries
            known.rate = self._clock.measure(tuple(known.bursts))
