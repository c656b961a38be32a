"""From the bursts of some windows of a phase to a curve for each of its windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memsampd.models.histogram import ReuseHistogram
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.survival import SurvivalFunction


def nearest(windows: ArrayLike, profiled: ArrayLike) -> NDArray[np.int64]:
    """Return for each window the profiled window that is nearest to it, the earlier of two.

    Args:
        windows: indices, shape (n,).
        profiled: indices, at least one, shape (m,).

    Returns:
        Shape (n,).

    Examples:
        >>> nearest([0, 3, 4, 9], [2, 6]).tolist()
        [2, 2, 2, 6]
    """
    at = np.asarray(windows, dtype=np.int64)
    known = np.unique(np.asarray(profiled, dtype=np.int64))
    after = np.clip(np.searchsorted(known, at), 0, len(known) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(
        np.abs(known[after] - at) < np.abs(at - known[before]), known[after], known[before]
    )


def burst_curves(
    histograms: Mapping[int, ReuseHistogram],
    model: CacheModel,
    sizes_bytes: NDArray[np.int64],
    line_bytes: int,
) -> dict[int, MissRatioCurve]:
    """Model the bursts of one phase, each by itself.

    Locality may change while the code stays the same: curves of different moments are modelled
    apart and averaged afterwards, for a cache model of mixed reuse distances speaks of a program
    that mixes them all the time. What a burst was too short to see, beyond its horizon, is taken
    from all bursts of the phase together.

    Args:
        histograms: of the bursts, by any key; none without accesses.
        model: the cache model.
        sizes_bytes: shape (s,), ascending.
        line_bytes: size of a line.

    Returns:
        The curve of each burst, in the order given.
    """
    pooled = SurvivalFunction.from_histogram(sum(histograms.values(), ReuseHistogram.empty()))
    return {
        key: model.curve(
            SurvivalFunction.from_histogram(histogram).continued_by(pooled), sizes_bytes, line_bytes
        )
        for key, histogram in histograms.items()
    }
