"""StatStack: misses of LRU caches from reuse distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import size_in_lines
from memsampd.models.stack_samples import REUSE_EDGES
from memsampd.models.survival import SurvivalFunction

_GROUP_EDGES = np.concatenate([[0], REUSE_EDGES])  # of reuses that are not looked at, too
# How the curve falls is seen from a quarter of the horizon on. Misses fall by the square root of
# the size on average (Hartstein et al., Computing Frontiers 2006: exponents of 0.3 to 0.7).
_USUAL_FALL = 0.5
_AS_BEFORE = 8  # times the largest size that the horizon tells; beyond, caches fall as usual


class StatStack:
    """Fully associative LRU caches (Eklov and Hagersten, ISPASS 2010, section III).

    Of the D accesses between two touches of a line, the one k before the end brings a line of its
    own into the stack distance if its line does not return within the k left, so the expected
    stack distance is ``ES(D) = sum of S(k) for k < D``. A cache of L lines misses if ES(d) >= L:
    its miss ratio is S(D*), D* the smallest D with ES(D) >= L.

    That takes accesses to be independent of each other, and reuses of like distance to have like
    stack distances. Where stack distances of a burst's reuses are known, those of n reuses of like
    distance tell instead which share of them misses, as if one more had the expected one.

    Sizes with L <= ES(horizon) are known: low, estimate and high are equal. Above, ``high`` is
    S(horizon), as if nothing more returned; ``low`` is 0, because all that returned just after
    the horizon would fit. (Both are more by what is known to return and miss.) The estimate there
    goes on as the curve fell over the two octaves of distance before the horizon, as a power of the
    size, no steeper than the square root rule of caches: a stream, of which nothing returned within
    them, stays at ``high``. Beyond eight times the size that the horizon tells it falls by that
    rule: working sets end.
    """

    policy = "lru"

    def curve(
        self, survival: SurvivalFunction, sizes_bytes: NDArray[np.int64], line_bytes: int = 64
    ) -> MissRatioCurve:
        """Model LRU caches of these sizes.

        Args:
            survival: of the reuse distances in lines of ``line_bytes``.
            sizes_bytes: shape (s,), ascending.
            line_bytes: size of a line.

        Raises:
            UsageError: a size below one line, or sizes that do not ascend.
        """
        lines = size_in_lines(sizes_bytes, line_bytes)
        stacks = survival.stacks
        found = _core.lru_returns(
            *survival.contiguous(),
            lines,
            _GROUP_EDGES,
            None if stacks is None else np.ascontiguousarray(stacks.reuse),
            None if stacks is None else np.ascontiguousarray(stacks.stack),
        )
        returned, known = np.frombuffer(found[0]), np.frombuffer(found[1], np.bool_)
        returned = np.minimum.accumulate(returned)
        high = np.minimum(returned + survival.never_returned, 1.0)
        late = survival.never_returned * np.where(known, 1.0, _still_missing(found[2], lines))
        return MissRatioCurve(
            sizes_bytes=np.asarray(sizes_bytes, dtype=np.int64),
            miss_ratio=np.minimum.accumulate(np.minimum(returned + late, high)),
            low=np.where(known, high, returned),
            high=high,
            policy=self.policy,
            line_bytes=line_bytes,
            sampled_accesses=survival.sampled_accesses,
        )


def seen_lines(survival: SurvivalFunction) -> float:
    """Return ES at the horizon: the largest cache that a burst tells misses of, lines."""
    nothing = np.empty(0, np.int64)
    fell = _core.lru_returns(*survival.contiguous(), nothing, _GROUP_EDGES, None, None)[2]
    return fell[1]


def _still_missing(
    fell: tuple[float, float, float, float], lines: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Share that is taken to miss of what did not return within the horizon, for larger caches.

    Args:
        fell: expected stack distances and S a quarter of the horizon from 0, and there.
        lines: sizes, shape (s,).
    """
    earlier, last, before, after = fell
    if after <= 0 or earlier <= 0:
        return np.ones(len(lines))
    grown, fallen = np.log(last) - np.log(earlier), np.log(before) - np.log(after)
    power = fallen / grown if fallen < _USUAL_FALL * grown else _USUAL_FALL
    larger = np.maximum(lines / last, 1.0)
    near = np.minimum(larger, _AS_BEFORE)
    return np.asarray(near**-power * (larger / near) ** -_USUAL_FALL)
