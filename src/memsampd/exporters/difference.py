"""Two recordings of one program, before and after a change: what is known to differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import code_vector
from memsampd.estimate.records import PhaseEstimate
from memsampd.exporters.analysis import Analysis
from memsampd.exporters.curves import at_size
from memsampd.models.records import MissRatioCurve
from memsampd.sampler.rates import AccessRate

Verdict = Literal["more", "fewer", "not known to differ", "not known"]
_LIKE_CODE = 0.7  # Bhattacharyya's coefficient of the branch vectors of two phases
_LIKE_CURVE = 0.9
_KNEE = 0.1
_DEVIATIONS = 2.0


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with its bounds; None where nothing is known."""

    value: float | None
    low: float | None
    high: float | None


UNKNOWN = Range(None, None, None)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after.

    Attributes:
        before: then.
        after: now.
    """

    before: Range
    after: Range

    @property
    def verdict(self) -> Verdict:
        """What can be said of it: where the bounds overlap, that it is not known to differ."""
        before, after = self.before, self.after
        if before.low is None or before.high is None or after.low is None or after.high is None:
            return "not known"
        if after.low > before.high:
            return "more"
        return "fewer" if after.high < before.low else "not known to differ"


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase that both recordings have.

    Attributes:
        before: id in the first.
        after: id in the second.
        likeness: of code or curves, 0..1.
        weight: share of all accesses.
        caches: misses per access at the machine's caches, by name.
    """

    before: int
    after: int
    likeness: float
    weight: tuple[float, float]
    caches: Mapping[str, Change]


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs, or is not known to.

    Attributes:
        sizes_bytes: cache sizes, shape (s,), int64.
        whole: misses per access of the whole run at each of them, length s.
        caches: misses per access of the whole run at the machine's caches, by name.
        traffic: bytes that a cache of that size fetches a CPU second, by name.
        accesses: accesses a CPU second.
        knee: cache size from which more cache saves little more, bytes.
        matched_by: what phases were matched by.
        phases: those that both have, heaviest first.
        gone: ids of the first that the second lacks.
        new: ids of the second that the first lacks.
    """

    sizes_bytes: NDArray[np.int64]
    whole: tuple[Change, ...]
    caches: Mapping[str, Change]
    traffic: Mapping[str, Change]
    accesses: Change
    knee: Change
    matched_by: Literal["code", "curve"]
    phases: tuple[PhaseChange, ...]
    gone: tuple[int, ...]
    new: tuple[int, ...]


def difference(
    before: Analysis, after: Analysis, shown_bytes: NDArray[np.int64] | None = None
) -> Difference:
    """Compare two analyses over the same sizes.

    Phases are matched by the code that their windows ran where that lies at the same addresses in
    both: the same build, not moved by address randomisation. Else they are by their curves.

    Args:
        before: the one.
        after: the other.
        shown_bytes: of the whole run these sizes are told, shape (s,); None: all.

    Raises:
        ValueError: the sizes differ.
    """
    if not np.array_equal(before.sizes_bytes, after.sizes_bytes):
        raise ValueError("analyses over different cache sizes")
    sizes_bytes = before.sizes_bytes if shown_bytes is None else shown_bytes
    levels = _levels(before, after)
    matched_by, pairs = _matches(before, after)
    mine, theirs = {one for one, _, _ in pairs}, {other for _, other, _ in pairs}
    phases = [_phase_change(before, after, pair, levels) for pair in pairs]
    return Difference(
        sizes_bytes=sizes_bytes,
        whole=tuple(
            Change(_at(before.overall, size), _at(after.overall, size))
            for size in sizes_bytes.tolist()
        ),
        caches=_at_levels(before.overall, after.overall, levels),
        traffic={
            name: Change(_traffic(before, size), _traffic(after, size))
            for name, size in levels.items()
        },
        accesses=Change(_rate(before.estimate.rate), _rate(after.estimate.rate)),
        knee=Change(_knee(before.overall), _knee(after.overall)),
        matched_by=matched_by,
        phases=tuple(sorted(phases, key=lambda phase: -sum(phase.weight))),
        gone=tuple(phase.id for phase in before.phases if phase.id not in mine),
        new=tuple(phase.id for phase in after.phases if phase.id not in theirs),
    )


def _levels(before: Analysis, after: Analysis) -> dict[str, int]:
    """Return the caches of the machine; where it is another one, those of the first."""
    header = before.recording.header
    return dict(header.cache_sizes_bytes or after.recording.header.cache_sizes_bytes)


def _at(curve: MissRatioCurve | None, size_bytes: int) -> Range:
    point = None if curve is None else at_size(curve, size_bytes)
    return UNKNOWN if point is None else Range(point.miss_ratio, point.low, point.high)


def _at_levels(
    before: MissRatioCurve | None, after: MissRatioCurve | None, levels: Mapping[str, int]
) -> dict[str, Change]:
    return {name: Change(_at(before, size), _at(after, size)) for name, size in levels.items()}


def _rate(rate: AccessRate) -> Range:
    each = rate.accesses_per_cpu_second
    if each is None:
        return UNKNOWN
    if rate.spread is None:
        return Range(each, None, None)
    factor = 1 + _DEVIATIONS * rate.spread
    return Range(each, each / factor, each * factor)


def _traffic(analysis: Analysis, size_bytes: int) -> Range:
    """Return the bytes that a cache fetches in a CPU second."""
    rate, ratio = _rate(analysis.estimate.rate), _at(analysis.overall, size_bytes)
    if rate.value is None or ratio.value is None:
        return UNKNOWN
    line = analysis.recording.header.line_bytes
    if rate.low is None or rate.high is None or ratio.low is None or ratio.high is None:
        return Range(line * rate.value * ratio.value, None, None)
    return Range(
        line * rate.value * ratio.value, line * rate.low * ratio.low, line * rate.high * ratio.high
    )


def _knee(curve: MissRatioCurve | None) -> Range:
    """Return the size that has saved nine tenths of the misses that any of the sizes saves.

    At least and at most: of any curve that falls and lies within the bounds.
    """
    if curve is None:
        return UNKNOWN

    def first(row: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        """The first size at which a row is as low as another one that has saved nine tenths."""
        is_low = row <= other[-1] + _KNEE * (other[0] - other[-1])
        return float(curve.sizes_bytes[int(np.argmax(is_low)) if is_low.any() else -1])

    middle = first(curve.miss_ratio, curve.miss_ratio)
    least, most = first(curve.low, curve.high), first(curve.high, curve.low)
    return Range(middle, min(middle, least), max(middle, most))


# -- phases ------------------------------------------------------------------------------------


def _phase_change(
    before: Analysis,
    after: Analysis,
    pair: tuple[int, int, float],
    levels: Mapping[str, int],
) -> PhaseChange:
    one, other, likeness = pair
    mine, theirs = before.phase(one), after.phase(other)
    return PhaseChange(
        before=one,
        after=other,
        likeness=likeness,
        weight=(mine.weight, theirs.weight),
        caches=_at_levels(before.curve(mine), after.curve(theirs), levels),
    )


def _matches(
    before: Analysis, after: Analysis
) -> tuple[Literal["code", "curve"], list[tuple[int, int, float]]]:
    """Return what phases were matched by, and (id, id, likeness) of each match."""
    mine, theirs = _codes(before), _codes(after)
    by_code = _greedy(
        before,
        after,
        lambda one, other: _bhattacharyya(mine.get(one.id), theirs.get(other.id)),
        _LIKE_CODE,
    )
    if by_code:
        return "code", by_code
    return "curve", _greedy(
        before,
        after,
        lambda one, other: _curve_likeness(before.curve(one), after.curve(other)),
        _LIKE_CURVE,
    )


def _greedy(
    before: Analysis,
    after: Analysis,
    likeness: Callable[[PhaseEstimate, PhaseEstimate], float],
    least: float,
) -> list[tuple[int, int, float]]:
    """Match the likest first; each phase once."""
    found = [
        (like, one.id, other.id)
        for one in before.phases
        for other in after.phases
        if (like := likeness(one, other)) >= least
    ]
    pairs, mine, theirs = [], set(), set()
    for like, one, other in sorted(found, key=lambda each: (-each[0], *each[1:])):
        if one not in mine and other not in theirs:
            mine.add(one)
            theirs.add(other)
            pairs.append((one, other, like))
    return pairs


def _codes(analysis: Analysis) -> dict[int, NDArray[np.float64]]:
    """Return what code each phase ran: its windows' branch vectors, summed."""
    found: dict[int, NDArray[np.float64]] = {}
    for window in analysis.windows:
        code = code_vector(window.record.code)
        known = found.get(window.phase)
        if known is None:
            found[window.phase] = code
        elif len(known) == len(code):
            found[window.phase] = known + code
    return found


def _bhattacharyya(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> float:
    if one is None or other is None or len(one) != len(other) or not one.sum() * other.sum() > 0:
        return 0.0
    return float(np.sqrt(one / one.sum() * other / other.sum()).sum())


def _curve_likeness(one: MissRatioCurve | None, other: MissRatioCurve | None) -> float:
    """Return 1 less the mean distance of two curves, in units of the larger of them."""
    if one is None or other is None:
        return 0.0
    apart = np.abs(one.miss_ratio - other.miss_ratio).mean()
    scale = max(one.miss_ratio.mean(), other.miss_ratio.mean())
    return float(1 - apart / scale) if scale > 0 else 1.0
