"""From a recording to each window: its accesses and its miss-ratio curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memsampd.exporters.recording import BurstRecord, WindowRecord, code_vector
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.mixing import burst_shares
from memsampd.models.nearest import burst_curves
from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.sampler.burst_clock import is_usable

_AT_ONCE = 512  # windows, or bursts
# What a burst of another phase counts where it is not known what code it, or the window, ran.
_OTHER_PHASE = 1e-9
# From what likeness of two branch vectors on, 0..1, they are of the same code, and how much more
# the likelier count.
_ALIKE = 0.7
_ALIKE_POWER = 8


@dataclass(frozen=True, slots=True)
class AnalysedWindow:
    """A window with what is known of it.

    Attributes:
        record: the window as recorded.
        phase: its phase, merges applied.
        accesses: accesses made in it: as recorded, or its CPU time times the rates of the bursts
            that speak for it, of whatever phase; None if no burst of its own phase was timed.
        accesses_guess: where accesses are not known, the same nevertheless; None if nothing was
            timed.
        curve: its miss-ratio curve, the mean of the bursts that speak for it, by accesses; None if
            there is no burst in its phase.
        guess: where there is no curve, the same nevertheless, bounded by 0 and 1, for too little
            is known; None if there is no burst at all.
    """

    record: WindowRecord
    phase: int
    accesses: float | None = None
    accesses_guess: float | None = None
    curve: MissRatioCurve | None = None
    guess: MissRatioCurve | None = None

    @property
    def weight(self) -> float:
        """Its accesses, or the guess; its CPU time if nothing is known of any window's."""
        accesses = self.accesses if self.accesses is not None else self.accesses_guess
        return self.record.cpu_seconds if accesses is None else accesses


@dataclass(frozen=True, slots=True)
class SeenBursts:
    """What bursts of at least one access say, m of them.

    Attributes:
        window: indices of their windows, shape (m,), int64.
        code: their branch vectors, shape (m, b); zeros where not known.
        rate: accesses per CPU second then, or what stands in for it, shape (m,).
        is_measured: whose rate was measured, shape (m,), bool.
        is_timed: whether any rate is known.
        curves: their miss-ratio curves, in order.
        phase: their phases, shape (m,), int64.
        histogram: reuse histogram of all of them.
    """

    window: NDArray[np.int64]
    code: NDArray[np.float64]
    rate: NDArray[np.float64]
    is_measured: NDArray[np.bool_]
    is_timed: bool
    curves: tuple[MissRatioCurve, ...]
    phase: NDArray[np.int64]
    histogram: ReuseHistogram


def see_bursts(
    phase: int,
    bursts: Sequence[BurstRecord],
    phase_rate: float | None,
    bins: int,
    model: CacheModel,
    sizes_bytes: NDArray[np.int64],
    line_bytes: int,
) -> SeenBursts:
    """Model the bursts of one phase, each by itself.

    Args:
        phase: its id.
        bursts: of at least one access each.
        phase_rate: accesses per CPU second of the phase, as far as a clock knows.
        bins: length of branch vectors.
        model: the cache model.
        sizes_bytes: shape (s,), ascending.
        line_bytes: size of a line.
    """
    histograms = {number: burst.histogram() for number, burst in enumerate(bursts)}
    curves = burst_curves(histograms, model, sizes_bytes, line_bytes)
    rate, is_measured, is_timed = _rates(bursts, phase_rate)
    return SeenBursts(
        window=np.array([burst.window for burst in bursts], np.int64),
        code=np.array([_code(burst.code, bins) for burst in bursts]).reshape(-1, bins),
        rate=rate,
        is_measured=is_measured,
        is_timed=is_timed,
        curves=tuple(curves.values()),
        phase=np.full(len(bursts), phase, np.int64),
        histogram=sum(histograms.values(), ReuseHistogram.empty()),
    )


