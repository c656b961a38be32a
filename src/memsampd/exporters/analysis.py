"""From a recording to curves: the estimator is told again what it was told live."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import MergeRecord, WindowRecord
from memsampd.estimate.records import Estimate, PhaseEstimate, WindowEstimate
from memsampd.exporters.recording import Recording
from memsampd.models.records import MissRatioCurve
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack

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
        accesses: accesses made in it; None as long as no rate is known at all.
        is_rate_known: they come from rates of its own code, not from a mean of other code.
        curve: its miss-ratio curve, the mean of the bursts that speak for it; None if there was no
            burst at all.
        is_known: bursts have seen its code; if not, the curve is a guess with bounds of 0 and 1.
    """

    record: WindowRecord
    phase: int
    accesses: float | None
    is_rate_known: bool
    curve: MissRatioCurve | None
    is_known: bool

    @property
    def weight(self) -> float:
        """Its accesses; its CPU time if nothing is known of any window's."""
        return self.record.cpu_seconds if self.accesses is None else self.accesses


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that outputs show of a recording.

    Attributes:
        recording: the recording.
        policy: "lru" or "random".
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
        windows: the windows of the program that ran last, in order.
        estimate: what the estimator says at the end.
        weighting: what phases are weighted by: "accesses", "cpu_seconds" (no rate is known), or
            "accesses, partly estimated" (where a rate is unknown, the mean of others stands in).
        warnings: what a reader of the results has to know.
    """

    recording: Recording
    policy: str
    sizes_bytes: NDArray[np.int64]
    windows: tuple[AnalysedWindow, ...]
    estimate: Estimate
    weighting: str
    warnings: tuple[str, ...]

    @property
    def phases(self) -> tuple[PhaseEstimate, ...]:
        """The phases by id."""
        return self.estimate.phases

    @property
    def overall(self) -> MissRatioCurve | None:
        """Curve of the whole run; None if there was no burst."""
        return self.estimate.curves.get(self.policy)

    def phase(self, id: int) -> PhaseEstimate:
        """Return a phase by its id."""
        return next(phase for phase in self.phases if phase.id == id)

    def curve(self, phase: PhaseEstimate) -> MissRatioCurve | None:
        """Return a phase's curve; None if nothing is known of it."""
        return phase.curves.get(self.policy)


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
        recording: the recording; of a process that ran several programs, the last one counts.
        policy: replacement policy, a key of :data:`MODELS`.
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
    """
    told: dict[int, WindowEstimate] = {}
    estimator = Estimator(
        sizes_bytes,
        recording.header.line_bytes,
        (MODELS[policy](),),
        recording.header.cache_sizes_bytes,
        tell_window=lambda window: told.__setitem__(window.index, window),
    )
    events = recording.last_program
    for event in events:
        estimator.add(event)
    estimator.finish()
    final = final_phases(event for event in events if isinstance(event, MergeRecord))
    windows = tuple(
        _analysed(event, told[event.index], final, policy)
        for event in events
        if isinstance(event, WindowRecord)
    )
    estimate = estimator.estimate()
    weighting = _weighting(windows)
    return Analysis(
        recording=recording,
        policy=policy,
        sizes_bytes=sizes_bytes,
        windows=windows,
        estimate=estimate,
        weighting=weighting,
        warnings=_warnings(recording, estimate, weighting),
    )


def _analysed(
    record: WindowRecord, known: WindowEstimate, final: dict[int, int], policy: str
) -> AnalysedWindow:
    return AnalysedWindow(
        record=record,
        phase=final.get(record.phase, record.phase),
        accesses=known.accesses,
        is_rate_known=known.is_rate_known,
        curve=known.curves.get(policy),
        is_known=known.is_known,
    )


def final_phases(merges: Iterable[MergeRecord]) -> dict[int, int]:
    """Return what each merged phase is called in the end."""
    final: dict[int, int] = {}
    for merge in merges:
        into = final.get(merge.into, merge.into)
        final[merge.gone] = into
        for gone, target in final.items():
            if target == merge.gone:
                final[gone] = into
    return final


def _weighting(windows: tuple[AnalysedWindow, ...]) -> str:
    """Return what windows are weighted by."""
    if not any(window.accesses is not None for window in windows):
        return "cpu_seconds"
    is_known = all(window.is_rate_known for window in windows)
    return "accesses" if is_known else "accesses, partly estimated"


def _warnings(recording: Recording, estimate: Estimate, weighting: str) -> tuple[str, ...]:
    warnings = list(recording.warnings)
    if not estimate.windows:
        warnings.append("the recording holds no windows: the target used too little CPU time")
    if weighting == "cpu_seconds":
        warnings.append("no access rate is known: phases are weighted by CPU time")
    elif weighting != "accesses":
        warnings.append(
            f"the access rate is known for {estimate.rate_known_share:.1%} of the CPU time: "
            "elsewhere what bursts of like code suggest stands in"
        )
    if estimate.unknown_cpu_seconds > 0:
        share = estimate.unknown_cpu_seconds / estimate.cpu_seconds
        warnings.append(
            f"no burst has seen the code that ran for {share:.1%} of the CPU time: nothing is "
            "known of its misses"
        )
    return tuple(warnings)
