"""Landmarks: what a burst comes back to every ten thousand accesses or so.

Either an instruction or 8 bytes of data. The number of accesses from one arrival to the next is
known from the burst; counted in the running program, arrivals then tell its rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.hits import ACCESS, EXECUTE, GRANULE_BYTES
from memsampd.sampler.clock.records import Rows, each_once

MAX_ERROR = 0.12
"""Estimated relative error above which a landmark is not worth its hits."""

MIN_ACCESSES = 2_000
_MIN_INTERVALS = 4
_BUCKETS = 1 << 16
_SAMPLED_GRANULES = 128
_HASH = np.uint64(0x9E3779B97F4A7C15)
# A few equal intervals do not prove that all are: as if a tenth of one were off by its length.
_DOUBT = 0.1
# What the cost of a hit differs by from program to program.
_COST_DOUBT = 0.3


@dataclass(frozen=True, slots=True)
class Landmark:
    """Something that recurs.

    Attributes:
        kind: ``EXECUTE`` or ``ACCESS``.
        address: of the instruction, or of the 8 bytes.
        accesses: from one arrival to the next, in the mean.
        spread: relative standard deviation of that.
        intervals: seen in the burst.
        error: estimate of the relative error of a rate by this landmark.
    """

    kind: int
    address: int
    accesses: float
    spread: float
    intervals: int
    error: float


def find_landmark(
    rows: Rows,
    *,
    hits: int,
    hit_seconds: float,
    expected_rate: float,
    kinds: tuple[int, ...] = (EXECUTE, ACCESS),
    max_error: float = MAX_ERROR,
) -> Landmark | None:
    """The landmark that promises the best rate.

    Args:
        rows: the burst.
        hits: how many there may be.
        hit_seconds: what one costs.
        expected_rate: accesses per CPU second, roughly: hits too close to each other do not pay.
        kinds: to choose from.
        max_error: the error above which there is none.
    """
    price = _Price(hits, hit_seconds, expected_rate)
    found: list[Landmark] = []
    if EXECUTE in kinds:
        found += _instructions(rows, price)
    if ACCESS in kinds:
        found += _data(rows, price)
    best = min(found, key=lambda landmark: landmark.error, default=None)
    return best if best is not None and best.error <= max_error else None


@dataclass(frozen=True, slots=True)
class _Price:
    """What arrivals cost, as find_landmark was told."""

    hits: int
    hit_seconds: float
    expected_rate: float


def _bucket(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (keys * _HASH) >> np.uint64(48)


def _instructions(rows: Rows, price: _Price) -> list[Landmark]:
    """Landmarks among the instructions; some are missed that share a bucket with others."""
    bucket = _bucket(rows.ip)
    counts = np.bincount(bucket, minlength=_BUCKETS)
    most = 2 * (len(rows) // MIN_ACCESSES)  # a load and a store each
    at = np.flatnonzero(((counts > _MIN_INTERVALS) & (counts <= most))[bucket])
    judged = (
        _judge(EXECUTE, int(rows.ip[group[0]]), _arrivals(rows.ip, group), price)
        for group in _groups(rows.ip, at)
    )
    return [landmark for landmark in judged if landmark is not None]


def _data(rows: Rows, price: _Price) -> list[Landmark]:
    """The best landmark of some granules, those that are often referenced left out."""
    granule = rows.address >> np.uint64(3)
    sampled = each_once(granule[:: max(1, len(rows) // _SAMPLED_GRANULES)])
    bucket = _bucket(granule)
    counts = np.bincount(bucket, minlength=_BUCKETS)
    most = 2 * max(len(rows) // MIN_ACCESSES, len(rows) // _BUCKETS)
    sampled = sampled[counts[_bucket(sampled)] <= most]
    wanted = np.zeros(_BUCKETS, np.bool_)
    wanted[_bucket(sampled)] = True
    at = np.flatnonzero(wanted[bucket])
    at = at[np.isin(granule[at], sampled)]
    judged = (
        _judge(ACCESS, int(granule[group[0]]) * GRANULE_BYTES, _arrivals(rows.ip, group), price)
        for group in _groups(granule, at)
    )
    found = [landmark for landmark in judged if landmark is not None]
    best = min(found, key=lambda landmark: landmark.error, default=None)
    if best is None:
        return []
    # Other references may touch these bytes from before them.
    arrivals = _arrivals(rows.ip, _touching(rows, best.address))
    again = _judge(ACCESS, best.address, arrivals, price)
    return [] if again is None else [again]


def _groups(keys: NDArray[np.uint64], at: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """These rows by their keys, each group ascending; those too small left out."""
    at = at[np.argsort(keys[at], kind="stable")]
    groups = np.split(at, np.flatnonzero(np.diff(keys[at])) + 1)
    return [group for group in groups if len(group) > _MIN_INTERVALS]


def _arrivals(ip: NDArray[np.uint64], at: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows without those that the same execution of an instruction made: its store, or an element.

    An instruction that follows itself is not rare, so what follows at once is taken for one.
    """
    again = (np.diff(at) == 1) & (ip[at[1:]] == ip[at[:-1]])
    return at[np.r_[True, ~again]] if len(at) else at


def _touching(rows: Rows, address: int) -> NDArray[np.intp]:
    first, last = np.uint64(address), np.uint64(address + GRANULE_BYTES)
    return np.flatnonzero((rows.address < last) & (rows.address + rows.size_bytes > first))


def _judge(kind: int, address: int, arrivals: NDArray[np.intp], price: _Price) -> Landmark | None:
    intervals = np.diff(arrivals)
    count = len(intervals)
    if count < _MIN_INTERVALS:
        return None
    mean = float(intervals.mean())
    if mean < MIN_ACCESSES:
        return None
    variance = (float(np.square(intervals / mean - 1).sum()) + _DOUBT) / (count - 1 + _DOUBT)
    counted = max(1, price.hits - 1)
    of_cost = _COST_DOUBT * price.hit_seconds * price.expected_rate / mean
    error = math.sqrt(variance / count + variance / counted + of_cost * of_cost)
    return Landmark(kind, address, mean, math.sqrt(variance), count, error)
