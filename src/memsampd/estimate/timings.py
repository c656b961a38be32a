"""Which timings of bursts are believed, and how fast code goes by them that was not timed."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

ALIKE = 0.7
"""From what likeness of two branch vectors on, 0..1, they are of the same code."""
# Timings of bursts that ran the same code, and whose curves differ by no more than a tenth of the
# accesses anywhere, contradict each other if one is so many times the other.
# Registers that begin anew between two samples, unseen, make code seem slower, never faster: so the
# slower one does not count, unless so many and more than agree with the other agree with it, and it
# is nearer to the model: then the other does not.
_SAME_CODE = 0.9
_SAME_CURVE = 0.1
_CONTRADICTION = 2.0
_CONFIRMATION = 1.3
_MANY = 2
# The model of rates is no further off than this, mostly: the faster of two that contradict each
# other is taken if it is as near to the model, and none that is so much faster than the model
# unless another one confirms it, nor one that is much slower. Windows that agree are believed
# up to twice that.
_NEAR_MODEL = 3.0
_TOO_FAST = 3.0
_FAR_TOO_FAST = 6.0
_FAR_TOO_SLOW = 6.0
_RIGHT_BURSTS = 0.25  # bursts that the model of rates is taken to have been right for, of any code
_LEAST_WEIGHT = 1e-12


class Timings(msgspec.Struct, frozen=True):
    """Bursts, m of them, with what was timed of them and modelled; rates are logarithms.

    Attributes:
        bursts: for how much of a burst each counts, 0..1, shape (m,).
        is_timed: whose rates were measured in the target, shape (m,).
        is_stored: which were taken before the attach, shape (m,).
        is_memoryless: whose code makes no access, shape (m,).
        rate: as measured, or modelled where it was not, shape (m,).
        model: by the model, shape (m,).
        highest: by the model if nothing misses that may have hit, shape (m,).
        steady: at which windows run this code; NaN where they differ, shape (m,).
        alike: likeness of their code, 0..1, shape (m, m).
        compared: figures that show whether two missed alike, shape (m, figures).
    """

    bursts: NDArray[np.float64]
    is_timed: NDArray[np.bool_]
    is_stored: NDArray[np.bool_]
    is_memoryless: NDArray[np.bool_]
    rate: NDArray[np.float64]
    model: NDArray[np.float64]
    highest: NDArray[np.float64]
    steady: NDArray[np.float64]
    alike: NDArray[np.float64]
    compared: NDArray[np.float64]

    def doubts(self) -> Doubts:
        """Find timings that contradict each other, or the model."""
        faster = np.subtract.outer(self.rate, self.rate)
        is_apart = np.abs(faster) > np.log(_CONTRADICTION)
        same = self._of_same_code(is_apart)
        apart = same & is_apart
        confirmations = (same & (np.abs(faster) < np.log(_CONFIRMATION))).sum(axis=1)
        over_model = self.rate - self.model
        off_model = np.abs(over_model)
        stands = np.greater.outer(confirmations, confirmations)
        stands &= (confirmations >= _MANY)[:, None] & np.less.outer(off_model, off_model)
        slower = apart & (faster < 0)
        is_outdone = (slower & ~stands).any(axis=1) | (slower & stands).any(axis=0)
        is_confirmed = confirmations > 0
        over_highest = self.rate - self.highest
        is_too_fast = self.is_timed & (over_highest > np.log(_TOO_FAST)) & ~is_confirmed
        is_steady = self.steady - self.highest < np.log(_FAR_TOO_FAST)
        is_too_slow = self.is_timed & (-over_model > np.log(_FAR_TOO_SLOW)) & ~is_confirmed
        is_odd = apart.any(axis=1) | is_too_fast | is_too_slow
        goes_by_windows = is_odd & is_steady & self.is_timed
        in_doubt = is_odd & ~is_steady
        is_likely = is_confirmed | (off_model < np.log(_NEAR_MODEL))
        is_likely |= ~in_doubt
        trusted = goes_by_windows | (self.is_timed & ~is_outdone & is_likely)
        return Doubts(in_doubt, trusted, goes_by_windows)

    def _of_same_code(self, apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which two were timed in the same code, shape (m, m); such as are apart missed alike."""
        same = (
            np.logical_and.outer(self.is_timed, self.is_timed)
            & np.equal.outer(self.is_stored, self.is_stored)
            & (self.alike >= _SAME_CODE)
        )
        np.fill_diagonal(same, val=False)
        for row in np.flatnonzero((same & apart).any(axis=1)):
            differ = np.abs(self.compared - self.compared[row]).max(axis=1)
            same[row] &= differ <= _SAME_CURVE
        return same

    def expected(self, doubts: Doubts) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rates of all bursts: those that were measured, and what these tell of the others.

        A burst that was not timed goes as fast as the model says, corrected by what the model
        missed the timed bursts of like code by: the mean logarithm, as if a quarter of a burst more
        had not been missed at all. What it misses other code by tells nothing of this one. Where
        fewer bursts of like code were timed than were not, registers may have been steady by
        chance, which tells too low a rate: for those too many the model is taken to have been
        right, too, and a measured rate is not taken whole. Times of another run count where no like
        code was timed since: the same code may go at another rate now. Timings that contradict each
        other, or are impossible by the model, do not count (``Doubts.trusted``).

        Returns:
            Accesses per CPU second, shape (m,), and whether one of like code was timed in the
            target.
        """
        is_timed = doubts.trusted
        like = np.where(self.alike >= ALIKE, self.alike, 0.0)
        is_told = ((like > 0) & is_timed & ~self.is_stored).any(axis=1)
        counts = is_timed & ~(self.is_stored & is_told)
        weight = like * (is_timed * self.bursts)
        weight[np.ix_(is_told, self.is_stored)] = 0.0
        measured = np.where(doubts.goes_by_windows, self.steady, self.rate)
        missed = np.where(is_timed, measured - self.model, 0.0)
        told = weight.sum(axis=1)
        doubt = np.maximum(like @ (~self.is_timed * self.bursts) - told, 0.0)
        corrected = self.model + weight @ missed / (told + doubt + _RIGHT_BURSTS)
        believed = measured - missed * doubt / np.maximum(told + doubt, _LEAST_WEIGHT)
        rates = np.exp(np.where(counts, believed, corrected))
        is_rated = counts | weight.any(axis=1) | self.is_memoryless
        return np.where(self.is_memoryless, 0.0, rates), is_rated


class Doubts(msgspec.Struct, frozen=True):
    """Which timings are believed.

    Attributes:
        in_doubt: whose timing another one of the same code contradicts, or the model, shape (m,);
            none where the windows that ran this code agree on a rate: that is taken in its place.
        trusted: whose timing counts, shape (m,); of those in doubt, a fast one that is likely.
        goes_by_windows: of these, whose rate is that of windows, shape (m,).
    """

    in_doubt: NDArray[np.bool_]
    trusted: NDArray[np.bool_]
    goes_by_windows: NDArray[np.bool_]
