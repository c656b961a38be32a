"""StatStack: misses of LRU caches from reuse distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import size_in_lines
from memsampd.models.stack_samples import REUSE_EDGES, StackSamples
from memsampd.models.survival import SurvivalFunction

_ROUNDING = 1e-9  # relative; sums of products of ratios must not turn a hit into a miss
# How the curve falls is seen from a quarter of the horizon on. Misses fall by the square root of
# the size on average (Hartstein et al., Computing Frontiers 2006: exponents of 0.3 to 0.7).
_SEEN_FROM = 1 / 4
_GROUP_EDGES = np.concatenate([[0], REUSE_EDGES])  # of reuses that are not looked at, too
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
        stack = expected_stack_distances(survival)
        distance, known = _solve(survival, stack, lines)
        returned = np.maximum(survival(distance) - survival.never_returned, 0.0)
        if survival.stacks is not None:
            returned = _by_samples(survival, survival.stacks, lines, distance)
        returned = np.minimum.accumulate(returned)
        high = np.minimum(returned + survival.never_returned, 1.0)
        late = survival.never_returned * np.where(
            known, 1.0, _still_missing(survival, stack, lines)
        )
        return MissRatioCurve(
            sizes_bytes=np.asarray(sizes_bytes, dtype=np.int64),
            miss_ratio=np.minimum.accumulate(np.minimum(returned + late, high)),
            low=np.where(known, high, returned),
            high=high,
            policy=self.policy,
            line_bytes=line_bytes,
            sampled_accesses=survival.sampled_accesses,
        )


def expected_stack_distances(survival: SurvivalFunction) -> NDArray[np.float64]:
    """Return ES at the edges of a survival function, shape (m + 1,), lines."""
    edges = survival.edges_accesses
    width = edges[1:] - edges[:-1]
    start, end = survival.survival[:-1], survival.survival[1:]
    # The sum of a linear S over the integers of a bin, its end excluded.
    within = width * start + (end - start) * (width - 1) / 2
    stack = np.zeros(len(edges))
    np.cumsum(within, out=stack[1:])
    return stack


def _still_missing(
    survival: SurvivalFunction, stack: NDArray[np.float64], lines: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Share that is taken to miss of what did not return within the horizon, for larger caches."""
    distances = survival.horizon_accesses * np.array([_SEEN_FROM, 1.0])
    earlier, last = np.interp(distances, survival.edges_accesses, stack)
    before, after = survival(distances)
    if after <= 0 or earlier <= 0:
        return np.ones(len(lines))
    grown, fallen = np.log(last) - np.log(earlier), np.log(before) - np.log(after)
    power = fallen / grown if fallen < _USUAL_FALL * grown else _USUAL_FALL
    larger = np.maximum(lines / last, 1.0)
    near = np.minimum(larger, _AS_BEFORE)
    return np.asarray(near**-power * (larger / near) ** -_USUAL_FALL)


def _solve(
    survival: SurvivalFunction, stack: NDArray[np.float64], lines: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """D* for each size, the horizon where it is beyond that, and whether it lies within."""
    wanted = lines * (1 - _ROUNDING)
    reached = np.searchsorted(stack, wanted, side="left")
    known = reached < len(stack)
    distance = np.full(len(lines), float(survival.horizon_accesses))
    segment = reached[known] - 1
    start, end = survival.survival[segment], survival.survival[segment + 1]
    width = survival.edges_accesses[segment + 1] - survival.edges_accesses[segment]
    slope = (end - start) / width
    # Inside the bin ES grows by x * S(start) + slope * x * (x - 1) / 2: the first x that is enough.
    missing = wanted[known] - stack[segment]
    linear = start - slope / 2
    root = np.sqrt(np.maximum(linear**2 + 2 * slope * missing, 0))
    steps = np.ceil(2 * missing / (linear + root) - _ROUNDING)
    steps = np.minimum(np.maximum(steps, 1), width)
    distance[known] = survival.edges_accesses[segment] + steps
    return distance, known


def _by_samples(
    survival: SurvivalFunction,
    stacks: StackSamples,
    lines: NDArray[np.int64],
    distance: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Share of the accesses that return within the horizon and miss, for each size."""
    edges = np.minimum(_GROUP_EDGES, survival.horizon_accesses)
    reached = survival(edges)
    seen, missed = np.zeros((len(REUSE_EDGES), 1)), np.zeros((len(REUSE_EDGES), len(lines)))
    seen[1:, 0], missed[1:] = stacks.counts(), stacks.reaching(lines)
    # S at the place in the group that is next to the distance.
    nearest = np.maximum(np.minimum(survival(distance), reached[:-1, None]), reached[1:, None])
    expected = nearest - reached[1:, None]
    returned = (reached[:-1] - reached[1:])[:, None]
    by_group = (missed * returned + expected) / (seen + 1)
    beyond = survival(np.maximum(distance, edges[-1])) - survival.never_returned
    return np.asarray(by_group.sum(axis=0) + beyond)
