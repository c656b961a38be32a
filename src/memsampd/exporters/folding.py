"""Keeps the number of series bounded: folds light phases and rare reasons into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.snapshot import Snapshot
from memsampd.models.combine import combine
from memsampd.models.records import MissRatioCurve
from memsampd.sampler.rates import AccessRate

OTHER = "other"


@dataclass(frozen=True, slots=True)
class ShownPhase:
    """A phase, or several light ones as one, as it is shown.

    Attributes:
        label: the phase's id, or "other".
        ids: of the phases that it is, or stands for.
        estimate: the phase's own, or that of all of them together.
    """

    label: str
    ids: frozenset[int]
    estimate: PhaseEstimate


def fold_phases(snapshot: Snapshot, max_phases: int) -> list[ShownPhase]:
    """Show the heaviest phases one by one and the others as one.

    Args:
        snapshot: the state.
        max_phases: how many are shown besides "other".
    """
    by_weight = sorted(snapshot.estimate.phases, key=lambda phase: (-phase.weight, phase.id))
    alone = sorted(by_weight[:max_phases], key=lambda phase: phase.id)
    shown = [ShownPhase(str(phase.id), frozenset({phase.id}), phase) for phase in alone]
    if rest := by_weight[max_phases:]:
        shown.append(ShownPhase(OTHER, frozenset(phase.id for phase in rest), _together(rest)))
    return shown


def _together(phases: Sequence[PhaseEstimate]) -> PhaseEstimate:
    if len(phases) == 1:
        return phases[0]
    cpu_seconds = [phase.cpu_seconds for phase in phases]
    sampled = [phase.sampled_accesses for phase in phases]
    rates = [phase.rate.accesses_per_cpu_second for phase in phases]
    known_rates = [rate for rate in rates if rate is not None]
    # An unknown rate among them leaves the rate of all unknown.
    rate = _mean(known_rates, cpu_seconds) if len(known_rates) == len(phases) else None
    instructions = sum(phase.instructions for phase in phases)
    cycles = sum(phase.instructions * (phase.cycles_per_instruction or 0.0) for phase in phases)
    return replace(
        phases[0],
        windows=sum(phase.windows for phase in phases),
        cpu_seconds=sum(cpu_seconds),
        weight=sum(phase.weight for phase in phases),
        bursts=sum(phase.bursts for phase in phases),
        sampled_accesses=sum(sampled),
        censored_share=_mean([phase.censored_share for phase in phases], sampled),
        write_share=_mean([phase.write_share for phase in phases], sampled),
        rate=AccessRate(rate, None, "several phases"),
        curves=_fold_curves(phases),
        instructions=instructions,
        cycles_per_instruction=cycles / instructions if instructions > 0 else None,
    )


def _fold_curves(phases: Sequence[PhaseEstimate]) -> Mapping[str, MissRatioCurve]:
    policies = dict.fromkeys(policy for phase in phases for policy in phase.curves)
    folded = {
        policy: combine((phase.weight, phase.curves.get(policy)) for phase in phases)
        for policy in policies
    }
    return {policy: curve for policy, curve in folded.items() if curve is not None}


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
