"""Code whose registers are known to advance steadily: it is timed wherever samples find it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.sampler.clock.code import likeness, of_each
from memsampd.sampler.clock.fitted import agreed_rate
from memsampd.sampler.clock.odometer import Odometer, Pairs, SteadyRate, steady_rate
from memsampd.sampler.rates import CodeRate, Stretch

NO_CODE = -1
"""Id of code that is not known."""
_CODES = 32
_SAME_CODE = 0.8  # of the instructions
_SAME_PACE = 0.15
_FAR_APART = math.log(3)  # of what two odometers say of the same samples: one of them is wrong
_OTHER_SPEED = 4.0  # by what other working sets may leave the limits of a burst
_WINDOW_PAIRS_LEAST = 3


class SteadyCode(msgspec.Struct):
    """Code of which some registers are known to advance steadily.

    Attributes:
        id: its id.
        code_ip: its instructions.
        odometer: its registers.
        limits: rates that are possible.
        begins_anew: so often between two samples that not nearly all pairs of these agree.
        accesses: of the bursts that agree.
        steps: that the odometer made in these.
        bursts: how many agree.
        is_disputed: another burst of like code says otherwise: a step may be much work or little.
    """

    id: int
    code_ip: NDArray[np.uint64]
    odometer: Odometer
    limits: tuple[float, float]
    accesses: float
    steps: float
    begins_anew: bool = False
    bursts: int = 1
    is_disputed: bool = False

    @property
    def is_believed(self) -> bool:
        """Whether windows may be timed by it."""
        return self.bursts > 1 or not self.is_disputed

    def confirm(self, accesses: float, steps: float) -> None:
        """Learn from another burst how many accesses a step is."""
        self.bursts += 1
        self.accesses += accesses
        self.steps += steps
        self.odometer = replace(self.odometer, accesses_per_step=self.accesses / self.steps)


class SteadyCodes:
    """Remembers the latest code that bursts told an odometer of."""

    def __init__(self) -> None:
        self._codes: list[SteadyCode] = []
        self._next_code = 0
        # Instructions of all of these, ascending, and of which: a bit for each of them.
        self._any_ip = np.empty(0, np.uint64)
        self._whose = np.empty(0, np.uint64)

    @property
    def is_any_believed(self) -> bool:
        """Whether windows may be timed by any."""
        return any(code.is_believed for code in self._codes)

    def rates(self, pairs: Pairs) -> Iterator[CodeRate]:
        """How fast believed code went by pairs of samples, where these tell."""
        stayed = self._codes_of(pairs.first_ip) & self._codes_of(pairs.second_ip)
        met = int(np.bitwise_or.reduce(stayed))
        for at, code in enumerate(self._codes):
            if code.is_believed and met >> at & 1:
                inside = pairs.chosen(np.flatnonzero(stayed & np.uint64(1 << at)))
                yield from _rate(code, inside)

    def like(self, stretch: Stretch) -> Iterator[SteadyCode]:
        """The same code as a burst's, as far as known."""
        for known in self._codes:
            if likeness(known.code_ip, stretch.code_ip) >= _SAME_CODE:
                yield known

    def known(self, stretch: Stretch) -> Iterator[tuple[SteadyCode, float]]:
        """The same code, as far as known, whose odometer fits a burst, and its steps in that."""
        for known in self.like(stretch):
            steps = float(known.odometer.steps(stretch.advance[-1]))
            told = steps * known.odometer.accesses_per_step
            if abs(told / stretch.accesses[-1] - 1) < _SAME_PACE:
                yield known, steps

    def known_better(
        self, stretch: Stretch, rate: SteadyRate, pairs: Pairs
    ) -> tuple[int, SteadyRate] | None:
        """What a known odometer of the same code says, if it is far from a rate, and likelier.

        A burst that went on with what the target had changed meanwhile does as much, but other
        work: some registers then advance too little in it.
        """
        for known in self.like(stretch):
            other = steady_rate(known.odometer.rates(pairs), stretch.limits)
            if other is None:
                continue
            told, known_told = (
                math.log(each.accesses_per_second / stretch.modelled) for each in (rate, other)
            )
            if abs(told - known_told) > _FAR_APART:
                if abs(known_told) < abs(told):
                    return known.id, other
                known.bursts = 1  # it has to be confirmed anew
        return None

    def learn(
        self,
        stretch: Stretch,
        odometer: Odometer,
        possible: tuple[float, float],
        *,
        begins_anew: bool = False,
    ) -> int:
        """Remember the code of a burst.

        Args:
            stretch: what the burst tells.
            odometer: registers that advance steadily in it.
            possible: what its code may do at all, in accesses a second.
            begins_anew: see :class:`SteadyCode`.

        Returns:
            Its id.
        """
        low, high = possible
        limits = possible if begins_anew else (low / _OTHER_SPEED, high * _OTHER_SPEED)
        accesses = float(stretch.accesses[-1])
        steps = accesses / odometer.accesses_per_step
        new = SteadyCode(
            self._next_code, stretch.code_ip, odometer, limits, accesses, steps, begins_anew
        )
        for known in self.like(stretch):
            known.is_disputed = new.is_disputed = True
        self._codes.append(new)
        self._codes = self._codes[-_CODES:]
        self._next_code += 1
        self._tell_apart()
        return self._next_code - 1

    def _tell_apart(self) -> None:
        """Note which instructions are of which code."""
        ip = np.concatenate([code.code_ip for code in self._codes])
        bits = [1 << at for at in range(len(self._codes))]
        sizes = [len(code.code_ip) for code in self._codes]
        whose = np.repeat(np.array(bits, np.uint64), sizes)
        self._any_ip, self._whose = of_each(ip, whose, np.bitwise_or)

    def _codes_of(self, ip: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Known code that each address is of, a bit for each, shape (n,)."""
        at = np.minimum(self._any_ip.searchsorted(ip), len(self._any_ip) - 1)
        return np.asarray(self._whose[at] * (self._any_ip[at] == ip))


def _rate(code: SteadyCode, pairs: Pairs) -> Iterator[CodeRate]:
    """How fast code went by pairs of samples in it; nothing where these do not tell."""
    speed = code.odometer.rates(pairs)
    if len(speed) >= _WINDOW_PAIRS_LEAST:
        told = agreed_rate if code.begins_anew else steady_rate
        rate = told(speed, code.limits)
        if rate is not None:
            yield CodeRate(code.id, rate.accesses_per_second, len(speed))
