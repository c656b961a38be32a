"""From a recording to curves: the estimator is told again what it was told live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import WindowRecord
from memsampd.estimate.records import Estimate, PhaseEstimate, WindowEstimate
from memsampd.exporters.documents import OF_CHILDREN, WORTH_SAYING
from memsampd.exporters.recording import HeaderRecord, Recording
from memsampd.models.policies import MODELS
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes, with_caches


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


def usual_sizes(recordings: Iterable[Recording], steps_per_octave: int = 1) -> NDArray[np.int64]:
    """Return the sizes at which recordings are shown: beyond the caches of their machines, int64.

    Args:
        recordings: all that are shown together.
        steps_per_octave: so many sizes between a power of two and the next one.
    """
    caches = caches_of(recordings)
    return with_caches(default_sizes(steps_per_octave, caches), caches)


def caches_of(recordings: Iterable[Recording]) -> list[int]:
    """Return the sizes of the caches of recordings' machines, bytes."""
    return [size for each in recordings for size in each.header.cache_sizes_bytes.values()]


def estimator_of(
    header: HeaderRecord,
    sizes_bytes: NDArray[np.int64],
    models: Sequence[CacheModel] | None = None,
    tell_window: Callable[[WindowEstimate], None] | None = None,
) -> Estimator:
    """Return what a recording's events are to be told to, as the session's own one was made.

    Args:
        header: of the recording.
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
        models: one for each policy; None: all.
        tell_window: told of each window once it is settled.
    """
    return Estimator(
        sizes_bytes,
        header.line_bytes,
        models,
        header.cache_sizes_bytes,
        header.cache_seconds,
        tell_window=tell_window,
    )


def analyse(recording: Recording, policy: str, sizes_bytes: NDArray[np.int64]) -> Analysis:
    """Work out all curves of a recording.

    Args:
        recording: the recording; of a process that ran several programs, the last one counts.
        policy: replacement policy, a key of :data:`~memsampd.models.policies.MODELS`.
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
    """
    told: dict[int, WindowEstimate] = {}
    estimator = estimator_of(
        recording.header,
        sizes_bytes,
        (MODELS[policy](),),
        lambda window: told.__setitem__(window.index, window),
    )
    events = recording.last_program
    for event in events:
        estimator.add(event)
    estimator.finish()
    windows = tuple(
        _analysed(event, told[event.index], estimator.phase_now(event.phase), policy)
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
    record: WindowRecord, known: WindowEstimate, phase: int, policy: str
) -> AnalysedWindow:
    return AnalysedWindow(
        record=record,
        phase=phase,
        accesses=known.accesses,
        is_rate_known=known.is_rate_known,
        curve=known.curves.get(policy),
        is_known=known.is_known,
    )


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
            "elsewhere it is modelled, within a factor of two or so"
        )
    if estimate.unknown_cpu_seconds > 0:
        share = estimate.unknown_cpu_seconds / estimate.cpu_seconds
        warnings.append(
            f"no burst has seen the code that ran for {share:.1%} of the CPU time: nothing is "
            "known of its misses"
        )
    children = recording.summary.child_share if recording.summary is not None else 0.0
    if children >= WORTH_SAYING:
        warnings.append(f"child processes used {children:.1%} of the CPU time: {OF_CHILDREN}")
    return tuple(warnings)
