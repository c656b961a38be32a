"""From a recording to curves: of every phase, every window and the whole run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.exporters.recording import BurstRecord, MergeRecord, Recording
from memsampd.exporters.windows import (
    AnalysedWindow,
    SeenBursts,
    analyse_windows,
    code_bins,
    see_bursts,
)
from memsampd.models.combine import combine
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from memsampd.sampler.records import AccessRate

MODELS: dict[str, type[StatStack] | type[StatCache]] = {"lru": StatStack, "random": StatCache}
MAX_SIZE_BYTES = 1 << 40
MAX_SIZES = 4096
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"(\d{1,15})\s*(?:([KMG])(?:i?B)?|B)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class AnalysedPhase:
    """A phase with what is known of it.

    Attributes:
        id: its id, merges applied.
        windows: number of its windows.
        cpu_seconds: their CPU time.
        weight: share of the run's accesses (see :attr:`Analysis.weighting`).
        bursts: bursts taken in it.
        histogram: reuse histogram of all of these.
        curve: its miss-ratio curve, the mean of its windows'; None before the first burst.
        rate: its accesses per CPU second; None if unknown.
    """

    id: int
    windows: int
    cpu_seconds: float
    weight: float
    bursts: int
    histogram: ReuseHistogram
    curve: MissRatioCurve | None
    rate: AccessRate | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that outputs show of a recording.

    Attributes:
        recording: the recording.
        policy: "lru" or "random".
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
        windows: the windows in order.
        phases: the phases by id.
        overall: curve of the whole run; None if there was no burst.
        weighting: what phases are weighted by: "accesses", "cpu_seconds" (no rate is known), or
            "accesses, partly estimated" (where a phase's rate is unknown, what its code
            suggests stands in).
        warnings: what a reader of the results has to know.
        rate_known_share: share of the windows' CPU time whose accesses are known, 0..1.
    """

    recording: Recording
    policy: str
    sizes_bytes: NDArray[np.int64]
    windows: tuple[AnalysedWindow, ...]
    phases: tuple[AnalysedPhase, ...]
    overall: MissRatioCurve | None
    weighting: str
    warnings: tuple[str, ...]
    rate_known_share: float = 0.0

    def phase(self, id: int) -> AnalysedPhase:
        """Return a phase by its id."""
        return next(phase for phase in self.phases if phase.id == id)


def default_sizes(steps_per_octave: int = 1) -> NDArray[np.int64]:
    """Return 1 KiB to 64 MiB in equal logarithmic steps, int64."""
    return np.round(2.0 ** np.linspace(10, 26, 16 * steps_per_octave + 1)).astype(np.int64)


def parse_size(text: str) -> int:
    """Read a size: plain bytes or with K, M, G (binary; "32K", "32KB", "32KiB" are the same).

    Raises:
        UsageError: it is none, or out of range.
    """
    match = _SIZE.fullmatch(text.strip())
    size_bytes = int(match[1]) << _UNITS[(match[2] or "").upper()] if match else 0
    if not 0 < size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"{text!r} is no cache size", "give sizes such as 32KiB, 1MiB or 65536")
    return size_bytes


def parse_sizes(text: str) -> NDArray[np.int64]:
    """Read a comma-separated list of sizes; returns them ascending, each once, int64.

    Raises:
        UsageError: one of them is none, or there are too many.
    """
    sizes = sorted({parse_size(part) for part in text.split(",")})
    if len(sizes) > MAX_SIZES:
        raise UsageError(f"{len(sizes)} cache sizes are too many", f"give at most {MAX_SIZES}")
    return np.array(sizes, dtype=np.int64)


