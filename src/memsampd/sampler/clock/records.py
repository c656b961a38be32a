"""What the access clock tells, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class TimedStretch:
    """So many accesses of the target took so much CPU time.

    Attributes:
        accesses: rows of a burst (one that crosses lines counts once).
        cpu_seconds: CPU time of the thread for them, without what the timing cost; time in the
            kernel counts.
        method: "arrivals", "held" or "replay".
        hits: how often the thread was interrupted for it.
        hit_seconds: CPU time that the thread lost by this.
        error: estimate of the relative standard error.
    """

    accesses: int
    cpu_seconds: float
    method: str
    hits: int
    hit_seconds: float
    error: float

    @property
    def accesses_per_cpu_second(self) -> float:
        """The rate."""
        return self.accesses / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class Untimed:
    """Why there is no :class:`TimedStretch`, and what the attempt cost.

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
