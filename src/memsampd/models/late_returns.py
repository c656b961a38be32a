"""How accesses go on beyond a burst's horizon: as in bursts of like code that saw further."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.survival import SurvivalFunction

# Steps of one access, and from 16 to 2**28 accesses four an octave.
_OCTAVES = np.round(2.0 ** (np.arange(4 * 4, 4 * 28 + 1) / 4)).astype(np.int64)
_EDGES = np.concatenate([np.arange(16), _OCTAVES])
# The accesses of a burst are alike: n of them count as n / (n + 20) of what a burst can tell.
_ALIKE = 20
_LEAST = 0.8  # bursts of the same code: fewer tell nothing


class LateReturns(msgspec.Struct, frozen=True, eq=False):
    """What a burst tells of accesses that return late.

    Attributes:
        returned: share that returned within a step of those that had not before, shape (steps,).
        count: what it counts at each step, 0 (it did not see as far) to 1, shape (steps,).
    """

    returned: NDArray[np.float64]
    count: NDArray[np.float64]

    @classmethod
    def of(cls, survival: SurvivalFunction) -> LateReturns:
        """Read them off a burst's survival function."""
        reached = survival(_EDGES)
        left, kept = reached[:-1], reached[1:]
        # Where everything returned nothing comes later.
        in_sight = (_EDGES[1:] <= survival.horizon_accesses) | (survival.never_returned == 0)
        returned = 1 - np.divide(kept, left, out=np.ones(len(left)), where=(left > 0) & in_sight)
        observable = np.maximum(survival.sampled_accesses - _EDGES[1:], 0)
        seen = np.where(in_sight, left * observable, 0.0)
        return cls(returned, seen / (seen + _ALIKE))


def continued(
    own: SurvivalFunction, others: Sequence[LateReturns], likeness: NDArray[np.float64]
) -> SurvivalFunction:
    """Go on beyond a burst's horizon as others went on from there.

    At each step the share of what was left that returns is the mean of theirs, weighted by
    likeness and by how many accesses they had left. It ends where nobody tells anything any more.

    Args:
        own: of a burst.
        others: bursts, m of them.
        likeness: of their code to the burst's, 0..1, shape (m,).
    """
    horizon = own.horizon_accesses
    first = int(np.searchsorted(_EDGES, horizon, side="right"))
    if not others or own.never_returned <= 0:
        return own
    counts = likeness[:, None] * np.array([each.count for each in others])[:, first - 1 :]
    told = counts.sum(axis=0)
    poor = np.flatnonzero(told < _LEAST)
    steps = int(poor[0]) if len(poor) else len(told)
    if not steps:
        return own
    returned = np.array([each.returned for each in others])[:, first - 1 : first - 1 + steps]
    hazard = (counts[:, :steps] * returned).sum(axis=0) / told[:steps]
    before, edges = _EDGES[first - 1], _EDGES[first : first + steps]
    if before < horizon:  # it is within a step
        hazard[0] *= np.log(edges[0] / horizon) / np.log(edges[0] / before)
    tail = own.never_returned * np.cumprod(np.clip(1 - hazard, 0.0, 1.0))
    return SurvivalFunction(
        np.concatenate([own.edges_accesses, edges]),
        np.concatenate([own.survival, tail]),
        own.sampled_accesses,
        own.stacks,
    )