def format_size(size_bytes: int) -> str:
    """Return a size for people, such as "32 KiB"."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def analyse(recording: Recording, policy: str, sizes_bytes: NDArray[np.int64]) -> Analysis:
    """Work out all curves of a recording.

    Args:
        recording: the recording.
        policy: replacement policy, a key of :data:`MODELS`.
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
    """
    line_bytes = recording.header.line_bytes
    model: CacheModel = MODELS[policy]()
    final = _final_phases(recording.merges)
    rates, bins = _rates(recording, final), code_bins(recording.windows)
    bursts = _bursts(recording, final)
    seen = {
        id: see_bursts(id, told, _known(rates.get(id)), bins, model, sizes_bytes, line_bytes)
        for id, mine in bursts.items()
        if (told := [burst for burst in mine if burst.accesses])
    }
    windows = analyse_windows(
        [AnalysedWindow(each, final.get(each.phase, each.phase)) for each in recording.windows],
        seen,
        {id: known for id, rate in rates.items() if (known := _known(rate)) is not None},
        bins,
    )
    weights, weighting = _weights(windows)
    phases = []
    for id in sorted({window.phase for window in windows} | set(bursts)):
        mine = [window for window in windows if window.phase == id]
        phases.append(
            AnalysedPhase(
                id=id,
                windows=len(mine),
                cpu_seconds=sum(window.record.cpu_seconds for window in mine),
                weight=weights.get(id, 0.0),
                bursts=len(bursts.get(id, ())),
                histogram=seen[id].histogram if id in seen else ReuseHistogram.empty(),
                curve=_phase_curve(mine, id, seen.get(id)),
                rate=_phase_rate(mine, rates.get(id)),
            )
        )
    overall = combine(
        (phase.weight, phase.curve or _mean_curve(windows, phase.id)) for phase in phases
    )
    known_share = _rate_known_share(windows)
    warnings = _warnings(recording, phases, weighting, known_share)
    return Analysis(
        recording=recording,
        policy=policy,
        sizes_bytes=sizes_bytes,
        windows=windows,
        phases=tuple(phases),
        overall=overall,
        weighting=weighting,
        warnings=warnings,
        rate_known_share=known_share,
    )


def _final_phases(merges: Iterable[MergeRecord]) -> dict[int, int]:
    """Return what each merged phase is called in the end."""
    final: dict[int, int] = {}
    for merge in merges:
        into = final.get(merge.into, merge.into)
        final[merge.gone] = into
        for gone, target in final.items():
            if target == merge.gone:
                final[gone] = into
    return final


def _rates(recording: Recording, final: dict[int, int]) -> dict[int, AccessRate]:
    """Return the last rate known of each phase, one of a merged phase if its own is unknown."""
    own: dict[int, AccessRate] = {}
    inherited: dict[int, AccessRate] = {}
    for record in recording.rates:
        if record.rate.accesses_per_cpu_second is not None:
            phase = final.get(record.phase, record.phase)
            (own if phase == record.phase else inherited)[phase] = record.rate
    return inherited | own


def _bursts(recording: Recording, final: dict[int, int]) -> dict[int, list[BurstRecord]]:
    """Return the bursts of each phase."""
    bursts: dict[int, list[BurstRecord]] = {}
    for burst in recording.bursts:
        bursts.setdefault(final.get(burst.phase, burst.phase), []).append(burst)
    return bursts


def _mean_curve(windows: Sequence[AnalysedWindow], phase: int) -> MissRatioCurve | None:
    """Return the mean of the curves of a phase's windows, or of the guesses at them."""
    return combine(
        (window.weight, window.curve or window.guess) for window in windows if window.phase == phase
    )


def _phase_curve(
    windows: Sequence[AnalysedWindow], phase: int, seen: SeenBursts | None
) -> MissRatioCurve | None:
    """Return the mean curve of a phase's windows, or of its bursts if it has no window."""
    if seen is None:
        return None
    return _mean_curve(windows, phase) or combine((1.0, curve) for curve in seen.curves)


def _known(rate: AccessRate | None) -> float | None:
    return None if rate is None else rate.accesses_per_cpu_second


def _phase_rate(windows: Sequence[AnalysedWindow], rate: AccessRate | None) -> AccessRate | None:
    """Return the rate of a phase: that of its windows, with the spread that the clock gave."""
    cpu_seconds = sum(window.record.cpu_seconds for window in windows)
    accesses = [window.accesses for window in windows if window.accesses is not None]
    if rate is None or len(accesses) < len(windows) or not cpu_seconds > 0:
        return rate
    return replace(rate, accesses_per_cpu_second=sum(accesses) / cpu_seconds)


def _weights(windows: Sequence[AnalysedWindow]) -> tuple[dict[int, float], str]:
    """Return each phase's share of the run, and what it is a share of."""
    known = sum(window.accesses is not None for window in windows)
    if not known:
        weighting = "cpu_seconds"
    else:
        weighting = "accesses" if known == len(windows) else "accesses, partly estimated"
    masses: dict[int, float] = {}
    for window in windows:
        masses[window.phase] = masses.get(window.phase, 0.0) + window.weight
    total = sum(masses.values())
    return {phase: mass / total if total else 0.0 for phase, mass in masses.items()}, weighting


def _rate_known_share(windows: Sequence[AnalysedWindow]) -> float:
    """Return the share of the CPU time whose accesses are known."""
    total = sum(window.record.cpu_seconds for window in windows)
    known = sum(w.record.cpu_seconds for w in windows if w.accesses is not None)
    return known / total if total > 0 else 0.0


def _warnings(
    recording: Recording,
    phases: Sequence[AnalysedPhase],
    weighting: str,
    rate_known_share: float,
) -> tuple[str, ...]:
    warnings = list(recording.warnings)
    if not recording.windows:
        warnings.append("the recording holds no windows: the target used too little CPU time")
    if weighting == "cpu_seconds":
        warnings.append("no access rate is known: phases are weighted by CPU time")
    elif weighting != "accesses":
        warnings.append(
            f"the access rate is known for {rate_known_share:.1%} of the CPU time: elsewhere what "
            "bursts of like code suggest stands in"
        )
    blind = [phase for phase in phases if phase.curve is None]
    if blind:
        share = sum(phase.weight for phase in blind)
        warnings.append(
            f"no burst was taken in {len(blind)} of {len(phases)} phases ({share:.1%} of the run): "
            "nothing is known of their misses"
        )
    return tuple(warnings)
