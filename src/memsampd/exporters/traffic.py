"""Memory traffic of a target, from its curves: lines fetched, and lines written back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.curves import at_size
from memsampd.exporters.snapshot import Snapshot
from memsampd.models.records import MissRatioCurve
from memsampd.models.write_backs import most_written_back, written_back

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic behind the largest cache, bytes per CPU second.

    Attributes:
        fetched: lines that miss.
        written_back: lines that were changed and then evicted.
        low: least that both can be together.
        high: most that both can be together.
    """

    fetched: float
    written_back: float
    low: float
    high: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.fetched + self.written_back


def largest_cache_bytes(cache_sizes_bytes: Mapping[str, int]) -> int | None:
    """Size of the cache before memory; None if no cache is known."""
    return max(cache_sizes_bytes.values(), default=None)


def mean_write_share(phases: Sequence[PhaseEstimate]) -> float | None:
    """Share of stores among all accesses that bursts observed; None before the first."""
    sampled = sum(phase.sampled_accesses for phase in phases)
    if not sampled:
        return None
    return sum(phase.write_share * phase.sampled_accesses for phase in phases) / sampled


def phase_traffic(
    curve: MissRatioCurve | None,
    rate: float | None,
    write_share: float | None,
    cache_bytes: int | None,
) -> Traffic | None:
    """Traffic of one phase.

    Args:
        curve: its curve under LRU.
        rate: its accesses per CPU second.
        write_share: share of these that are stores.
        cache_bytes: size of the cache before memory.

    Returns:
        The traffic; None while something that it depends on is not known.
    """
    if curve is None or rate is None or write_share is None or cache_bytes is None:
        return None
    point = at_size(curve, cache_bytes)
    if point is None:
        return None
    scale = rate * curve.line_bytes
    return Traffic(
        fetched=scale * point.miss_ratio,
        written_back=scale * written_back(point.miss_ratio, write_share),
        low=scale * point.low,
        high=scale * (point.high + most_written_back(point.high, write_share)),
    )


def write_share_of(phase: PhaseEstimate, usual: float | None) -> float | None:
    """Share of stores among a phase's accesses; that of the others where no burst was taken."""
    return phase.write_share if phase.sampled_accesses else usual


def whole_traffic(snapshot: Snapshot) -> Traffic | None:
    """Traffic of the whole run, with stores as frequent as in all bursts; None if not known."""
    estimate = snapshot.estimate
    return phase_traffic(
        estimate.curves.get("lru"),
        estimate.rate.accesses_per_cpu_second,
        mean_write_share(estimate.phases),
        largest_cache_bytes(snapshot.cache_sizes_bytes),
    )


def mebibyte_gain(curve: MissRatioCurve, size_bytes: int) -> float | None:
    """Misses per access that one more MiB saves; None outside of the curve's sizes."""
    here, there = at_size(curve, size_bytes), at_size(curve, size_bytes + MEBIBYTE)
    return None if here is None or there is None else here.miss_ratio - there.miss_ratio


def traffic_totals(snapshot: Snapshot) -> tuple[float, float] | None:
    """Return bytes fetched and written back since the attach, for counters.

    They never run backwards; None while nothing is known.
    """
    estimate = snapshot.estimate
    curve, totals = estimate.curves.get("lru"), estimate.totals
    if whole_traffic(snapshot) is None or curve is None or not totals.accesses > 0:
        return None
    octaves = np.log2(estimate.sizes_bytes)
    wanted = np.log2(largest_cache_bytes(snapshot.cache_sizes_bytes) or 1)
    fetched, written = (
        curve.line_bytes * float(np.interp(wanted, octaves, lines["lru"]))
        for lines in (totals.misses, totals.written_back)
    )
    return fetched, written
