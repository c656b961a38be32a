"""The immutable state of a session that exporters show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memsampd.models.records import MissRatioCurve
from memsampd.phases.records import Window
from memsampd.sampler.records import UNKNOWN_RATE, AccessRate


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The process observed.

    Attributes:
        pid: process id in memsampd's namespace.
        start_ticks: start time from /proc/PID/stat: with the pid it names one process for good.
        command: short name (comm).
        executable: path of the program, as far as readable.
    """

    pid: int
    start_ticks: int
    command: str
    executable: str


@dataclass(frozen=True, slots=True)
class PhaseSnapshot:
    """One phase as known now.

    Attributes:
        id: stable id.
        windows: windows so far.
        cpu_seconds: CPU time of these windows.
        weight: share of the target's accesses: CPU time times access rate, where that is unknown
            times the mean of the known rates (of the CPU time if none is known).
        bursts: bursts taken in it.
        sampled_accesses: accesses observed in them.
        censored_share: share of these whose next touch lay beyond the horizon.
        write_share: share of these that were stores.
        rate: accesses per CPU second.
        curves: miss-ratio curve by policy ("lru", "random"); empty before the first burst.
    """

    id: int
    windows: int
    cpu_seconds: float
    weight: float
    bursts: int
    sampled_accesses: int
    censored_share: float
    write_share: float
    rate: AccessRate
    curves: Mapping[str, MissRatioCurve] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Overhead:
    """What memsampd cost so far, in seconds, and what that is a share of.

    Attributes:
        target_cpu_seconds: CPU time of the target since attach.
        stop_seconds: wall time for which one of its threads was stopped.
        cow_seconds: estimate of its time lost to copy-on-write.
        shadow_cpu_seconds: CPU time of shadows.
        own_cpu_seconds: CPU time of memsampd itself (tracing included).
        budget_share: the share of the target's CPU time that the schedule may spend.
        spent_share: the share that it spent.
    """

    target_cpu_seconds: float
    stop_seconds: float
    cow_seconds: float
    shadow_cpu_seconds: float
    own_cpu_seconds: float
    budget_share: float
    spent_share: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything about one session at one moment.

    Attributes:
        target: the process.
        alive: False once it has ended.
        time_seconds: CLOCK_MONOTONIC time of the snapshot.
        backend: names of branch source, access source and clock.
        window: the last window; None before the first.
        phase: its phase.
        predicted_phase: the phase expected next.
        prediction_accuracy: share of predictions that came true; None before the first.
        windows: windows so far.
        phases: all live phases by id.
        overall: the weighted curve of the whole run by policy; empty before the first burst.
        cache_sizes_bytes: this machine's data cache sizes by name ("L1d", "L2", "L3").
        samples: branch samples so far.
        lost: branch samples lost.
        throttled: throttle events.
        burst_ends: number of bursts by reason of their end.
        errors: number of refused or failed captures by reason.
        overhead: what it all cost.
        trouble: why no burst is taken at present, with the remedy; empty where nothing lasting is
            in the way.
        rate: accesses per CPU second of the whole run, as far as it is known.
        rate_known_share: share of the CPU time in phases whose rate is known; 0 if phases are
            weighted by CPU time.
    """

    target: TargetInfo
    alive: bool
    time_seconds: float
    backend: Mapping[str, str]
    window: Window | None
    phase: int | None
    predicted_phase: int | None
    prediction_accuracy: float | None
    windows: int
    phases: tuple[PhaseSnapshot, ...]
    overall: Mapping[str, MissRatioCurve]
    cache_sizes_bytes: Mapping[str, int]
    samples: int
    lost: int
    throttled: int
    burst_ends: Mapping[str, int]
    errors: Mapping[str, int]
    overhead: Overhead
    trouble: str = ""
    rate: AccessRate = UNKNOWN_RATE
    rate_known_share: float = 0.0
