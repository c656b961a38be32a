"""Which code bursts have shown already."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PIECE_BITS = 6
_PIECES_MAXIMUM = 1 << 20


def piece_of(ip: int) -> int:
    """The piece of code that an instruction lies in."""
    return ip >> _PIECE_BITS


def pieces_of(ips: NDArray[np.uint64]) -> list[int]:
    """The pieces that instructions, shape (n,), lie in, each once."""
    return [int(piece) for piece in np.unique(ips >> np.uint64(_PIECE_BITS))]


class FamiliarCode:
    """Remembers code, in pieces of 64 bytes; a million of them, and then begins anew."""

    def __init__(self) -> None:
        self._pieces: set[int] = set()

    def add(self, ips: NDArray[np.uint64]) -> None:
        """Remember instructions, shape (n,)."""
        if len(self._pieces) > _PIECES_MAXIMUM:
            self._pieces.clear()
        self._pieces.update(pieces_of(ips))

    def knows(self, ip: int) -> bool:
        """Whether an instruction at this address, or next to it, was seen."""
        return piece_of(ip) in self._pieces
