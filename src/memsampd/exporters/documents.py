"""Snapshots as JSON documents: for the HTTP API, the control socket, ``--json`` and scripts.

Every document has the key ``version``. Keys name their unit; what is not known is None, and
``not_known`` says why. A document of a later version may have more keys than are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.curves import at_size, fills
from memsampd.exporters.snapshot import NodeStatus, NodeTarget, Snapshot, TargetInfo
from memsampd.models.records import MissRatioCurve
from memsampd.phases.records import Assignment, Window
from memsampd.sampler.rates import AccessRate

VERSION = 1
IDLE_SECONDS = 2.0

Document: TypeAlias = dict[str, Any]
_POLICY = "lru"
WORTH_SAYING = 0.005
"""Shares below this are not worth a word."""
OF_CHILDREN = (
    "bursts are taken of the process itself only; for child processes use the daemon's "
    "follow_children"
)


def target_id(target: TargetInfo) -> str:
    """Return the name of a target: a pid that comes again is another target."""
    return f"{target.pid}-{target.start_ticks}"


def is_idle(snapshot: Snapshot) -> bool:
    """Whether the target does nothing."""
    return snapshot.alive and snapshot.idle_seconds >= IDLE_SECONDS


def present_phase(snapshot: Snapshot) -> PhaseEstimate | None:
    """Return the phase of the last window; None before the first."""
    return phase_of_id(snapshot, snapshot.phase)


def phase_of_id(snapshot: Snapshot, id: int | None) -> PhaseEstimate | None:
    """Return a phase; None if the snapshot tells nothing of it."""
    return next((phase for phase in snapshot.estimate.phases if phase.id == id), None)


def target_document(snapshot: Snapshot) -> Document:
    """Return who is observed, the figures of the whole run, what it costs and what is not known."""
    estimate = snapshot.estimate
    return {
        **_head(snapshot),
        **msgspec.to_builtins(snapshot.target),
        "alive": snapshot.lives,
        "idle": is_idle(snapshot),
        "idle_seconds": snapshot.idle_seconds,
        "backend": dict(snapshot.backend),
        "user_cpu_seconds": estimate.cpu_seconds,
        "unknown_cpu_seconds": estimate.unknown_cpu_seconds,
        "windows": estimate.windows,
        "phases": len(estimate.phases),
        "phase": snapshot.phase,
        "predicted_phase": snapshot.predicted_phase,
        "prediction_accuracy": snapshot.prediction_accuracy,
        "bursts": sum(snapshot.burst_ends.values()),
        "store_drops": snapshot.store_drops,
        "watches": snapshot.watches,
        "sampled_accesses": sum(phase.sampled_accesses for phase in estimate.phases),
        **rate_fields(estimate.rate),
        "rate_known_share": estimate.rate_known_share,
        "caches": cache_points(estimate.curves, estimate.rate, snapshot.cache_sizes_bytes),
        "caches_now": _caches_now(snapshot),
        "cost": cost_fields(snapshot),
        "not_known": not_known(snapshot),
    }


def phases_document(snapshot: Snapshot) -> Document:
    """Return all phases by id, with their miss ratios at this machine's caches."""
    return {
        **_head(snapshot),
        "phase": snapshot.phase,
        "predicted_phase": snapshot.predicted_phase,
        "phases": [
            {
                **phase_fields(phase),
                "cpu_seconds": phase.cpu_seconds,
                "write_share": phase.write_share if phase.sampled_accesses else None,
                "caches": cache_points(phase.curves, phase.rate, snapshot.cache_sizes_bytes),
            }
            for phase in snapshot.estimate.phases
        ],
    }


