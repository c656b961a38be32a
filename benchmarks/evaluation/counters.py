"""Counters of a live run, judged by the reference as rates between scrapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.scraping import Scrape
from memsampd.estimate.records import Totals
from memsampd.exporters.analysis import estimator_of
from memsampd.exporters.recording import Recording
from reference.judging import Errors, exact_misses, judge
from reference.metrics import Floats
from reference.store import Reference
from reference.windows import ERROR_SIZES_BYTES

JUDGED_MISS_RATIO = 0.001


def judge_counters(scrapes: Sequence[Scrape], reference: Reference) -> Errors:
    """Judge LRU counters that were 0 when the program began; windows lie between scrapes.

    Args:
        scrapes: in order.
        reference: the reference.

    Raises:
        ValueError: a counter fell, or nothing was counted.
    """
    if not scrapes or not scrapes[-1].has_curve:
        raise ValueError("nothing was counted")
    accesses, misses = increases(scrapes)
    counts = accesses > 0
    accesses, misses = accesses[counts], misses[counts]
    last = scrapes[-1]
    return judge(last.misses / last.accesses, misses / accesses[:, None], accesses, reference)


def increases(scrapes: Sequence[Scrape]) -> tuple[Floats, Floats]:
    """Return what counters rose by from 0 to the first scrape, and from scrape to scrape.

    Returns:
        Accesses, shape (n,), and misses, shape (n, s).

    Raises:
        ValueError: one fell.
    """
    accesses = np.diff([each.accesses for each in scrapes], prepend=0.0)
    misses = np.diff([each.misses for each in scrapes], axis=0, prepend=0.0)
    if (accesses < 0).any() or (misses < 0).any():
        raise ValueError("a counter fell")
    return accesses, misses


def replayed(recording: Recording) -> list[Totals]:
    """Return the counters after each event of a recording, and at its end, as told again."""
    estimator = estimator_of(recording.header, np.array(ERROR_SIZES_BYTES, np.int64))
    states = []
    for event in recording.events:
        estimator.add(event)
        states.append(estimator.estimate().totals)
    estimator.finish()
    return [*states, estimator.estimate().totals]


def apart(scrapes: Sequence[Scrape], states: Sequence[Totals]) -> float:
    """Return how far scrapes are from what a replay counted, in percent.

    Args:
        scrapes: of LRU counters; what was scraped before anything was counted is left out.
        states: the counters after each event: a scrape shows one of these.

    Returns:
        Of each scrape the largest relative difference of a counter to the state that is most like
        it; the most of all scrapes.
    """
    counted = [np.array([each.accesses, *each.misses["lru"]]) for each in states if each.accesses]
    most = 0.0
    for scrape in scrapes:
        if scrape.has_curve:
            shown = np.array([scrape.accesses, *scrape.misses])
            differences = [
                np.max(np.abs(shown - state) / np.maximum(state, 1.0)) for state in counted
            ]
            most = max(most, min(differences, default=1.0))
    return 100 * float(most)


def miss_errors(misses: Floats, reference: Reference) -> NDArray[np.float64]:
    """Return relative errors of the whole run's miss counts, in percent.

    Args:
        misses: estimated at ``ERROR_SIZES_BYTES``, shape (s,).
        reference: the reference.

    Returns:
        One for each size at which the true miss ratio is at least ``JUDGED_MISS_RATIO``,
        shape (m,), m <= s.
    """
    exact = exact_misses(reference).sum(axis=0)
    judged = exact >= JUDGED_MISS_RATIO * reference.total_accesses
    return np.asarray(100 * np.abs(misses[judged] / exact[judged] - 1))
