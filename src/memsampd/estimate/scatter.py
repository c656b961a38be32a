"""How much the bursts of a phase differ, in what they mean for the curve of the whole run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Sizes at which bursts leave open so much of the miss ratio, on average, do not count: further
# bursts of the same length would tell no more.
_WIDE_BAND = 0.1


def phase_scatter(
    phases: NDArray[np.int64],
    bursts: NDArray[np.float64],
    rates: NDArray[np.float64],
    ratios: NDArray[np.float64],
    widths: NDArray[np.float64],
    overall: NDArray[np.float64],
) -> dict[int, float]:
    """Standard deviation of the bursts of each phase, as if it had one more of the usual kind.

    The miss ratio of the whole run is a ratio of sums: misses over accesses. A CPU second for which
    a burst speaks moves it in proportion to rate * (miss ratio of the burst - that of the whole
    run). Of that the deviation is told, the root of its mean square over sizes.

    Args:
        phases: of bursts that are remembered, shape (m,).
        bursts: how many each stands for, shape (m,).
        rates: accesses per CPU second, shape (m,).
        ratios: miss ratios, shape (m, s).
        widths: of their bounds, shape (m, s).
        overall: miss ratios of the whole run, shape (s,).

    Returns:
        By phase; empty as long as no phase has two bursts.
    """
    told = widths.mean(axis=0) < _WIDE_BAND
    moves = rates[:, None] * (ratios - overall)[:, told]
    squares, pairs = {}, {}
    for phase in sorted(set(phases.tolist())):
        rows = phases == phase
        weights, own = bursts[rows], moves[rows]
        apart = weights @ (own - weights @ own / weights.sum()) ** 2
        squares[phase] = float(apart.mean()) if len(apart) else 0.0
        pairs[phase] = int(rows.sum()) - 1
    if not any(pairs.values()):
        return {}
    usual = sum(squares.values()) / sum(pairs.values())
    return {phase: float(np.sqrt((squares[phase] + usual) / (pairs[phase] + 1))) for phase in pairs}


def phase_bands(
    phases: NDArray[np.int64], bursts: NDArray[np.float64], widths: NDArray[np.float64]
) -> dict[int, float]:
    """Width of the bounds of each phase's miss ratios, mean over sizes and bursts.

    Args:
        phases: of bursts that are remembered, shape (m,).
        bursts: how many each stands for, shape (m,).
        widths: of the bounds of their miss ratios, shape (m, s).
    """
    width = widths.mean(axis=1)
    return {
        phase: float(bursts[rows] @ width[rows] / bursts[rows].sum())
        for phase in sorted(set(phases.tolist()))
        for rows in [phases == phase]
    }
