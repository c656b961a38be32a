"""How far an estimate of a whole run is from the exact reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference.metrics import Floats, cdf_error, whole_run_error
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

ROUNDING = 1e-8


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one estimate, in percent.

    Attributes:
        whole_run: of the miss ratio of the whole run, mean over sizes.
        cdf: of the distribution over windows, mean over sizes.
        flat_cdf: the same of a flat line at the true mean of each size.
    """

    whole_run: float
    cdf: float
    flat_cdf: float


def exact_misses(reference: Reference, policy: str = "lru") -> NDArray[np.int64]:
    """Return the exact misses of the reference's windows at ``ERROR_SIZES_BYTES``, shape (w, s)."""
    misses = reference.lru if policy == "lru" else reference.random
    return misses[:, : len(ERROR_SIZES_BYTES)]


def exact_overall(reference: Reference, policy: str = "lru") -> Floats:
    """Return the exact miss ratio of the whole run at ``ERROR_SIZES_BYTES``, shape (s,)."""
    return np.asarray(exact_misses(reference, policy).sum(axis=0) / reference.total_accesses)


def exact_pieces(
    reference: Reference, bounds: Floats, policy: str = "lru"
) -> tuple[Floats, Floats]:
    """Return accesses, shape (w,), and misses, shape (w, s), between some moments.

    Args:
        reference: the reference.
        bounds: accesses made by then, ascending, shape (w + 1,).
        policy: "lru" or "random".
    """
    made = np.concatenate([[0], np.cumsum(reference.accesses)])
    missed = np.cumsum(exact_misses(reference, policy), axis=0)
    columns = np.vstack([np.zeros((1, missed.shape[1])), missed]).T
    return np.diff(bounds), np.diff([np.interp(bounds, made, each) for each in columns], axis=1).T


def judge(
    overall: Floats,
    windows: Floats,
    accesses: Floats,
    reference: Reference,
    policy: str = "lru",
) -> Errors:
    """Compare an estimate with the reference.

    Windows are equally long in time, not in accesses: the reference is cut where the estimate says
    that so much of all accesses was made.

    Args:
        overall: miss ratio of the whole run at ``ERROR_SIZES_BYTES``, shape (s,).
        windows: of each window, shape (w, s).
        accesses: of each window, in any unit, shape (w,).
        reference: the reference.
        policy: "lru" or "random".
    """
    made = np.concatenate([[0.0], np.cumsum(accesses) / accesses.sum()])
    weights, misses = exact_pieces(reference, made * reference.total_accesses, policy)
    counts = weights > 0
    exact, weights = misses[counts] / weights[counts, None], weights[counts]
    mean = exact_overall(reference, policy)
    return Errors(
        whole_run=whole_run_error(overall, mean),
        cdf=cdf_error(windows, accesses, exact, weights),
        flat_cdf=cdf_error(mean[None], np.ones(1), exact, weights),
    )


def bounds_hold(low: Floats, high: Floats, exact: Floats) -> NDArray[np.bool_]:
    """Return at which sizes bounds hold the truth, but for the rounding of exports, shape (s,)."""
    return (low - ROUNDING <= exact) & (exact <= high + ROUNDING)
