"""What the access clock is told, and what it says where it tells no time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive accesses of one thread, in program order.

    Attributes:
        ip: address of the instruction, shape (n,), uint64.
        address: first byte referenced, shape (n,), uint64.
        size_bytes: bytes referenced, shape (n,), uint16.
    """

    ip: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.ip)

    def first(self, count: int) -> Rows:
        """Return the first rows, at most so many."""
        return Rows(self.ip[:count], self.address[:count], self.size_bytes[:count])


def each_once(values: NDArray[Any]) -> NDArray[Any]:
    """Return what occurs, ascending, each value once: without numpy.ma, which np.unique imports.

    Args:
        values: shape (n,).
    """
    values = np.sort(values)
    is_first = np.append(np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1])
    return np.asarray(values[is_first])


@dataclass(frozen=True, slots=True)
class Untimed:
    """Why there is no :class:`~memsampd.sampler.records.TimedStretch`, and what the attempt cost.

    Attributes:
        reason: short, stable name for counting ("few-hits", "order", ...).
        detail: for people.
        hits: how often the thread was interrupted in vain.
        hit_seconds: CPU time that it lost by this.
    """

    reason: str
    detail: str
    hits: int = 0
    hit_seconds: float = 0.0
