"""Pieces of code: sets of instructions, as sorted addresses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_OFTEN = 0.01  # of the times of the instruction that was executed most often


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


def often_executed(
    code_ip: NDArray[np.uint64], code_times: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the loops of a burst: instructions that it executed often, ascending.

    Args:
        code_ip: instructions, shape (c,), some more than once.
        code_times: how often each was executed, shape (c,).
    """
    if not len(code_ip):
        return code_ip
    order = np.argsort(code_ip, kind="stable")
    ip = code_ip[order]
    first = np.flatnonzero(np.concatenate([[True], ip[1:] != ip[:-1]]))
    times = np.add.reduceat(code_times[order].astype(np.float64), first)
    return np.asarray(ip[first][times >= _OFTEN * times.max()])
