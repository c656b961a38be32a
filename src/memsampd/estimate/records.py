"""What the estimator says: of phases, of the whole run, of each window."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve
from memsampd.sampler.rates import AccessRate


class PhaseEstimate(msgspec.Struct, frozen=True):
    """One phase as known now.

    Attributes:
        id: stable id.
        windows: windows so far.
        cpu_seconds: CPU time of these windows.
        weight: share of the target's accesses; of its CPU time before the first burst.
        bursts: bursts taken in it since the attach.
        sampled_accesses: accesses observed in them, and in the stored ones.
        censored_share: share of these whose next touch lay beyond the horizon.
        write_share: share of these that were stores.
        rate: accesses per CPU second.
        curves: miss-ratio curve by policy ("lru", "random"), the mean of its windows'; empty before
            the first burst.
        stored_bursts: bursts from before the attach that speak for it, too.
        stored_age_seconds: how old the latest of these was at the attach; None if there are none.
        instructions: executed in its windows, as counters told; 0 without these.
        cycles_per_instruction: CPI of these; None without counters.
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
    curves: Mapping[str, MissRatioCurve] = msgspec.field(default_factory=dict)
    stored_bursts: int = 0
    stored_age_seconds: float | None = None
    instructions: float = 0.0
    cycles_per_instruction: float | None = None


class Totals(msgspec.Struct, frozen=True):
    """What happened since the attach, for counters: they never run backwards.

    An estimate that is corrected downwards is worked off by counting later.

    Attributes:
        accesses: estimated accesses.
        misses: estimated misses by policy, each of shape (s,), one for each size.
        written_back: lines among these that were changed and then evicted, in the same way.
    """

    accesses: float
    misses: Mapping[str, NDArray[np.float64]]
    written_back: Mapping[str, NDArray[np.float64]]


class Estimate(msgspec.Struct, frozen=True):
    """All that is known of the target now.

    Attributes:
        windows: windows so far.
        cpu_seconds: their user CPU time.
        unknown_cpu_seconds: that of windows whose code no burst has seen: they have no curve.
        phases: all phases by id.
        curves: curve of the whole run by policy; empty before the first burst.
        rate: accesses per CPU second of the whole run.
        rate_known_share: share of the CPU time in code whose rate was measured in the target, 0..1;
            elsewhere it is modelled (:class:`~memsampd.estimate.speed.SpeedModel`).
        totals: for counters.
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
    """

    windows: int
    cpu_seconds: float
    unknown_cpu_seconds: float
    phases: tuple[PhaseEstimate, ...]
    curves: Mapping[str, MissRatioCurve]
    rate: AccessRate
    rate_known_share: float
    totals: Totals
    sizes_bytes: NDArray[np.int64]


class WindowEstimate(msgspec.Struct, frozen=True):
    """A window with what is known of it.

    Attributes:
        index: of the window.
        phase: its phase, as called when it was settled.
        accesses: accesses made in it; None if there was no burst at all.
        is_rate_known: the rate of its code was measured in the target, not modelled.
        curves: its miss-ratio curve by policy, the mean of the bursts that speak for it; empty if
            there was no burst at all.
        is_known: bursts have seen its code; if not, bounds are 0 and 1.
    """

    index: int
    phase: int
    accesses: float | None
    is_rate_known: bool
    curves: Mapping[str, MissRatioCurve]
    is_known: bool
