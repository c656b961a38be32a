"""Arithmetic on miss-ratio curves for showing them: thin them, read between the sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve

# Bounds are shown where they lie further apart than this share of the value, and than so much.
_UNCERTAIN_SHARE = 0.1
_UNCERTAIN = 0.0005


class CurvePoint(msgspec.Struct, frozen=True):
    """A curve at one size: estimate and bounds, misses per access."""

    miss_ratio: float
    low: float
    high: float

    @property
    def is_uncertain(self) -> bool:
        """Whether the bounds lie far apart."""
        return self.high - self.low > max(_UNCERTAIN_SHARE * self.miss_ratio, _UNCERTAIN)


def at_size(curve: MissRatioCurve, size_bytes: int) -> CurvePoint | None:
    """Read a curve between its sizes, linearly in the logarithm of the size.

    Returns:
        The point, or None outside of the curve's sizes.
    """
    sizes_bytes = curve.sizes_bytes
    if not len(sizes_bytes) or not sizes_bytes[0] <= size_bytes <= sizes_bytes[-1]:
        return None
    values = (curve.miss_ratio, curve.low, curve.high)
    at = int(np.searchsorted(sizes_bytes, size_bytes))
    if sizes_bytes[at] == size_bytes:  # as it is with this machine's caches
        return CurvePoint(*(float(row[at]) for row in values))
    octaves = np.log2(sizes_bytes)
    return CurvePoint(*(float(np.interp(np.log2(size_bytes), octaves, row)) for row in values))


def shown_sizes(sizes: int, max_sizes: int) -> NDArray[np.intp]:
    """Return which of so many sizes are shown: evenly spread, the first and the last included."""
    return np.linspace(0, sizes - 1, min(sizes, max_sizes)).round().astype(np.intp)


def thin_curve(curve: MissRatioCurve, max_sizes: int) -> MissRatioCurve:
    """Keep at most so many sizes, evenly spread, the first and the last among them."""
    if len(curve.sizes_bytes) <= max_sizes:
        return curve
    keep = shown_sizes(len(curve.sizes_bytes), max_sizes)
    return replace(
        curve,
        sizes_bytes=curve.sizes_bytes[keep],
        miss_ratio=curve.miss_ratio[keep],
        low=curve.low[keep],
        high=curve.high[keep],
    )


def fills(
    curve: MissRatioCurve | None, rate: float | None, cache_sizes_bytes: Mapping[str, int]
) -> Iterator[tuple[str, float]]:
    """Yield each level with the bytes that a cache of its size fetches in a CPU second."""
    if curve is None or rate is None:
        return
    for level, size_bytes in cache_sizes_bytes.items():
        point = at_size(curve, size_bytes)
        if point is not None:
            yield level, rate * point.miss_ratio * curve.line_bytes
