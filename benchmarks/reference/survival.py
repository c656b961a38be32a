"""Survival functions of reuse distances from what references keep: exact, and whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.models.survival import SurvivalFunction
from reference.windows import REUSE_EDGES


def survival_of(reuses: NDArray[np.int64], cold: int) -> SurvivalFunction:
    """Return the survival function that sampling of these accesses without end would find.

    Args:
        reuses: accesses by reuse distance, of one window or summed over some, shape (r,); see
            :class:`reference.store.Reference`.
        cold: first touches among the accesses, whose distance is infinite.

    Raises:
        ValueError: there are no accesses.
    """
    total = int(reuses.sum()) + cold
    if not total:
        raise ValueError("no accesses")
    farthest = np.flatnonzero(reuses)
    end = int(farthest[-1]) + 1 if len(farthest) else 0
    longer = total - np.concatenate([[0], np.cumsum(reuses[:end])])
    return SurvivalFunction(REUSE_EDGES[: end + 1], longer / total, total)
