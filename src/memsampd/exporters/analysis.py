"""From a recording to curves: of every phase, every window and the whole run."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.exporters.recording import BurstRecord, MergeRecord, Recording, WindowRecord
from memsampd.models.combine import combine
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.nearest import burst_curves, nearest
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from memsampd.sampler.native_clock import local_rates
from memsampd.sampler.records import AccessRate, TwinMeasurement

MODELS: dict[str, type[StatStack] | type[StatCache]] = {"lru": StatStack, "random": StatCache}
MAX_SIZE_BYTES = 1 << 40
MAX_SIZES = 4096
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"(\d{1,15})\s*(?:([KMG])(?:i?B)?|B)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class AnalysedWindow:
    """A window with what is known of it.

    Attributes:
        record: the window as recorded.
        phase: its phase, merges applied.
        accesses: accesses made in it: as recorded, or its CPU time times its phase's rate, in
            proportion to the rates of the nearest timed bursts; None if neither is known.
        accesses_guess: where accesses are not known, its CPU time times the rate of the nearest
            timed burst in any phase; None if nothing was timed.
        curve: its miss-ratio curve, that of the nearest window of its phase with a burst; None
            if no window of its phase has one.
        guess: where there is no curve, that of the nearest window with a burst in any phase,
            bounded by 0 and 1, for nothing is known; None if there is no burst at all.
    """

    record: WindowRecord
    phase: int
    accesses: float | None
    accesses_guess: float | None = None
    curve: MissRatioCurve | None = None
    guess: MissRatioCurve | None = None

    @property
    def weight(self) -> float:
        """Its accesses, or the guess; its CPU time if nothing is known of any window's."""
        accesses = self.accesses if self.accesses is not None else self.accesses_guess
        return self.record.cpu_seconds if accesses is None else accesses


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
            "accesses, partly estimated" (where a phase's rate is unknown, that of the nearest burst
            stands in).
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
    rates = _rates(recording, final)
    bursts = _bursts(recording, final)
    moments = {id: _moments(mine, rates.get(id)) for id, mine in bursts.items()}
    windows = _with_accesses(recording, final, rates, moments)
    curves = {
        id: _window_curves(mine, model, sizes_bytes, line_bytes) for id, mine in moments.items()
    }
    windows = _with_curves(windows, curves)
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
                histogram=sum(
                    (moment.histogram for moment in moments.get(id, ())), ReuseHistogram.empty()
                ),
                curve=_phase_curve(mine, id, curves.get(id, {})),
                rate=rates.get(id),
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


@dataclass(frozen=True, slots=True)
class _Moment:
    """What one burst, of at least one access, says of its window.

    Attributes:
        window: index of the window.
        histogram: its reuse histogram.
        rate: accesses per CPU second then; where that was not timed, of the phase; 1 if unknown.
        is_timed: the rate is of this moment.
    """

    window: int
    histogram: ReuseHistogram
    rate: float
    is_timed: bool


def _bursts(recording: Recording, final: dict[int, int]) -> dict[int, list[BurstRecord]]:
    """Return the bursts of each phase."""
    bursts: dict[int, list[BurstRecord]] = {}
    for burst in recording.bursts:
        bursts.setdefault(final.get(burst.phase, burst.phase), []).append(burst)
    return bursts


def _moments(bursts: Sequence[BurstRecord], rate: AccessRate | None) -> list[_Moment]:
    """Return what the bursts of one phase say."""
    seen = [burst for burst in bursts if burst.accesses]
    mean_rate = rate.accesses_per_cpu_second if rate is not None else None
    if mean_rate is None:
        return [_Moment(burst.window, burst.histogram(), 1.0, False) for burst in seen]
    timed = {number: burst.twin for number, burst in enumerate(seen) if _is_good(burst.twin)}
    twins = [twin for twin in timed.values() if twin is not None]
    rates = dict(zip(timed, local_rates(twins, mean_rate), strict=True))
    return [
        _Moment(burst.window, burst.histogram(), rates.get(number, mean_rate), number in rates)
        for number, burst in enumerate(seen)
    ]


def _is_good(twin: TwinMeasurement | None) -> bool:
    return twin is not None and twin.cpu_seconds > 0 and twin.accesses > 0


def _with_accesses(
    recording: Recording,
    final: dict[int, int],
    rates: Mapping[int, AccessRate],
    moments: Mapping[int, Sequence[_Moment]],
) -> tuple[AnalysedWindow, ...]:
    """Give each window its phase and its accesses."""
    found: dict[int, float] = {}
    for phase, rate in rates.items():
        mine = [w for w in recording.windows if final.get(w.phase, w.phase) == phase]
        mean = rate.accesses_per_cpu_second
        if mine and mean is not None:
            found |= _local_accesses(mine, mean, moments.get(phase, ()))
    windows = tuple(
        AnalysedWindow(
            record,
            final.get(record.phase, record.phase),
            found.get(record.index) if record.accesses is None else record.accesses,
        )
        for record in recording.windows
    )
    return _with_guesses(windows, moments)


