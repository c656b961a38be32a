"""Pieces of code: sets of instructions, as sorted addresses."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.generic)

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


def of_each(
    ip: NDArray[np.uint64], values: NDArray[_Value], combine: np.ufunc
) -> tuple[NDArray[np.uint64], NDArray[_Value]]:
    """Make one value of all those of an address.

    Args:
        ip: addresses, shape (n,), at least one.
        values: of each, shape (n,).
        combine: makes one of two.

    Returns:
        The addresses, each once, ascending, and their values.
    """
    order = np.argsort(ip, kind="stable")
    ip = ip[order]
    first = np.flatnonzero(np.concatenate([[True], ip[1:] != ip[:-1]]))
    return ip[first], combine.reduceat(values[order], first)


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
    ip, times = of_each(code_ip, code_times.astype(np.float64), np.add)
    return np.asarray(ip[times >= _OFTEN * times.max()])