def _all_together(phases: Mapping[int, SeenBursts]) -> SeenBursts:
    """All bursts, with the rates that all together let expect."""
    seen = tuple(phases.values())
    together = SeenBursts(
        window=np.concatenate([each.window for each in seen]),
        code=np.concatenate([each.code for each in seen]),
        rate=np.concatenate([each.rate for each in seen]),
        is_measured=np.concatenate([each.is_measured for each in seen]),
        is_timed=any(each.is_timed for each in seen),
        curves=tuple(curve for each in seen for curve in each.curves),
        phase=np.concatenate([each.phase for each in seen]),
        histogram=sum((each.histogram for each in seen), ReuseHistogram.empty()),
    )
    in_timed = np.concatenate([np.full(len(each.rate), each.is_timed) for each in seen])
    if together.is_measured.any():
        return replace(together, rate=_expected_rates(together, in_timed))
    if in_timed.any():  # by a clock that times no bursts
        usual = np.mean([np.mean(each.rate) for each in seen if each.is_timed])
        return replace(together, rate=np.where(in_timed, together.rate, usual))
    return together


def _expected_rates(seen: SeenBursts, in_timed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rates of bursts, timed or not: a single measurement is no better than those of its like.

    The geometric mean of what was measured of the same code, if anything was. Else their own, or
    the mean of the phase, which they have already; the mean of all that were measured where the
    phase has none.

    Args:
        seen: all bursts, at least one of them measured.
        in_timed: whose phase has a rate, shape (m,).
    """
    known = seen.is_measured
    fallback = np.where(in_timed, seen.rate, np.mean(seen.rate[known]))
    share = np.sqrt(seen.code / np.maximum(seen.code.sum(axis=1, keepdims=True), 1))
    rate = np.log(seen.rate[known])
    parts = [slice(begin, begin + _AT_ONCE) for begin in range(0, len(fallback), _AT_ONCE)]
    return np.concatenate(
        [_rates_of_like(share[part], share[known], rate, fallback[part]) for part in parts]
    )


def _rates_of_like(
    share: NDArray[np.float64],
    known_share: NDArray[np.float64],
    known_rate: NDArray[np.float64],
    fallback: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The mean rate of the measured bursts that are like each; known rates are logarithms."""
    alike = share @ known_share.T  # Bhattacharyya's coefficient
    weight = alike**_ALIKE_POWER + np.finfo(float).tiny
    of_like = np.exp(weight @ known_rate / weight.sum(axis=1))
    return np.asarray(np.where(alike.max(axis=1) >= _ALIKE, of_like, fallback))


def code_bins(windows: Sequence[WindowRecord]) -> int:
    """Length of the branch vectors of a recording; 1 if none were kept."""
    return max((len(code_vector(window.code)) for window in windows), default=0) or 1


def _code(code: bytes, bins: int) -> NDArray[np.float64]:
    """A branch vector; zeros if it is not known."""
    hits = code_vector(code)
    return hits if len(hits) == bins else np.zeros(bins)


def _rates(
    bursts: Sequence[BurstRecord], phase_rate: float | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_], bool]:
    """Rates at the moments of bursts, which of them were measured, and whether any is known.

    A burst that was not timed has the mean of the phase; 1 if there is none.
    """
    measured = {
        number: burst.timed.accesses_per_cpu_second
        for number, burst in enumerate(bursts)
        if burst.timed is not None and is_usable(burst.timed)
    }
    is_measured = np.zeros(len(bursts), np.bool_)
    if phase_rate is None and not measured:
        return np.ones(len(bursts)), is_measured, False
    if phase_rate is None:
        phase_rate = statistics.fmean(measured.values())
    rates = np.full(len(bursts), phase_rate)
    if measured:
        rates[list(measured)] = list(measured.values())
        is_measured[list(measured)] = True
    return rates, is_measured, True


