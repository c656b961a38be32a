"""From the curves of several phases to that of all of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.models.records import MissRatioCurve


def combine(parts: Iterable[tuple[float, MissRatioCurve | None]]) -> MissRatioCurve | None:
    """Return the curve of several phases together.

    A phase without a curve is not left out: nothing is known of its weight, so it adds 0 to
    ``low`` and 1 to ``high``, and the estimate takes it to be like the others on average.

    Args:
        parts: weight (accesses, or any measure in proportion to them) and curve of each phase;
            all curves of one policy, line size and set of sizes.

    Returns:
        The weighted curve, or None if no phase with a weight has a curve.

    Raises:
        UsageError: a negative weight, or curves that do not fit together.
    """
    weighted = [(float(weight), curve) for weight, curve in parts]
    if any(not (weight >= 0 and np.isfinite(weight)) for weight, _ in weighted):
        raise UsageError("a phase with a negative or infinite weight")
    known = [(weight, curve) for weight, curve in weighted if curve is not None and weight > 0]
    if not known:
        return None
    first = known[0][1]
    if not all(_alike(first, curve) for _, curve in known):
        raise UsageError("curves of different sizes, lines or policies", "combine like with like")
    total = sum(weight for weight, _ in weighted)
    known_weight = sum(weight for weight, _ in known)
    unknown_share = 1 - known_weight / total
    share = np.array([weight / known_weight for weight, _ in known])
    middle = _mean(share, [curve.miss_ratio for _, curve in known])
    low = _mean(share, [curve.low for _, curve in known]) * (1 - unknown_share)
    high = _mean(share, [curve.high for _, curve in known]) * (1 - unknown_share) + unknown_share
    return MissRatioCurve(
        sizes_bytes=first.sizes_bytes,
        miss_ratio=middle,
        low=np.minimum(low, middle),
        high=np.maximum(high, middle),
        policy=first.policy,
        line_bytes=first.line_bytes,
        sampled_accesses=sum(curve.sampled_accesses for _, curve in known),
    )


def _alike(one: MissRatioCurve, other: MissRatioCurve) -> bool:
    return (
        one.policy == other.policy
        and one.line_bytes == other.line_bytes
        and np.array_equal(one.sizes_bytes, other.sizes_bytes)
    )


def _mean(share: NDArray[np.float64], rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Weighted mean over phases, summed in one order for every size (so it stays monotone)."""
    total = np.zeros(len(rows[0]))
    for part, row in zip(share, rows, strict=True):
        total += part * row
    return np.clip(total, 0.0, 1.0)