def _with_guesses(
    windows: Sequence[AnalysedWindow], moments: Mapping[int, Sequence[_Moment]]
) -> tuple[AnalysedWindow, ...]:
    """Guess the accesses of windows of which nothing is known.

    Their curve is guessed as that of the nearest burst, so its rate belongs to it: with the mean
    rate, code that seldom accesses memory, and misses mostly, would count for far too much.
    """
    timed: dict[int, list[float]] = {}
    for moment in itertools.chain.from_iterable(moments.values()):
        if moment.is_timed:
            timed.setdefault(moment.window, []).append(moment.rate)
    unknown = [window.record.index for window in windows if window.accesses is None]
    if not timed or not unknown:
        return tuple(windows)
    stand_ins = dict(zip(unknown, nearest(unknown, list(timed)).tolist(), strict=True))
    return tuple(
        replace(
            window,
            accesses_guess=statistics.fmean(timed[stand_ins[window.record.index]])
            * window.record.cpu_seconds,
        )
        if window.accesses is None
        else window
        for window in windows
    )


def _local_accesses(
    windows: Sequence[WindowRecord], mean_rate: float, moments: Sequence[_Moment]
) -> dict[int, float]:
    """Share out a phase's accesses among its windows.

    Bursts come at random moments of CPU time. Where fast and slow code take turns within a phase,
    the fast code makes more of the accesses than of the time, so each burst has to count by the
    rate at its own moment; the phase's total is that of its mean rate.

    Args:
        windows: of one phase.
        mean_rate: accesses per CPU second of the phase.
        moments: its bursts.

    Returns:
        Accesses by window.
    """
    cpu_seconds = np.array([window.cpu_seconds for window in windows])
    local = np.ones(len(windows))
    timed: dict[int, list[float]] = {}
    for moment in moments:
        if moment.is_timed:
            timed.setdefault(moment.window, []).append(moment.rate)
    if timed:
        stand_ins = nearest([window.index for window in windows], list(timed))
        local = np.array([statistics.fmean(timed[window]) for window in stand_ins.tolist()])
    accesses = local * cpu_seconds
    total = float(accesses.sum())
    if total > 0:
        accesses *= mean_rate * float(cpu_seconds.sum()) / total
    return {window.index: float(a) for window, a in zip(windows, accesses, strict=True)}


def _window_curves(
    moments: Sequence[_Moment],
    model: CacheModel,
    sizes_bytes: NDArray[np.int64],
    line_bytes: int,
) -> dict[int, MissRatioCurve]:
    """Return the curve of each profiled window of a phase.

    Bursts of one window come at random moments of its time: each speaks for as many accesses as
    are made in a time like its own.
    """
    histograms = {number: moment.histogram for number, moment in enumerate(moments)}
    curves = burst_curves(histograms, model, sizes_bytes, line_bytes)
    parts: dict[int, list[tuple[float, MissRatioCurve]]] = {}
    for moment, curve in zip(moments, curves.values(), strict=True):
        parts.setdefault(moment.window, []).append((moment.rate, curve))
    means = {window: combine(mine) for window, mine in parts.items()}
    return {window: curve for window, curve in means.items() if curve is not None}


def _with_curves(
    windows: Sequence[AnalysedWindow], curves: Mapping[int, Mapping[int, MissRatioCurve]]
) -> tuple[AnalysedWindow, ...]:
    """Give each window the curve of the nearest profiled one of its phase, or else a guess."""
    every = {index: curve for known in curves.values() for index, curve in known.items()}
    if not every:
        return tuple(windows)
    found: dict[int, MissRatioCurve] = {}
    for phase, known in curves.items():
        mine = [window.record.index for window in windows if window.phase == phase]
        stand_ins = nearest(mine, list(known)).tolist()
        found |= {index: known[other] for index, other in zip(mine, stand_ins, strict=True)}
    others = [window.record.index for window in windows if window.record.index not in found]
    guesses = dict(zip(others, nearest(others, list(every)).tolist(), strict=True))
    return tuple(
        replace(window, curve=found[window.record.index])
        if window.record.index in found
        else replace(window, guess=_unbounded(every[guesses[window.record.index]]))
        for window in windows
    )


def _unbounded(curve: MissRatioCurve) -> MissRatioCurve:
    """Return a curve as a guess: anything is possible."""
    nothing = np.zeros(len(curve.miss_ratio))
    return replace(curve, low=nothing, high=nothing + 1, sampled_accesses=0)


def _mean_curve(windows: Sequence[AnalysedWindow], phase: int) -> MissRatioCurve | None:
    """Return the mean of the curves of a phase's windows, or of the guesses at them."""
    return combine(
        (window.weight, window.curve or window.guess) for window in windows if window.phase == phase
    )


def _phase_curve(
    windows: Sequence[AnalysedWindow], phase: int, curves: Mapping[int, MissRatioCurve]
) -> MissRatioCurve | None:
    """Return the mean curve of a phase's windows, or of its bursts if it has no window."""
    if not curves:
        return None
    return _mean_curve(windows, phase) or combine((1.0, curve) for curve in curves.values())


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
            f"the access rate is known for {rate_known_share:.1%} of the CPU time: elsewhere that "
            "of the nearest burst stands in"
        )
    blind = [phase for phase in phases if phase.curve is None]
    if blind:
        share = sum(phase.weight for phase in blind)
        warnings.append(
            f"no burst was taken in {len(blind)} of {len(phases)} phases ({share:.1%} of the run): "
            "nothing is known of their misses"
        )
    return tuple(warnings)
