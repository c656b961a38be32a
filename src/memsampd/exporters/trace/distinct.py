"""Counting different numbers in little memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_KEPT = 1 << 20  # 8 MiB; estimates beyond have a standard error of 0.1 percent


class DistinctCounter:
    """Counts different numbers: exactly up to ``kept``, then by an estimate.

    The numbers are hashed one to one, and the ``kept`` smallest hashes remembered. Where the last
    of these stands among all possible ones tells how many there are (k minimum values; Bar-Yossef
    et al., RANDOM 2002; unbiased form: Beyer et al., SIGMOD 2007).

    Args:
        kept: how many to remember.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._hashes = np.empty(0, np.uint64)
        self.is_exact = True

    def add(self, numbers: NDArray[np.uint64]) -> None:
        """Count these, too."""
        hashes = _mix(numbers)
        if not self.is_exact:
            hashes = hashes[hashes <= self._hashes[-1]]
        hashes = np.union1d(self._hashes, hashes)
        if len(hashes) > self._kept:
            self.is_exact = False
        self._hashes = hashes[: self._kept]

    @property
    def count(self) -> int:
        """How many different ones there were; an estimate unless :attr:`is_exact`."""
        if self.is_exact:
            return len(self._hashes)
        return round((self._kept - 1) / ((int(self._hashes[-1]) + 1) / 2**64))

    def __str__(self) -> str:
        """The count, marked if it is an estimate."""
        return f"{self.count}" if self.is_exact else f"~{self.count}"


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of all 64-bit numbers that looks like chance (finish of splitmix64)."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
