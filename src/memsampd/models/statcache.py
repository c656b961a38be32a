"""StatCache: misses of caches with random replacement from reuse distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import size_in_lines
from memsampd.models.survival import SurvivalFunction

_MAX_STEPS = 200
_SHARP = 64  # distances below this are kept apart, and so many an octave above
_TOLERANCE = 1e-12


class StatCache:
    """Fully associative caches that replace at random (Berg and Hagersten, ISPASS 2004, sec. 3).

    With a miss ratio R, the d accesses between two touches of a line replace d*R lines at random,
    and the line survives each with 1 - 1/L. So R is the largest solution of
    ``R = sum of p_d * (1 - (1 - 1/L)**(d*R)) + S(infinity)``.

    ``high`` takes all of S(horizon) as never returning, ``low`` as returning at the horizon; what
    is beyond it matters less the smaller the cache, so the two part gradually. The estimate is
    ``high``: a share that was not seen to return is the only figure observed.
    """

    policy = "random"

    def curve(
        self, survival: SurvivalFunction, sizes_bytes: NDArray[np.int64], line_bytes: int = 64
    ) -> MissRatioCurve:
        """Model randomly replacing caches of these sizes.

        Args:
            survival: of the reuse distances in lines of ``line_bytes``.
            sizes_bytes: shape (s,), ascending.
            line_bytes: size of a line.

        Raises:
            UsageError: a size below one line, or sizes that do not ascend.
        """
        lines = size_in_lines(sizes_bytes, line_bytes)
        share, distance = _reuses(survival)
        beyond = survival.never_returned
        high = _solve(share, distance, beyond, lines, np.ones(len(lines)))
        low = high
        if beyond > 0:
            late_share = np.append(share, beyond)
            late_distance = np.append(distance, float(survival.horizon_accesses))
            low = np.minimum(_solve(late_share, late_distance, 0.0, lines, high), high)
        return MissRatioCurve(
            sizes_bytes=np.asarray(sizes_bytes, dtype=np.int64),
            miss_ratio=high,
            low=low,
            high=high,
            policy=self.policy,
            line_bytes=line_bytes,
            sampled_accesses=survival.sampled_accesses,
        )


def _reuses(survival: SurvivalFunction) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of accesses and their distances: each bin's in its middle (it is narrow: bins.py).

    Neighbours that are less than 1 % apart are taken together, for solving takes time in proportion
    to their number, and most bins hold a single distance.
    """
    share = survival.survival[:-1] - survival.survival[1:]
    middle = (survival.edges_accesses[:-1] + survival.edges_accesses[1:] - 1) / 2
    some = share > 0
    share, middle = share[some], middle[some]
    if not len(share):
        return share, middle
    log = _SHARP * (1 + np.log2(np.maximum(middle, 1) / _SHARP))
    group = np.floor(np.where(middle < _SHARP, middle, log))
    first = np.flatnonzero(np.diff(group, prepend=-1))
    together = np.add.reduceat(share, first)
    return together, np.add.reduceat(share * middle, first) / together


def _solve(
    share: NDArray[np.float64],
    distance: NDArray[np.float64],
    never: float,
    lines: NDArray[np.int64],
    start: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Solve for R at every size by Newton's method, from above: R = 1, or a known upper bound.

    f(R) = right side - R is concave and not above 0 at 1. To the right of its largest root it
    falls, so that Newton's steps come down to that root and never pass it: no bracket is needed.
    """
    # A cache of one line keeps it only over d = 0: a rate beyond every other stands for infinity.
    leave = np.full(len(lines), 1e30)
    leave[lines > 1] = -np.log1p(-1.0 / lines[lines > 1])
    terms = np.column_stack([share, share * distance])
    total = float(share.sum()) + never
    ratio = start.copy()
    left = np.arange(len(lines))  # sizes whose root is not reached yet
    for _ in range(_MAX_STEPS):
        pace = leave[left]
        stays = np.multiply.outer(-pace * ratio[left], distance)
        np.exp(stays, out=stays)
        staying, leaving = (stays @ terms).T
        value, slope = total - staying - ratio[left], pace * leaving - 1.0
        falling = (slope < 0) & (value < 0)  # else rounding: the root is reached
        step = np.divide(value, slope, out=np.zeros(len(left)), where=falling)
        is_far = step >= _TOLERANCE  # smaller ones are rounding: who begins at a root stays there
        left = left[is_far]
        if not len(left):
            break
        ratio[left] = np.maximum(ratio[left] - step[is_far], 0.0)
    return np.minimum.accumulate(ratio)
