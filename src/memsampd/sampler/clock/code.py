"""Pieces of code: sets of instructions, as sorted addresses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def is_in(ip: NDArray[np.uint64], code_ip: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each address is one of some code, shape (n,).

    Args:
        ip: addresses, shape (n,).
        code_ip: instructions, shape (c,), ascending, at least one.
    """
    at = np.minimum(code_ip.searchsorted(ip), len(code_ip) - 1)
    return np.asarray(code_ip[at] == ip)


def likeness(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Instructions that two pieces of code share, of those of both, 0..1."""
    both = int(is_in(one, other).sum())
    return both / (len(one) + len(other) - both)
