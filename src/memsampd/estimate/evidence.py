"""How much bursts speak for windows, besides by their code: as fast, and on data as far apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
