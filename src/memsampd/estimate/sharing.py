"""Which bursts speak for which windows, by what code they ran and when.

Code that runs for a twentieth of the time may make a quarter of the accesses. Bursts at random
moments hit it once in twenty times, or not at all; timer samples, of which there are hundreds for
each burst, tell its share of the time far better. So each sample of a window is shared among bursts
that ran the code which it found, and among these rather the ones nearby than others, for what code
does with memory changes in time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core

LEAST_RATE = 1e3
"""Accesses a CPU second: fewer are what code that makes none is given of bursts of other code."""


def burst_shares(
    window_index: NDArray[np.int64],
    window_code: NDArray[np.float64],
    burst_window: NDArray[np.int64],
    burst_code: NDArray[np.float64],
    preference: NDArray[np.float64] | float = 1.0,
    bursts: NDArray[np.float64] | float = 1.0,
    kinds: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Share the time of windows among bursts.

    A sample in bin b goes to burst m in proportion to (v_m(b) + background)^2 * h(w, m), v_m being
    the burst's own branch vector and h = 1 / (1 + (d / d_0)^2), d the distance from the window to
    that of the burst and d_0 the least of them (of those preferred), plus one. Where all bursts ran
    the same code, only the distance counts.

    Squares, because a burst that ran mostly other code says little of the little that it ran of
    this one: were its curve the mean of those of its code, least squares would find the curve of a
    bin with these weights, all else alike.

    Of code that no burst ran nothing is known: it is as likely to be like one kind of code as like
    another. Had it been like the one that most bursts ran, these would have met it.

    Args:
        window_index: the windows, shape (w,).
        window_code: their branch vectors, hits, shape (w, b).
        burst_window: windows that bursts belong to, at least one burst, shape (m,).
        burst_code: branch vectors of the bursts, shape (m, b); zeros where not known.
        preference: factor of h, above 0, shape (w, m).
        bursts: how many bursts each of them stands for, shape (m,), or in each window, (w, m).
        kinds: share of each burst in code that no burst ran, shape (m,), in any unit; by default
            such code is shared like other code.

    Returns:
        Shape (w, m), rows sum to 1.
    """
    shape = len(window_index), len(burst_window)
    shares = _core.share_windows(
        np.ascontiguousarray(window_index, np.int64),
        np.ascontiguousarray(window_code, np.float64),
        np.ascontiguousarray(burst_window, np.int64),
        np.ascontiguousarray(burst_code, np.float64),
        _of_shape(preference, shape),
        _of_shape(bursts, shape),
        np.zeros(shape[1]) if kinds is None else np.ascontiguousarray(kinds, np.float64),
    )
    return np.frombuffer(shares).reshape(shape)


def _of_shape(value: NDArray[np.float64] | float, shape: tuple[int, int]) -> NDArray[np.float64]:
    """A value for each, as the core takes them."""
    if np.shape(value) != shape:
        value = np.broadcast_to(value, shape)
    return np.ascontiguousarray(value, np.float64)
