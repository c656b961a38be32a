"""Of which code it is known how fast it runs: it need not be timed whenever it is observed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.shadow.familiar import piece_of, pieces_of

_PIECES_MAXIMUM = 1 << 18
_MEASUREMENTS = 3
_SPREAD = 1.25  # the largest of so many rates by the least
# Times that what is known is relied upon before it is measured again: where it is ever the same,
# and where it is not.
_PASSED_SETTLED, _PASSED_OTHERS = 8, 3


class SettledRates:
    """Remembers the last rates measured of each piece of code, 64 bytes long.

    Code that reads and writes ever the same way has ever the same rate: it is settled. Where that
    hangs on the data, it is measured more often.
    """

    def __init__(self) -> None:
        self._rates: dict[int, tuple[float, ...]] = {}
        self._passed: dict[int, int] = {}

    def add(self, ips: NDArray[np.uint64], rate: float) -> None:
        """Remember what was measured of some instructions, shape (n,)."""
        if len(self._rates) > _PIECES_MAXIMUM:
            self._rates.clear()
            self._passed.clear()
        for piece in pieces_of(ips):
            self._rates[piece] = (*self._rates.get(piece, ()), rate)[-_MEASUREMENTS:]
            self._passed.pop(piece, None)

    def knows(self, ip: int) -> bool:
        """Whether the code at this address need not be measured now."""
        piece = piece_of(ip)
        rates = self._rates.get(piece, ())
        if len(rates) < _MEASUREMENTS:
            return False
        is_settled = max(rates) <= _SPREAD * min(rates)
        passed = self._passed[piece] = self._passed.get(piece, 0) + 1
        return passed <= (_PASSED_SETTLED if is_settled else _PASSED_OTHERS)
