"""Counting the arrivals of a running thread at a landmark of its burst."""

from __future__ import annotations

import math
import time

import numpy as np

from memsampd.sampler.clock.costs import HitCosts
from memsampd.sampler.clock.hits import EXECUTE, Hits, breakpoints, read_hits
from memsampd.sampler.clock.landmarks import Landmark
from memsampd.sampler.clock.records import Untimed
from memsampd.sampler.records import TimedStretch

HITS = 16
MIN_HITS = 4
_PATIENCE_SECONDS = 0.3  # waiting costs nothing
# Denser hits cost too much, and more than was tried: they also disturb caches.
_MIN_INTERVAL_HITS = 5
_SETTLE_SECONDS = 0.003  # opening an event disturbs the thread; wall time until hits count
# A gap after the last hit that is so many times the mean one: the program went elsewhere.
_GONE_INTERVALS = 4


def time_arrivals(
    tid: int,
    landmark: Landmark,
    costs: HitCosts,
    *,
    hits: int = HITS,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> TimedStretch | Untimed:
    """Count arrivals from now on.

    Args:
        tid: the running thread.
        landmark: of a recent burst of it.
        costs: of hits.
        hits: how many at most.
        patience_seconds: wall time after which fewer will do.

    Raises:
        MemsampdError: the breakpoint cannot be had.
    """
    with breakpoints(tid, [(landmark.kind, landmark.address)], hits) as points:
        time.sleep(_SETTLE_SECONDS)
        points.arm()
        points.wait(hits, patience_seconds)
        found = read_hits(points)
        task_ns = points.task_ns()
    cost = costs.execute_seconds if landmark.kind == EXECUTE else costs.access_seconds
    until_seconds = None if len(found) >= hits or task_ns is None else 1e-9 * task_ns
    return rate_of(found, landmark, cost, until_seconds)


def rate_of(
    hits: Hits, landmark: Landmark, hit_seconds: float, until_seconds: float | None = None
) -> TimedStretch | Untimed:
    """What hits tell.

    Args:
        hits: at the landmark.
        landmark: how many accesses lie between two.
        hit_seconds: what one cost.
        until_seconds: CPU time up to which there was no further one; None: all were used.
    """
    count = len(hits)
    lost = count * hit_seconds
    if count < MIN_HITS:
        return Untimed("few-hits", f"{count} arrivals, {MIN_HITS} are needed", count, lost)
    # A hit's time is taken at its begin: each but the last one lies between two times.
    intervals = np.diff(hits.cpu_seconds) - hit_seconds
    seconds = float(intervals.sum())
    if seconds < _MIN_INTERVAL_HITS * hit_seconds * (count - 1):
        return Untimed("dense", "arrivals cost too much of what lies between", count, lost)
    mean = seconds / (count - 1)
    if until_seconds is not None and until_seconds - hits.cpu_seconds[-1] > _GONE_INTERVALS * mean:
        return Untimed("gone", "the program went on to other code", count, lost)
    spread = max(float(intervals.std()) / mean, landmark.spread)
    error = math.sqrt(spread**2 / (count - 1) + landmark.spread**2 / landmark.intervals)
    accesses = round(landmark.accesses * (count - 1))
    return TimedStretch(accesses, seconds, "arrivals", count, lost, error)
