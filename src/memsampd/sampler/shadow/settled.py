"""Of which code it is known how fast it runs: it need not be timed whenever it is observed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PIECE_BITS = 6
_PIECES_MAXIMUM = 1 << 18
_MEASUREMENTS = 3
_SPREAD = 1.25  # the largest of so many rates by the least
_PASSED = 8  # times that it is relied upon before it is measured again


class SettledRates:
    """Remembers the last rates measured of each piece of code, 64 bytes long.

    Code that reads and writes ever the same way has ever the same rate; where that hangs on the
    data, it is never settled, and measured each time.
    """

    def __init__(self) -> None:
        self._rates: dict[int, tuple[float, ...]] = {}
        self._passed: dict[int, int] = {}

    def add(self, ips: NDArray[np.uint64], rate: float) -> None:
        """Remember what was measured of some instructions, shape (n,)."""
        if len(self._rates) > _PIECES_MAXIMUM:
            self._rates.clear()
            self._passed.clear()
        for piece in np.unique(ips >> np.uint64(_PIECE_BITS)).tolist():
            self._rates[piece] = (*self._rates.get(piece, ()), rate)[-_MEASUREMENTS:]
            self._passed.pop(piece, None)

    def knows(self, ip: int) -> bool:
        """Whether the code at this address need not be measured now."""
        piece = ip >> _PIECE_BITS
        rates = self._rates.get(piece, ())
        if len(rates) < _MEASUREMENTS or max(rates) > _SPREAD * min(rates):
            return False
        passed = self._passed[piece] = self._passed.get(piece, 0) + 1
        if passed > _PASSED:
            self._passed[piece] = 0
        return passed <= _PASSED
