"""The same code on more data, or less: reuse distances of the data grow as the data do.

Marin and Mellor-Crummey (SIGMETRICS 2004) model how reuse distances of each reference grow with the
size of the problem. Here one burst has to do: what it missed in caches that are large beside
its data, other data missed in caches that are as large beside these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    own: NDArray[np.float64],
    spacing: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Say how much larger the data of windows are than those of the bursts that speak for them.

    Args:
        own: octaves and errors of the windows, NaN where not known, shape (w, 2).
        spacing: the same of the bursts, shape (m, 2).
        shares: of the accesses of each window, for which bursts speak, shape (w, m).

    Returns:
        Octaves, shape (w, m); 0 where they are not known to differ much, or that matters little.
    """
    apart = np.abs(np.subtract.outer(own[:, 0], spacing[:, 0]))
    error = np.sqrt(np.add.outer(own[:, 1] ** 2, spacing[:, 1] ** 2))
    differs = (apart >= _LEAST_OCTAVES) & (apart >= _LEAST_ERRORS * error)
    matters = differs & (shares >= _LEAST_SHARE)
    larger = np.subtract.outer(octaves_of_data(own[:, 0]), octaves_of_data(spacing[:, 0]))
    return np.where(matters, larger, 0.0)


def more_misses(
    ratios: NDArray[np.float64],
    ratio_lines: NDArray[np.float64],
    data_octaves: NDArray[np.float64],
    growth_octaves: NDArray[np.float64],
    size_lines: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return how much more often the same code misses on data of another size.

    Args:
        ratios: miss ratios of bursts, shape (n, r).
        ratio_lines: sizes of the caches that these are of, shape (r,), ascending by octaves.
        data_octaves: size of their data, lines, as a logarithm to base 2, shape (n,).
        growth_octaves: by how much the others are larger, shape (n,).
        size_lines: sizes of the caches that are asked for, shape (s,).

    Returns:
        Differences of miss ratios, shape (n, s).
    """
    sizes = np.log2(size_lines)
    # Caches that hold some of the data are as large beside these as others are beside the burst's;
    # smaller ones do as they did, but for none of the data.
    resident = (data_octaves - np.log2(_RESIDENT_PART))[:, None]
    grown = growth_octaves[:, None]
    shifted = np.maximum(sizes - grown, np.minimum(sizes, resident))
    source = np.where(sizes <= resident + np.minimum(grown, 0.0), sizes, shifted)
    first = np.log2(ratio_lines[0])
    return _at(ratios, source - first) - _at(ratios, np.tile(sizes - first, (len(ratios), 1)))


def _at(rows: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of rows, shape (n, r), between their columns, at places of shape (n, s)."""
    places = np.clip(places, 0.0, rows.shape[1] - 1)
    left = np.minimum(places.astype(np.int64), rows.shape[1] - 2)
    before, behind = (np.take_along_axis(rows, left + step, axis=1) for step in (0, 1))
    return np.asarray(before + (places - left) * (behind - before))
