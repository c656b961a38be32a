"""Lines chosen by a hash of their number: each access to one of them is looked at, or none is."""

from __future__ import annotations

import random

import msgspec
import numpy as np
from numpy.typing import NDArray

_HASH_BITS = 16


class LineChoice(msgspec.Struct, frozen=True):
    """Which lines are looked at.

    Attributes:
        line_bytes: size of a line, a power of two.
        odd: the multiplier of the hash.
        below: of 65,536 parts of all lines so many are looked at.
    """

    line_bytes: int
    odd: int = 1
    below: int = 1 << _HASH_BITS

    @classmethod
    def of(cls, share: float, line_bytes: int, rng: random.Random) -> LineChoice:
        """Choose a share of the lines, others each time."""
        below = min(max(round(share * (1 << _HASH_BITS)), 1), 1 << _HASH_BITS)
        return cls(line_bytes, 2 * rng.getrandbits(62) + 1, below)

    @property
    def line_bits(self) -> int:
        """Binary logarithm of the size of a line."""
        return self.line_bytes.bit_length() - 1

    def has(self, address: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which addresses are in lines that are looked at, shape (n,)."""
        lines = address >> np.uint64(self.line_bits)
        part = (lines * np.uint64(self.odd)) >> np.uint64(64 - _HASH_BITS)
        return part < np.uint64(self.below)
