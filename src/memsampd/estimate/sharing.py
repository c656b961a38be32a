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

# Of a burst's time in any bin besides those in which it was seen: what 1024 samples of it may miss.
_BACKGROUND = 1 / 16384


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
    distance = np.abs(window_index[:, None] - burst_window[None, :]).astype(np.float64)
    wanted = np.broadcast_to(preference, distance.shape)
    best = wanted == wanted.max(axis=1, keepdims=True)
    least = np.where(best, distance, np.inf).min(axis=1, keepdims=True) + 1
    nearness = wanted * bursts / (1 + (distance / least) ** 2)
    ran = (code_shares(burst_code) + _BACKGROUND) ** 2
    times = code_shares(window_code)
    unseen = np.zeros(len(times))
    if kinds is not None and kinds.any():
        is_new = (window_code > 0) & ~burst_code.any(axis=0)
        unseen = (times * is_new).sum(axis=1)
        times = times * ~is_new
    # Of each window, bin by bin: what all bursts together have to offer.
    offered = nearness @ ran
    shares = nearness * ((times / offered) @ ran.T)
    if kinds is not None and unseen.any():
        shares += np.outer(unseen, kinds / kinds.sum())
    return np.asarray(shares)


def code_shares(hits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows that sum to 1; even ones where nothing is known."""
    bins = hits.shape[1]
    total = hits.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, hits / np.where(total > 0, total, 1), 1 / bins))
