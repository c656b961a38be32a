"""How far an estimate of a whole run is from the exact reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference.estimates import Estimate
from reference.metrics import Floats, cdf_error, whole_run_error
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

ROUNDING = 1e-8


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one estimate, in percent.

    Attributes:
        whole_run: of the miss ratio of the whole run, mean over sizes.
        cdf: of the distribution over windows, mean over sizes, the reference cut into windows as
            long as those of the estimate.
        fine_cdf: the same against the windows of the reference as they are kept.
    """

    whole_run: float
    cdf: float
    fine_cdf: float


def exact_windows(
    reference: Reference, policy: str, windows: int | None = None
) -> tuple[Floats, Floats]:
    """Return the exact miss ratios of windows and their accesses.

    Args:
        reference: the reference.
        policy: "lru" or "random".
        windows: about how many windows are wanted; as many as were kept if None.

    Returns:
        Miss ratios at ``ERROR_SIZES_BYTES``, shape (w, s), and accesses, shape (w,).
    """
    misses = reference.lru if policy == "lru" else reference.random
    misses, accesses = misses[:, : len(ERROR_SIZES_BYTES)], reference.accesses
    starts = _starts(len(accesses), windows or len(accesses))
    misses, accesses = np.add.reduceat(misses, starts, axis=0), np.add.reduceat(accesses, starts)
    return misses / accesses[:, None], accesses.astype(float)


def _starts(kept: int, wanted: int) -> NDArray[np.int64]:
    return np.arange(0, kept, max(1, round(kept / wanted)))


def exact_overall(reference: Reference, policy: str) -> Floats:
    """Return the exact miss ratio of the whole run at ``ERROR_SIZES_BYTES``, shape (s,)."""
    ratios, accesses = exact_windows(reference, policy)
    return np.asarray(np.average(ratios, axis=0, weights=accesses))


def judge(estimate: Estimate, reference: Reference, policy: str = "lru") -> Errors:
    """Compare an estimate with the reference."""
    coarse, coarse_weights = exact_windows(reference, policy, len(estimate.windows))
    fine, fine_weights = exact_windows(reference, policy)
    return Errors(
        whole_run=whole_run_error(estimate.overall, exact_overall(reference, policy)),
        cdf=cdf_error(estimate.windows, estimate.weights, coarse, coarse_weights),
        fine_cdf=cdf_error(estimate.windows, estimate.weights, fine, fine_weights),
    )


def flat_cdf(reference: Reference, policy: str, windows: int) -> float:
    """Return the CDF error of a flat line at the true mean, in percent.

    Args:
        reference: the reference.
        policy: "lru" or "random".
        windows: about how many windows the reference is cut into.
    """
    exact, weights = exact_windows(reference, policy, windows)
    mean = exact_overall(reference, policy)[None]
    return cdf_error(mean, np.ones(1), exact, weights)


def bounds_hold(low: Floats, high: Floats, exact: Floats) -> NDArray[np.bool_]:
    """Return at which sizes bounds hold the truth, but for the rounding of exports, shape (s,)."""
    return (low - ROUNDING <= exact) & (exact <= high + ROUNDING)
