"""How much bursts speak for windows, besides by their code: as fast, and on data as far apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.timings import ALIKE
from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

# By what the rates of a window and of a burst of its code are apart (a logarithm) where the burst
# counts a third: 4 % are usual for the same working set, and some 5 to 10 lie between others.
_SAME_RATE = 0.04
_LIKE_RATE = 0.5  # the same of a burst whose own rate is only told by those of like code
# By how many octaves the data of two windows are apart where a burst of the one counts an eighth
# for the other, what both are known to added: in replays of 42 runs of 21 programs this was best.
_SAME_SPACING = 0.4
_SPACING_ERRORS = 2.0
_LEAST_LIKENESS = 1e-4
_APART_UNKNOWN = 3.0  # what is not known, in squared deviations
# Bursts on the same data miss alike, by so much of the accesses at any size. Replayed, 168 runs
# of 24 programs: the whole run of worksets, 11 of whose 97 bursts came as the data changed, was off
# by 1.55 % without this and by 0.97 with it, others by as much as before; 0.02 to 0.2 are as good.
_MISSED_ALIKE = 0.05


def rates_in_windows(
    window_rates: Sequence[Sequence[CodeRate]],
    timed_code: NDArray[np.int64],
    like_code: NDArray[np.int64],
    expected: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How fast the code of bursts went in windows, and how much that speaks for these bursts.

    The same code on another working set goes at another rate: of bursts of the same code, those
    speak for a window that went as fast, or nearest to that.

    Args:
        window_rates: of the windows, w of them.
        timed_code: ids of the code of bursts, -1 where it has none, shape (m,).
        like_code: of such bursts, that of the one that ran the likest code, or -1, shape (m,).
        expected: the bursts' own rates, shape (m,).

    Returns:
        Rates and factors, shape (w, m): the bursts' own, and 1, where the window tells nothing.
    """
    evidence = np.ones((len(window_rates), len(expected)))
    rates = expected * evidence
    if not any(window_rates):
        return rates, evidence
    deviation = np.where(timed_code < 0, _LIKE_RATE, _SAME_RATE)
    code = np.where(timed_code < 0, like_code, timed_code)
    for row, measured_rates in enumerate(window_rates):
        for measured in measured_rates:
            same = (code == measured.code) & (expected > 0)
            if not same.any():
                continue
            rates[row, same] = measured.accesses_per_cpu_second
            apart = np.log(measured.accesses_per_cpu_second / expected[same]) / deviation[same]
            # Of a wide distribution each place is as much less likely; threads go faster and slower
            # at times, so timed bursts are not ruled out by far either.
            speaks = (1 + apart**2) ** -1.5 * (_SAME_RATE / deviation[same])
            # It tells which of these bursts, not whether they or those of other code.
            evidence[row, same] = speaks / speaks.max()
    return rates, evidence


def spacing_table(spacings: Sequence[Spacing | None]) -> NDArray[np.float64]:
    """Return octaves and errors, NaN where not known, shape (n, 2)."""
    return np.array(
        [(np.nan, np.nan) if each is None else (each.octaves, each.error) for each in spacings]
    )


def likeness_of_spacing(
    own: NDArray[np.float64], spacing: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much bursts speak for windows, by how far apart the data of both lay, shape (w, m).

    Args:
        own: octaves and errors of the windows, NaN where not known, shape (w, 2).
        spacing: the same of the bursts, shape (m, 2).
    """
    variance = _SAME_SPACING**2 + _SPACING_ERRORS * np.add.outer(own[:, 1] ** 2, spacing[:, 1] ** 2)
    apart = np.subtract.outer(own[:, 0], spacing[:, 0]) ** 2 / variance
    like = (1 + np.where(np.isnan(apart), _APART_UNKNOWN, apart)) ** -3.0
    return np.asarray(np.maximum(like, _LEAST_LIKENESS))


def likely_spacing(
    own: NDArray[np.float64], compared: NDArray[np.float64], alike: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far apart data lay about bursts, where samples do not tell it as well.

    They do not about one that was taken as the program went on to other data: it has the spacing of
    the burst of the same code that missed the most like it, if any missed alike.

    Args:
        own: what samples tell: octaves and errors, or NaN, shape (m, 2).
        compared: figures that show whether two missed alike, shape (m, figures).
        alike: likeness of their code, shape (m, m).

    Returns:
        Octaves and errors, or NaN, shape (m, 2).
    """
    is_unknown = np.isnan(own[:, 0])
    unknown, known = np.flatnonzero(is_unknown), np.flatnonzero(~is_unknown)
    if not len(unknown) or not len(known):
        return own
    apart = np.abs(compared[unknown, None] - compared[known]).max(axis=2)
    apart[alike[np.ix_(unknown, known)] < ALIKE] = np.inf
    likest = apart.argmin(axis=1)
    missed_alike = apart[np.arange(len(unknown)), likest] <= _MISSED_ALIKE
    spacing = own.copy()
    spacing[unknown[missed_alike]] = own[known[likest[missed_alike]]]
    return spacing
