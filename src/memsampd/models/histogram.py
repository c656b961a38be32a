"""Reuse distances of bursts, counted."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.bins import BINS
from memsampd.models.stack_samples import StackSamples


class ReuseHistogram(msgspec.Struct, frozen=True, eq=False):
    """What bursts showed of the reuse distances of their accesses.

    Access t (0-based) of a burst of N can see as far as c = N-1-t. If its line returns at
    distance d (the accesses strictly between), it is a reuse in the bin of d; if it does not, it
    is censored in the bin of c: all that is known is that d >= c. A reuse whose d lies in the same
    bin as c is counted as censored as well: from there the bin could be seen only in part, and
    counting the lucky ones would bias the survival function.

    Distances below ``bins.EXACT_LIMIT`` are those of all accesses, and so is the number of all
    others. How these are distributed over the bins beyond is known of all of them while their lines
    are few; else it is estimated from those of a sample of the lines, chosen by a hash, as the
    cost of a burst would else grow with its lines. Bursts of a program choose different lines.

    Histograms of several bursts add up to that of all of them.

    Attributes:
        reuses: accesses seen to return, by bin of their distance, shape (BINS,), int64.
        censored: accesses not seen to return, by bin of what they could see, shape (BINS,), int64.
        stacks: stack distances of some of the reuses; None where nobody looked. They are those of
            one burst: a sum of histograms has none.
        scattered: accesses to lines that had not been accessed within ``bins.EXACT_LIMIT`` others,
            or never, and that were not beside the latest ones of these: nothing tells beforehand
            that they come, so they have to be waited for. They are those of one burst, too.
    """

    reuses: NDArray[np.int64]
    censored: NDArray[np.int64]
    stacks: StackSamples | None = None
    scattered: int = 0

    def __post_init__(self) -> None:
        if self.reuses.shape != (BINS,) or self.censored.shape != (BINS,):
            raise ValueError(f"a reuse histogram has {BINS} bins")

    @classmethod
    def empty(cls) -> ReuseHistogram:
        """Return the histogram of no accesses."""
        return cls(np.zeros(BINS, np.int64), np.zeros(BINS, np.int64))

    @classmethod
    def from_lines(cls, lines: NDArray[np.uint64]) -> ReuseHistogram:
        """Count one burst.

        Args:
            lines: line numbers in program order, shape (n,).

        Raises:
            ValueError: a line number from 2**58 on, which no address has.
        """
        if len(lines) and int(np.max(lines)) >> _core.LINE_BITS:
            raise ValueError(f"a line number from 2**{_core.LINE_BITS} on")
        counter = _core.ReuseCounter()
        counter.add(np.ascontiguousarray(lines, dtype=np.uint64))
        return cls.from_counter(counter)

    @classmethod
    def from_counter(cls, counter: _core.ReuseCounter) -> ReuseHistogram:
        """Return what a native counter has counted of a burst."""
        reuses, censored = counter.histograms()
        pairs = np.frombuffer(counter.stack_samples(), np.uint32).reshape(-1, 2)
        return cls(
            np.frombuffer(reuses, np.int64),
            np.frombuffer(censored, np.int64),
            StackSamples.of(pairs),
            counter.scattered(),
        )

    def __add__(self, other: ReuseHistogram) -> ReuseHistogram:
        """Return the histogram of the bursts of both."""
        return ReuseHistogram(self.reuses + other.reuses, self.censored + other.censored)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReuseHistogram):
            return NotImplemented
        return np.array_equal(self.reuses, other.reuses) and np.array_equal(
            self.censored, other.censored
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def accesses(self) -> int:
        """Accesses counted."""
        return int(self.reuses.sum() + self.censored.sum())

    @property
    def censored_share(self) -> float:
        """Share of the accesses that were censored (0..1); 0 if there are none."""
        return float(self.censored.sum()) / self.accesses if self.accesses else 0.0

    def to_sparse(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return (bins, reuses, censored) of the bins that are not empty, for recordings."""
        bins = np.flatnonzero(self.reuses | self.censored).astype(np.int32)
        return bins, self.reuses[bins], self.censored[bins]

    @classmethod
    def from_sparse(
        cls,
        bins: NDArray[np.int32],
        reuses: NDArray[np.int64],
        censored: NDArray[np.int64],
    ) -> ReuseHistogram:
        """Undo :meth:`to_sparse`.

        Raises:
            ValueError: a bin outside the layout, or arrays of different lengths.
        """
        bins = np.asarray(bins, dtype=np.int64)
        if not bins.shape == np.shape(reuses) == np.shape(censored):
            raise ValueError("bins, reuses and censored differ in length")
        if len(bins) and (bins.min() < 0 or bins.max() >= BINS):
            raise ValueError(f"a bin outside 0..{BINS - 1}")
        histogram = cls.empty()
        histogram.reuses[bins] = reuses
        histogram.censored[bins] = censored
        return histogram
