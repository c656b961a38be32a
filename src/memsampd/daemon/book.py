"""What is known of each phase: its windows, the histograms of its bursts, its curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.snapshot import PhaseSnapshot
from memsampd.models.combine import combine
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.running import RunningCurve
from memsampd.models.survival import SurvivalFunction
from memsampd.phases.records import Window
from memsampd.sampler.records import UNKNOWN_RATE, AccessRate


@dataclass
class _Phase:
    windows: int = 0
    cpu_seconds: float = 0.0
    bursts: int = 0
    rows: int = 0
    writes: int = 0
    histogram: ReuseHistogram = field(default_factory=ReuseHistogram.empty)
    rate: AccessRate = UNKNOWN_RATE
    curves: dict[str, RunningCurve] = field(default_factory=dict)

    def absorb(self, other: _Phase) -> None:
        self.windows += other.windows
        self.cpu_seconds += other.cpu_seconds
        self.bursts += other.bursts
        self.rows += other.rows
        self.writes += other.writes
        self.histogram += other.histogram
        for policy, curve in other.curves.items():
            self.curves.setdefault(policy, RunningCurve()).merge(curve)
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
        for model in self._models:
            known.curves.setdefault(model.policy, RunningCurve()).add_window()

    def add_burst(self, phase: int, histogram: ReuseHistogram, *, rows: int, writes: int) -> None:
        """Add what a burst saw, after the window in which it was taken.

        Args:
            phase: of that window.
            histogram: of at least one access.
            rows: references that the accesses are of.
            writes: stores among these.
        """
        known = self._phases.setdefault(phase, _Phase())
        known.bursts += 1
        known.rows += rows
        known.writes += writes
        known.histogram += histogram
        pooled = SurvivalFunction.from_histogram(known.histogram)
        survival = SurvivalFunction.from_histogram(histogram).continued_by(pooled)
        for policy, curve in self._curves(survival).items():
            known.curves.setdefault(policy, RunningCurve()).add_burst(curve)

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
        survival = SurvivalFunction.from_histogram(histogram)
        return self._models[0].curve(survival, self._sizes_bytes, self._line_bytes).miss_ratio

    def _curves(self, survival: SurvivalFunction) -> dict[str, MissRatioCurve]:
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
        """By accesses: CPU time times rate, or times the mean of the known rates.

        By CPU time where no rate is known.
        """
        mean = mean_rate(
            (known.cpu_seconds, known.rate.accesses_per_cpu_second)
            for known in self._phases.values()
        )
        raw = {}
        for phase, known in self._phases.items():
            rate = known.rate.accesses_per_cpu_second
            raw[phase] = known.cpu_seconds * (rate if rate is not None else mean or 1.0)
        total = sum(raw.values())
        return {p: value / total if total else 0.0 for p, value in raw.items()}

    def _snapshot(self, phase: int, known: _Phase, weight: float) -> PhaseSnapshot:
        curves = {policy: running.curve for policy, running in known.curves.items()}
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
            curves={policy: curve for policy, curve in curves.items() if curve is not None},
        )


def mean_rate(phases: Iterable[tuple[float, float | None]]) -> float | None:
    """Mean of the known rates, weighted by CPU time.

    Args:
        phases: CPU seconds of each phase, and its accesses per CPU second or None.

    Returns:
        Accesses per CPU second; None where no phase with CPU time has a known rate.
    """
    known = [(seconds, rate) for seconds, rate in phases if rate is not None]
    total = sum(seconds for seconds, _ in known)
    return sum(seconds * rate for seconds, rate in known) / total if total > 0 else None


def rate_known_share(phases: Sequence[PhaseSnapshot]) -> float:
    """Share of the CPU time that lies in phases whose rate is known, 0..1."""
    total = sum(phase.cpu_seconds for phase in phases)
    known = sum(
        phase.cpu_seconds for phase in phases if phase.rate.accesses_per_cpu_second is not None
    )
    return known / total if total > 0 else 0.0


def overall_rate(phases: Sequence[PhaseSnapshot]) -> AccessRate:
    """The rate of the whole run: the mean of the phases whose rate is known.

    Its spread is that of these phases' rates, taken to be independent.
    """
    known = [
        (phase.cpu_seconds, phase.rate.accesses_per_cpu_second, phase.rate.spread)
        for phase in phases
        if phase.rate.accesses_per_cpu_second is not None
    ]
    mean = mean_rate((seconds, rate) for seconds, rate, _ in known)
    if mean is None or mean <= 0:
        return UNKNOWN_RATE
    spreads = [
        None if spread is None else seconds * rate * spread for seconds, rate, spread in known
    ]
    total = mean * sum(seconds for seconds, _, _ in known)
    errors = [error for error in spreads if error is not None]
    spread = math.hypot(*errors) / total if len(errors) == len(spreads) else None
    methods = {phase.rate.method for phase in phases if phase.rate.method != UNKNOWN_RATE.method}
    return AccessRate(mean, spread, ", ".join(sorted(methods)))


def overall_curves(phases: Sequence[PhaseSnapshot]) -> Mapping[str, MissRatioCurve]:
    """The weighted curve of all phases, by policy; empty before the first burst."""
    policies = {policy for phase in phases for policy in phase.curves}
    combined = {
        policy: combine((phase.weight, phase.curves.get(policy)) for phase in phases)
        for policy in sorted(policies)
    }
    return {policy: curve for policy, curve in combined.items() if curve is not None}