def curves_document(snapshot: Snapshot) -> Document:
    """Return the curve of the whole run and of each phase, with bounds.

    All lists of ratios have an entry for each of ``sizes_bytes``; they are None before a burst.
    """
    estimate = snapshot.estimate
    return {
        **_head(snapshot),
        "policy": _POLICY,
        "sizes_bytes": estimate.sizes_bytes.tolist(),
        "cache_sizes_bytes": dict(snapshot.cache_sizes_bytes),
        "whole_run": curve_fields(estimate.curves.get(_POLICY)),
        "phases": [
            {"id": phase.id, "weight": phase.weight, **curve_fields(phase.curves.get(_POLICY))}
            for phase in estimate.phases
        ],
    }


def window_document(
    snapshot: Snapshot, window: Window | None = None, assignment: Assignment | None = None
) -> Document:
    """Return a window, the curve of its phase, and that of the run so far.

    Args:
        snapshot: the state after it, and maybe after some more windows of other phases.
        window: the window; the snapshot's by default.
        assignment: how it was found to belong to its phase, where that is known.
    """
    estimate, overhead = snapshot.estimate, snapshot.overhead
    window, id = window or snapshot.window, assignment.phase if assignment else snapshot.phase
    phase = phase_of_id(snapshot, id)
    return {
        **_head(snapshot),
        "command": snapshot.target.command,
        "window": window.index if window else None,
        "start_seconds": window.start_seconds if window else None,
        "cpu_seconds": window.cpu_seconds if window else None,
        "phase": id,
        "is_new": assignment.is_new if assignment else None,
        "distance": assignment.distance if assignment else None,
        "predicted_phase": snapshot.predicted_phase,
        "samples": window.samples if window else None,
        "lost": window.lost if window else None,
        "throttled": window.throttled if window else None,
        "sampled_accesses": phase.sampled_accesses if phase is not None else 0,
        "sizes_bytes": estimate.sizes_bytes.tolist(),
        **curve_fields(phase.curves.get(_POLICY) if phase is not None else None),
        "whole_run": {
            **curve_fields(estimate.curves.get(_POLICY)),
            "user_cpu_seconds": estimate.cpu_seconds,
            "unknown_cpu_seconds": estimate.unknown_cpu_seconds,
        },
        "target_cpu_seconds": overhead.target_cpu_seconds,
        "idle_seconds": snapshot.idle_seconds,
        "trouble": snapshot.trouble,
        "spent_share": overhead.spent_share,
        "own_cpu_seconds": overhead.own_cpu_seconds,
        "waits_for_own_cpu": overhead.waits_for_own_cpu,
    }


def node_document(status: NodeStatus) -> Document:
    """Return how a node's daemon fares, with the targets that it cannot observe and why."""
    fields = msgspec.to_builtins(status)
    return {
        **fields,
        "version": VERSION,
        "memsampd_version": status.version,
        "by_state": status.by_state(),
        "targets": [node_target_document(each) for each in status.targets],
    }


def node_target_document(target: NodeTarget) -> Document:
    """Return how a target of a daemon fares: all that is known of one that is not observed."""
    fields = msgspec.to_builtins(target)
    return {**fields, **fields["target"], "target": target_id(target.target)}


def cost_fields(snapshot: Snapshot) -> Document:
    """Return what the observation cost so far, with branch samples and bursts by outcome."""
    return {
        **msgspec.to_builtins(snapshot.overhead),
        "samples": snapshot.samples,
        "lost": snapshot.lost,
        "throttled": snapshot.throttled,
        "burst_ends": {str(end): count for end, count in snapshot.burst_ends.items()},
        "bursts": msgspec.to_builtins(snapshot.tally),
        "addresses": msgspec.to_builtins(snapshot.addresses),
    }


def phase_fields(phase: PhaseEstimate) -> Document:
    """Return a phase's figures, those that a recording's analysis has, too."""
    return {
        "id": phase.id,
        "windows": phase.windows,
        "weight": phase.weight,
        "bursts": phase.bursts,
        "stored_bursts": phase.stored_bursts,
        "stored_age_seconds": phase.stored_age_seconds,
        "sampled_accesses": phase.sampled_accesses,
        "censored_share": phase.censored_share,
        **rate_fields(phase.rate),
        "cycles_per_instruction": phase.cycles_per_instruction,
    }


