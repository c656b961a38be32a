"""Arithmetic on miss-ratio curves for showing them: thin them, read between the sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memsampd.models.records import MissRatioCurve

UNCERTAIN = 0.005  # bounds further apart than this are shown as such


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A curve at one size: estimate and bounds, misses per access."""

    miss_ratio: float
    low: float
    high: float

    @property
    def is_uncertain(self) -> bool:
        """Whether the bounds lie far apart."""
        return self.high - self.low > UNCERTAIN


def at_size(curve: MissRatioCurve, size_bytes: int) -> CurvePoint | None:
    """Read a curve between its sizes, linearly in the logarithm of the size.

    Returns:
        The point, or None outside of the curve's sizes.
    """
    sizes_bytes = curve.sizes_bytes
    if not len(sizes_bytes) or not sizes_bytes[0] <= size_bytes <= sizes_bytes[-1]:
        return None
    octaves = np.log2(sizes_bytes)
    values = (curve.miss_ratio, curve.low, curve.high)
    return CurvePoint(*(float(np.interp(np.log2(size_bytes), octaves, row)) for row in values))


def thin_curve(curve: MissRatioCurve, max_sizes: int) -> MissRatioCurve:
    """Keep at most so many sizes, evenly spread, the first and the last among them."""
    if len(curve.sizes_bytes) <= max_sizes:
        return curve
    keep = np.linspace(0, len(curve.sizes_bytes) - 1, max_sizes).round().astype(np.intp)
    return replace(
        curve,
        sizes_bytes=curve.sizes_bytes[keep],
        miss_ratio=curve.miss_ratio[keep],
        low=curve.low[keep],
        high=curve.high[keep],
    )
