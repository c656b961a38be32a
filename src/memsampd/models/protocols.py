"""The seam of the cache models."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve
from memsampd.models.survival import SurvivalFunction


@runtime_checkable
class CacheModel(Protocol):
    """From the distribution of reuse distances to misses at every size.

    Contract: the curve lies in 0..1, does not rise with size, ``low <= miss_ratio <= high``
    everywhere, and where nothing is censored the three are equal.
    """

    policy: str

    def curve(
        self, survival: SurvivalFunction, sizes_bytes: NDArray[np.int64], line_bytes: int = 64
    ) -> MissRatioCurve:
        """Model caches of these sizes."""