def rate_fields(rate: AccessRate) -> dict[str, float | None]:
    """Return accesses per CPU second and the relative standard deviation of that."""
    return {"accesses_per_cpu_second": rate.accesses_per_cpu_second, "rate_spread": rate.spread}


def curve_fields(curve: MissRatioCurve | None) -> dict[str, list[float] | None]:
    """Return lists of ratios, shape (s,), by name; None before the first burst."""
    if curve is None:
        return {"miss_ratio": None, "low": None, "high": None}
    return {name: getattr(curve, name).tolist() for name in ("miss_ratio", "low", "high")}


def cache_points(
    curves: Mapping[str, MissRatioCurve], rate: AccessRate, cache_sizes_bytes: Mapping[str, int]
) -> list[Document]:
    """Return miss ratio, bounds and bytes fetched a CPU second at each cache of this machine."""
    curve = curves.get(_POLICY)
    filled = dict(fills(curve, rate.accesses_per_cpu_second, cache_sizes_bytes))
    found = []
    for name, size_bytes in cache_sizes_bytes.items():
        point = None if curve is None else at_size(curve, size_bytes)
        found.append(
            {
                "name": name,
                "size_bytes": size_bytes,
                "miss_ratio": None if point is None else point.miss_ratio,
                "low": None if point is None else point.low,
                "high": None if point is None else point.high,
                "fill_bytes_per_cpu_second": filled.get(name),
            }
        )
    return found


def not_known(snapshot: Snapshot) -> list[Document]:
    """Return what is not known, why, and of what share of the CPU time where that has a meaning.

    Each entry has ``what`` (a stable word), ``why`` (a sentence for people) and ``share`` or None.
    """
    estimate = snapshot.estimate
    found: list[Document] = []

    def say(what: str, why: str, share: float | None = None) -> None:
        found.append({"what": what, "share": share, "why": why})

    if not estimate.windows:
        say("windows", "the target has not used enough CPU time for a window yet", 1.0)
    elif not estimate.curves:
        say("curves", "no burst has succeeded yet: no miss ratio is known", 1.0)
    elif (share := estimate.unknown_cpu_seconds / estimate.cpu_seconds) >= WORTH_SAYING:
        say("curves", "no burst has seen the code that ran in this share of the CPU time", share)
    if estimate.windows and (share := 1 - estimate.rate_known_share) >= WORTH_SAYING:
        if estimate.rate.accesses_per_cpu_second is None:
            say("rates", "no access rate is known: phases are weighted by CPU time", 1.0)
        else:
            say("rates", "the access rate is modelled, right within a factor of two or so", share)
    if (share := snapshot.child_share) >= WORTH_SAYING:
        say("children", f"they used this share of the CPU time: {OF_CHILDREN}", share)
    if snapshot.trouble:
        say("bursts", f"no bursts at present: {snapshot.trouble}")
    if snapshot.overhead.waits_for_own_cpu:
        say("bursts", "bursts wait: memsampd has used the CPU time that it may")
    for words in snapshot.refused():
        say("refused", words)
    if snapshot.lost:
        say("samples", f"{snapshot.lost} branch samples were lost")
    if snapshot.addresses.lost:
        say("samples", f"{snapshot.addresses.lost} samples of accesses were lost")
    return found


def _head(snapshot: Snapshot) -> Document:
    return {
        "version": VERSION,
        "target": target_id(snapshot.target),
        "time_monotonic_seconds": snapshot.time_seconds,
    }


def _caches_now(snapshot: Snapshot) -> list[Document]:
    phase = present_phase(snapshot)
    if phase is None:
        return cache_points({}, snapshot.estimate.rate, snapshot.cache_sizes_bytes)
    return cache_points(phase.curves, phase.rate, snapshot.cache_sizes_bytes)
