"""How much two references of one program differ: one that is kept, and one made again."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference.metrics import cdf_error, whole_run_error
from reference.programs import Program
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

TOLERANCE_PERCENT = 0.02
"""What start-up may add up to in the errors below.

The same command in another folder, with another environment or kernel, has another stack and other
strings to read at start-up: the stack's frames lie otherwise on lines, which is seen in the
smallest caches. Between two folders and two environments, gzip's whole run differed by 0.0015 % in
the mean of the sizes, 0.011 % at 1 KiB, and by 3 thousand of 3 thousand million accesses.
"""
ACCESSES_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a reference made again is from the kept one.

    Attributes:
        same: not one count differs.
        accesses: relative difference of their number.
        whole_run: mean over sizes of the difference of the miss ratio, the larger of LRU and random
            replacement, in percent.
        windows: the same for the area between the distributions over windows, in percent.
    """

    same: bool
    accesses: float
    whole_run: float
    windows: float

    @property
    def tolerable(self) -> bool:
        """Whether start-up explains it."""
        return (
            self.accesses <= ACCESSES_TOLERANCE
            and max(self.whole_run, self.windows) <= TOLERANCE_PERCENT
        )


def compare(kept: Reference, again: Reference) -> Difference:
    """Compare two references of the same command."""
    sizes = len(ERROR_SIZES_BYTES)
    one, other = (
        [each.lru[:, :sizes] / each.accesses[:, None], each.random / each.accesses[:, None]]
        for each in (kept, again)
    )
    weights, weights_again = kept.accesses.astype(float), again.accesses.astype(float)
    return Difference(
        same=all(
            np.array_equal(getattr(kept, name), getattr(again, name))
            for name in ("accesses", "instructions", "lru", "lru_fine", "random", "reuses")
        ),
        accesses=abs(again.total_accesses / kept.total_accesses - 1),
        whole_run=max(
            whole_run_error(
                np.average(b, axis=0, weights=weights_again), np.average(a, axis=0, weights=weights)
            )
            for a, b in zip(one, other, strict=True)
        ),
        windows=max(
            cdf_error(b, weights_again, a, weights) for a, b in zip(one, other, strict=True)
        ),
    )


def due(programs: Sequence[Program], day: datetime.date) -> Program:
    """Return the program whose turn it is to be made again: another one every day."""
    return programs[day.toordinal() % len(programs)]
