"""Keeps the number of series bounded: thins curves, folds light phases and rare reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from memsampd.exporters.snapshot import PhaseSnapshot, Snapshot
from memsampd.models.records import MissRatioCurve

OTHER = "other"


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase, or several light ones as one, as it is shown.

    Attributes are those of :class:`~memsampd.exporters.snapshot.PhaseSnapshot`, and:
        label: the phase's id, or "other".
        active: it is, or holds, the phase of the last window.
        predicted: it is, or holds, the phase expected next.
    """

    label: str
    active: bool
    predicted: bool
    windows: int
    cpu_seconds: float
    weight: float
    bursts: int
    sampled_accesses: int
    censored_share: float
    write_share: float
    accesses_per_cpu_second: float | None
    rate_spread: float | None
    curves: Mapping[str, MissRatioCurve] = field(default_factory=dict)


def fold_phases(snapshot: Snapshot, max_phases: int) -> list[PhaseView]:
    """Show the heaviest phases one by one and the others as one.

    Args:
        snapshot: the state.
        max_phases: how many are shown besides "other".
    """
    by_weight = sorted(snapshot.phases, key=lambda phase: (-phase.weight, phase.id))
    shown = sorted(by_weight[:max_phases], key=lambda phase: phase.id)
    views = [_fold(str(phase.id), [phase], snapshot) for phase in shown]
    if rest := by_weight[max_phases:]:
        views.append(_fold(OTHER, rest, snapshot))
    return views


def _fold(label: str, phases: Sequence[PhaseSnapshot], snapshot: Snapshot) -> PhaseView:
    ids = {phase.id for phase in phases}
    weights = [phase.weight for phase in phases]
    cpu_seconds = [phase.cpu_seconds for phase in phases]
    sampled = [phase.sampled_accesses for phase in phases]
    rates = [phase.rate.accesses_per_cpu_second for phase in phases]
    known_rates = [rate for rate in rates if rate is not None]
    return PhaseView(
        label=label,
        active=snapshot.phase in ids,
        predicted=snapshot.predicted_phase in ids,
        windows=sum(phase.windows for phase in phases),
        cpu_seconds=sum(cpu_seconds),
        weight=sum(weights),
        bursts=sum(phase.bursts for phase in phases),
        sampled_accesses=sum(sampled),
        censored_share=_mean([phase.censored_share for phase in phases], sampled),
        write_share=_mean([phase.write_share for phase in phases], sampled),
        # An unknown rate among them leaves the rate of all unknown.
        accesses_per_cpu_second=(
            _mean(known_rates, cpu_seconds) if len(known_rates) == len(phases) else None
        ),
        rate_spread=phases[0].rate.spread if len(phases) == 1 else None,
        curves=_fold_curves(phases),
    )


def _fold_curves(phases: Sequence[PhaseSnapshot]) -> Mapping[str, MissRatioCurve]:
    if len(phases) == 1:
        return phases[0].curves
    policies = dict.fromkeys(policy for phase in phases for policy in phase.curves)
    return {
        policy: weighted_curve(
            [phase.curves.get(policy) for phase in phases], [phase.weight for phase in phases]
        )
        for policy in policies
    }


def weighted_curve(
    curves: Sequence[MissRatioCurve | None], weights: Sequence[float]
) -> MissRatioCurve:
    """Return the curve of several phases together.

    Where a phase has no curve, nothing is known of its share: it misses between never and always,
    and the estimate is that of the others.

    Args:
        curves: curves over the same sizes; at least one.
        weights: shares of accesses, not all of them 0 unless all are.
    """
    pairs = list(zip(curves, weights, strict=True))
    known = [(curve, weight) for curve, weight in pairs if curve is not None]
    template = known[0][0]
    if sum(weight for _, weight in known) <= 0:  # nothing ran yet: all alike
        known = [(curve, 1.0) for curve, _ in known]
    known_weight = sum(weight for _, weight in known)
    unknown_share = 1 - known_weight / (
        known_weight + sum(weight for curve, weight in pairs if curve is None)
    )

    def mean(attribute: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        rows = [getattr(curve, attribute) for curve, _ in known]
        return np.average(rows, axis=0, weights=[weight for _, weight in known])

    low = mean("low") * (1 - unknown_share)
    high = mean("high") * (1 - unknown_share) + unknown_share
    return replace(
        template,
        miss_ratio=mean("miss_ratio"),
        low=low,
        high=high,
        sampled_accesses=sum(curve.sampled_accesses for curve, _ in known),
    )


def thin_curve(curve: MissRatioCurve, max_sizes: int) -> MissRatioCurve:
    """Keep at most so many sizes, evenly spread, the first and the last among them."""
    if len(curve.sizes_bytes) <= max_sizes:
        return curve
    keep = np.linspace(0, len(curve.sizes_bytes) - 1, max_sizes).round().astype(np.intp)
    return replace(
        curve,
        sizes_bytes=curve.sizes_bytes[keep],
        miss_ratio=curve.miss_ratio[keep],
        low=curve.low[keep],
        high=curve.high[keep],
    )


def fold_reasons(counts: Mapping[str, int], max_reasons: int) -> dict[str, int]:
    """Keep the most frequent reasons and add up the others as "other"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ordered[:max_reasons])
    if rest := ordered[max_reasons:]:
        kept[OTHER] = kept.get(OTHER, 0) + sum(count for _, count in rest)
    return kept


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    if total <= 0:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
