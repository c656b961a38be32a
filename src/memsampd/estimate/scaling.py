"""The same code on more data, or less: reuse distances of the data grow as the data do.

Marin and Mellor-Crummey (SIGMETRICS 2004) model how reuse distances of each reference grow with the
size of the problem. Here one burst has to do: what it missed in caches that are large beside
its data, other data missed in caches that are as large beside these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.records import Spacing

# So many octaves, and so many of their errors, have to lie between the data of a burst and those of
# a window. Replayed, 168 recordings of 24 programs: the whole run of worksets was off by 1.85 %
# without this, by 1.54 with it, by 1.54 to 1.77 from one octave on to three; others by as much
# as before.
_LEAST_OCTAVES = 1.5
_LEAST_ERRORS = 2.0
# In caches of this part of the data hardly any line of them stays: what hits is the rest, the stack
# for instance, and does not grow. Any from 4 to 64 would do.
_RESIDENT_PART = 16.0
_LINES_APART = 100.0  # times what fifty lines at random lie apart: the lines of all the data
_LEAST_SHARE = 0.01  # of the accesses of a window: what counts less is not scaled


def octaves_of_data(spacing: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many lines data are that lie so far apart, as a logarithm to base 2.

    Args:
        spacing: octaves, as of :class:`~memsampd.sampler.records.Spacing`; NaN where not known.
    """
    return np.asarray(np.log2(_LINES_APART * np.maximum(np.exp2(spacing) - 1, 1 / _LINES_APART)))


def growth(
    window_spacing: Sequence[Spacing | None],
    spacing: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Say how much larger the data of windows are than those of the bursts that speak for them.

    Args:
        window_spacing: of the windows, w of them; None where it is not known.
        spacing: octaves and errors of the bursts, NaN where not known, shape (m, 2).
        shares: of the accesses of each window, for which bursts speak, shape (w, m).

    Returns:
        Octaves, shape (w, m); 0 where they are not known to differ much, or that matters little.
    """
    own = np.array(
        [
            (np.nan, np.nan) if each is None else (each.octaves, each.error)
            for each in window_spacing
        ]
    )
    apart = np.abs(np.subtract.outer(own[:, 0], spacing[:, 0]))
    error = np.sqrt(np.add.outer(own[:, 1] ** 2, spacing[:, 1] ** 2))
    differs = (apart >= _LEAST_OCTAVES) & (apart >= _LEAST_ERRORS * error)
    matters = differs & (shares >= _LEAST_SHARE)
    larger = np.subtract.outer(octaves_of_data(own[:, 0]), octaves_of_data(spacing[:, 0]))
    return np.where(matters, larger, 0.0)


def scaled(
    curves: NDArray[np.float64],
    size_lines: NDArray[np.float64],
    data_octaves: NDArray[np.float64],
    growth_octaves: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return miss ratios of the same code on data of another size.

    Args:
        curves: miss ratios, shape (n, curves, s).
        size_lines: sizes of the caches, shape (s,), ascending.
        data_octaves: size of the data, lines, as a logarithm to base 2, shape (n,).
        growth_octaves: by how much the others are larger, shape (n,).

    Returns:
        Miss ratios, shape (n, curves, s).
    """
    if len(size_lines) < 2:
        return curves
    sizes = np.log2(size_lines)
    # Caches of `until` and more are as large beside the other data as caches of `until` less the
    # growth are beside the burst's; smaller ones keep what they did, but for none of its data.
    resident = (data_octaves - np.log2(_RESIDENT_PART))[:, None]
    grown = growth_octaves[:, None]
    shifted = np.maximum(sizes - grown, np.minimum(sizes, resident))
    source = np.where(sizes <= resident + np.minimum(grown, 0.0), sizes, shifted)
    source = np.clip(source, sizes[0], sizes[-1])
    right = np.clip(sizes.searchsorted(source), 1, len(sizes) - 1)
    part = (source - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    left_of = np.take_along_axis(curves, right[:, None] - 1, axis=2)
    right_of = np.take_along_axis(curves, right[:, None], axis=2)
    return np.asarray(left_of + part[:, None] * (right_of - left_of))