def analyse_windows(
    windows: Sequence[AnalysedWindow],
    seen: Mapping[int, SeenBursts],
    phase_rates: Mapping[int, float],
    bins: int,
) -> tuple[AnalysedWindow, ...]:
    """Give each window what bursts say that ran its code.

    Args:
        windows: with their phases.
        seen: the bursts by phase; phases without any are left out.
        phase_rates: accesses per CPU second of phases, as far as a clock knows.
        bins: length of branch vectors.
    """
    spoken: list[AnalysedWindow] = []
    if seen:
        everything = _all_together(seen)
        ran = np.asarray(everything.code.any(axis=0), np.bool_)
        everything = replace(everything, code=_without_unused(everything.code, ran))
        for begin in range(0, len(windows), _AT_ONCE):
            part = windows[begin : begin + _AT_ONCE]
            code = np.array([_code(window.record.code, bins) for window in part])
            spoken += _spoken_for(part, _without_unused(code, ran), seen, everything)
    return tuple(_as_known(w, phase_rates.get(w.phase)) for w in (spoken if seen else windows))


def _without_unused(code: NDArray[np.float64], ran: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Vectors with the bins of code that any burst ran, and one for all the others."""
    return np.column_stack([code[:, ran], code[:, ~ran].sum(axis=1)])


def _spoken_for(
    windows: Sequence[AnalysedWindow],
    code: NDArray[np.float64],
    seen: Mapping[int, SeenBursts],
    everything: SeenBursts,
) -> list[AnalysedWindow]:
    """Windows with what bursts say; it is a guess where none is of their phase."""
    own = np.equal.outer(np.array([window.phase for window in windows]), everything.phase)
    is_told = np.logical_and.outer(code.any(axis=1), everything.code.any(axis=1))
    by_rate = everything.rate * burst_shares(
        np.array([window.record.index for window in windows], np.int64),
        code,
        everything.window,
        everything.code,
        np.where(own | is_told, 1.0, _OTHER_PHASE),
    )
    curves = _mean_curves(by_rate, everything.curves)
    rates = by_rate.sum(axis=1).tolist()
    return [
        _with_what_is_said(window, seen.get(window.phase), curve, rate, everything.is_timed)
        for window, curve, rate in zip(windows, curves, rates, strict=True)
    ]


def _with_what_is_said(
    window: AnalysedWindow,
    own: SeenBursts | None,
    curve: MissRatioCurve,
    rate: float,
    is_timed: bool,
) -> AnalysedWindow:
    accesses = rate * window.record.cpu_seconds if is_timed else None
    is_known = own is not None and own.is_timed
    return replace(
        window,
        curve=curve if own is not None else None,
        guess=None if own is not None else _unbounded(curve),
        accesses=accesses if is_known else None,
        accesses_guess=None if is_known else accesses,
    )


def _as_known(window: AnalysedWindow, phase_rate: float | None) -> AnalysedWindow:
    """What was recorded of a window's accesses goes before what bursts say."""
    record = window.record
    if record.accesses is not None:
        return replace(window, accesses=record.accesses, accesses_guess=None)
    if window.accesses is None and phase_rate is not None:
        accesses = phase_rate * record.cpu_seconds
        return replace(window, accesses=accesses, accesses_guess=None)
    return window


def _mean_curves(
    weights: NDArray[np.float64], curves: Sequence[MissRatioCurve]
) -> list[MissRatioCurve]:
    """The mean curve of each window, shape of the weights (w, m)."""
    first, shares = curves[0], weights / weights.sum(axis=1, keepdims=True)
    middle, low, high = (
        np.clip(np.minimum.accumulate(shares @ np.array(rows), axis=1), 0.0, 1.0)
        for rows in (
            [curve.miss_ratio for curve in curves],
            [curve.low for curve in curves],
            [curve.high for curve in curves],
        )
    )
    sampled = shares @ np.array([float(curve.sampled_accesses) for curve in curves])
    return [
        replace(
            first,
            miss_ratio=middle[row],
            low=np.minimum(low[row], middle[row]),
            high=np.maximum(high[row], middle[row]),
            sampled_accesses=round(sampled[row]),
        )
        for row in range(len(shares))
    ]


def _unbounded(curve: MissRatioCurve) -> MissRatioCurve:
    """Return a curve as a guess: anything is possible."""
    nothing = np.zeros(len(curve.miss_ratio))
    return replace(curve, low=nothing, high=nothing + 1, sampled_accesses=0)
