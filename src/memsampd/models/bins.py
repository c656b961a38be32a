"""The one layout of bins for reuse distances, shared by every histogram and recording.

Exact integers up to 4095, then 16 bins of equal width an octave, up to 2**40 accesses: no bin is
wider than 1/16 of the distances in it. The native core owns the constants.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memsampd import _core

BINS = _core.REUSE_BINS
EXACT_LIMIT = 1 << _core.REUSE_EXACT_BITS
"""Distances below this have a bin of their own."""
DISTANCE_LIMIT = 1 << _core.REUSE_LIMIT_BITS
"""Distances from here on are counted in the last bin."""
BINS_PER_OCTAVE = 1 << _core.REUSE_OCTAVE_BITS


def _edges() -> NDArray[np.int64]:
    exact = np.arange(EXACT_LIMIT, dtype=np.int64)
    octaves = np.arange(_core.REUSE_EXACT_BITS, _core.REUSE_LIMIT_BITS, dtype=np.int64)
    parts = np.arange(BINS_PER_OCTAVE, 2 * BINS_PER_OCTAVE, dtype=np.int64)
    log = parts[None, :] << (octaves[:, None] - _core.REUSE_OCTAVE_BITS)
    edges = np.concatenate([exact, log.ravel(), [DISTANCE_LIMIT]])
    edges.flags.writeable = False
    return edges


EDGES = _edges()
"""Bin b holds the distances EDGES[b] <= d < EDGES[b + 1]; shape (BINS + 1,), int64, accesses."""


def bin_of(distances: ArrayLike) -> NDArray[np.int64]:
    """Return the bin of each distance.

    Args:
        distances: accesses, not negative, any shape.

    Returns:
        Bins, int64, of the same shape.
    """
    found = np.searchsorted(EDGES, np.asarray(distances, dtype=np.int64), side="right") - 1
    return np.asarray(np.minimum(found, BINS - 1), dtype=np.int64)
