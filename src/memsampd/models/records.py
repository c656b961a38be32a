"""What crosses the seam between the models and what shows their results."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class MissRatioCurve(msgspec.Struct, frozen=True):
    """Misses per access against cache size, with what the samples cannot tell.

    Attributes:
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
        miss_ratio: best estimate, shape (s,), float64, 0..1, non-increasing.
        low: the miss ratio if all that was censored returned just after the horizon, shape (s,).
        high: the miss ratio if none of it ever returned, shape (s,).
        policy: "lru" or "random".
        line_bytes: size of a line.
        sampled_accesses: accesses behind the estimate.
    """

    sizes_bytes: NDArray[np.int64]
    miss_ratio: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    policy: str
    line_bytes: int
    sampled_accesses: int
