"""What is known of each phase: its windows, the histograms of its bursts, its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.snapshot import PhaseSnapshot
from memsampd.models.combine import combine
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.survival import SurvivalFunction
from memsampd.phases.records import Window
from memsampd.sampler.records import AccessRate, Burst

_UNKNOWN = AccessRate(None, None, "unknown")


@dataclass
class _Phase:
    windows: int = 0
    cpu_seconds: float = 0.0
    bursts: int = 0
    rows: int = 0
    writes: int = 0
    histogram: ReuseHistogram = field(default_factory=ReuseHistogram.empty)
    rate: AccessRate = _UNKNOWN
    curves: dict[str, MissRatioCurve] | None = None

    def absorb(self, other: _Phase) -> None:
        self.windows += other.windows
        self.cpu_seconds += other.cpu_seconds
        self.bursts += other.bursts
        self.rows += other.rows
        self.writes += other.writes
        self.histogram += other.histogram
        self.curves = None
        if self.rate.accesses_per_cpu_second is None:
            self.rate = other.rate


class PhaseBook:
    """Keeps the phases of one session.

    Args:
        models: one for each policy.
        sizes_bytes: sizes of the curves, shape (s,), ascending.
        line_bytes: size of a line.
    """

    def __init__(
        self, models: Sequence[CacheModel], sizes_bytes: NDArray[np.int64], line_bytes: int
    ) -> None:
        self._models = tuple(models)
        self._sizes_bytes = sizes_bytes
        self._line_bytes = line_bytes
        self._phases: dict[int, _Phase] = {}

    def add_window(self, phase: int, window: Window) -> None:
        """Count a window."""
        known = self._phases.setdefault(phase, _Phase())
        known.windows += 1
        known.cpu_seconds += window.cpu_seconds

    def add_burst(self, phase: int, burst: Burst, histogram: ReuseHistogram) -> None:
        """Add what a burst saw."""
        known = self._phases.setdefault(phase, _Phase())
        known.bursts += 1
        known.rows += len(burst)
        known.writes += int(np.count_nonzero(burst.is_write))
        known.histogram += histogram
        known.curves = None

    def set_rate(self, phase: int, rate: AccessRate) -> None:
        """Note what the access clock says."""
        self._phases.setdefault(phase, _Phase()).rate = rate

    def merge(self, gone: int, into: int) -> None:
        """Make two phases one."""
        old = self._phases.pop(gone, None)
        if old is not None:
            self._phases.setdefault(into, _Phase()).absorb(old)

    def burst_summary(self, histogram: ReuseHistogram) -> NDArray[np.float64]:
        """Miss ratios of one burst, all sizes, shape (s,): what drift is judged by."""
        return self._curves(histogram)[self._models[0].policy].miss_ratio

    def _curves(self, histogram: ReuseHistogram) -> dict[str, MissRatioCurve]:
        if histogram.accesses == 0:
            return {}
        survival = SurvivalFunction.from_histogram(histogram)
        return {
            model.policy: model.curve(survival, self._sizes_bytes, self._line_bytes)
            for model in self._models
        }

    def snapshots(self) -> tuple[PhaseSnapshot, ...]:
        """All phases by id."""
        weights = self._weights()
        return tuple(
            self._snapshot(phase, self._phases[phase], weights[phase])
            for phase in sorted(self._phases)
        )

    def _weights(self) -> dict[int, float]:
        """By accesses where every phase's rate is known, else by CPU time."""
        rates = {p: known.rate.accesses_per_cpu_second for p, known in self._phases.items()}
        is_known = all(rate is not None for rate in rates.values())
        raw = {
            p: known.cpu_seconds * ((rates[p] or 0.0) if is_known else 1.0)
            for p, known in self._phases.items()
        }
        total = sum(raw.values())
        return {p: value / total if total else 0.0 for p, value in raw.items()}

    def _snapshot(self, phase: int, known: _Phase, weight: float) -> PhaseSnapshot:
        if known.curves is None:
            known.curves = self._curves(known.histogram)
        return PhaseSnapshot(
            id=phase,
            windows=known.windows,
            cpu_seconds=known.cpu_seconds,
            weight=weight,
            bursts=known.bursts,
            sampled_accesses=known.histogram.accesses,
            censored_share=known.histogram.censored_share if known.histogram.accesses else 0.0,
            write_share=known.writes / known.rows if known.rows else 0.0,
            rate=known.rate,
            curves=known.curves,
        )


def overall_curves(phases: Sequence[PhaseSnapshot]) -> Mapping[str, MissRatioCurve]:
    """The weighted curve of all phases, by policy; empty before the first burst."""
    policies = {policy for phase in phases for policy in phase.curves}
    combined = {
        policy: combine((phase.weight, phase.curves.get(policy)) for phase in phases)
        for policy in sorted(policies)
    }
    return {policy: curve for policy, curve in combined.items() if curve is not None}
