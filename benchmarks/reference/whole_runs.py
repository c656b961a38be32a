"""What a recording tells of a whole run, beside the exact figures: misses, and reuse distances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import EstimatorEvent, WatchRecord
from memsampd.exporters.analysis import analyse, estimator_of
from memsampd.exporters.recording import Recording
from memsampd.models.records import MissRatioCurve
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from reference.judging import bounds_hold
from reference.metrics import Floats
from reference.store import Reference
from reference.survival import survival_of
from reference.windows import LRU_SIZES_BYTES, REUSE_EDGES

LARGE_BYTES = 4 << 20
"""Caches from this size on hold what bursts are too short to see."""
LARGE_PROGRAMS = ("sorting", "fft", "hashjoin", "graph", "pagerank", "solver", "zstd", "sqlite3")
"""Programs that touch 25 to 183 MB."""

_FARTHEST_ACCESSES = 1 << 40
_STEPS_BEYOND = 512  # of the size, from a horizon to the farthest distance


class UntoldError(Exception):
    """A recording tells nothing of the whole run."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Shares of all accesses, estimated and exact.

    Attributes:
        points: cache sizes in bytes, or distances in accesses, shape (n,).
        exact: shape (n,), 0..1.
        estimate: shape (n,).
        low: lower bound, shape (n,).
        high: upper bound, shape (n,).
    """

    points: NDArray[np.int64]
    exact: Floats
    estimate: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, curve: MissRatioCurve | None, exact: Floats) -> Compared:
        """Put a curve beside the exact one.

        Raises:
            UntoldError: there is no curve.
        """
        if curve is None:
            raise UntoldError("a run that tells nothing: try again")
        return cls(curve.sizes_bytes, exact, curve.miss_ratio, curve.low, curve.high)

    def at(self, chosen: NDArray[np.bool_]) -> Compared:
        """Return some of the points, shape (n,)."""
        parts = (self.exact, self.estimate, self.low, self.high)
        return Compared(self.points[chosen], *(part[chosen] for part in parts))

    @property
    def errors(self) -> Floats:
        """Absolute error at each point, in points of a percent, shape (n,)."""
        return np.asarray(100 * np.abs(self.estimate - self.exact))

    @property
    def widths(self) -> Floats:
        """Width of the bounds at each point, in points of a percent, shape (n,)."""
        return np.asarray(100 * (self.high - self.low))

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Where the bounds hold the truth, shape (n,)."""
        return bounds_hold(self.low, self.high, self.exact)

    @property
    def held(self) -> float:
        """Of how many of the points that is so, in percent."""
        return 100 * float(self.holds.mean())


def nearest_edges(distances: Iterable[float]) -> NDArray[np.int64]:
    """Return the distances next to these at which references are exact, shape (n,)."""
    edges = np.log(REUSE_EDGES[1:])
    return np.array(
        [REUSE_EDGES[1 + int(np.argmin(np.abs(edges - np.log(each))))] for each in distances]
    )


def compare_sizes(
    recording: Recording, reference: Reference, sizes_bytes: Iterable[int] = LRU_SIZES_BYTES
) -> Compared:
    """Compare miss ratios of LRU caches.

    Args:
        recording: of a whole run.
        reference: of the same program.
        sizes_bytes: among ``LRU_SIZES_BYTES``, ascending.

    Raises:
        UntoldError: the recording tells nothing.
    """
    sizes = tuple(sizes_bytes)
    columns = [LRU_SIZES_BYTES.index(size) for size in sizes]
    exact = np.asarray(reference.lru[:, columns].sum(axis=0) / reference.total_accesses)
    return Compared.of(analyse(recording, "lru", np.array(sizes, np.int64)).overall, exact)


def compare_distances(
    recording: Recording, reference: Reference, distances: NDArray[np.int64]
) -> Compared:
    """Compare survival functions of reuse distances: shares of accesses that are reused as late.

    Args:
        recording: of a whole run.
        reference: of the same program.
        distances: accesses, shape (n,), ascending; the reference is exact at ``REUSE_EDGES``.

    Raises:
        UntoldError: the recording tells nothing.
    """
    exact = survival_of(reference.reuses.sum(axis=0), int(reference.cold.sum()))
    return Compared.of(told_distances(recording, distances), exact(distances))


def told_distances(recording: Recording, distances: NDArray[np.int64]) -> MissRatioCurve | None:
    """Return a recording's survival function, in place of a curve of caches.

    It is weighted, joined and bounded as curves of caches are. So bounds hold what cache models are
    wrong by, too, though none is used.
    """
    model = ReuseDistances()
    estimator = estimator_of(recording.header, distances, (model,))
    for event in recording.last_program:
        estimator.add(event)
    estimator.finish()
    return estimator.estimate().curves.get(model.policy)


def without_watches(recording: Recording) -> Recording:
    """Return the same as if there had been no watchpoints."""
    kept: list[EstimatorEvent] = [
        event for event in recording.events if not isinstance(event, WatchRecord)
    ]
    return replace(recording, events=kept)


class ReuseDistances:
    """A survival function where a cache model would be: distances in place of sizes.

    Within the horizon it is what is known. Beyond it, the bounds are 0 and S(horizon), and the
    estimate is what StatStack says of larger caches: of a cache of L lines that misses m(L) of all
    accesses, each further access within a reuse brings m(L) further lines, until they are L.
    """

    policy = "distances"

    def curve(
        self, survival: SurvivalFunction, sizes_bytes: NDArray[np.int64], line_bytes: int = 64
    ) -> MissRatioCurve:
        """Tell S at distances (``sizes_bytes``, shape (s,), ascending)."""
        is_known = sizes_bytes <= survival.horizon_accesses
        within = survival(sizes_bytes)
        beyond = within
        if survival.never_returned > 0 and not is_known.all():
            beyond = _beyond(survival, sizes_bytes, line_bytes)
        return MissRatioCurve(
            sizes_bytes=np.asarray(sizes_bytes, np.int64),
            miss_ratio=np.where(is_known, within, np.minimum(beyond, within)),
            low=np.where(is_known, within, 0.0),
            high=within,
            policy=self.policy,
            line_bytes=line_bytes,
            sampled_accesses=survival.sampled_accesses,
        )


def _beyond(survival: SurvivalFunction, distances: NDArray[np.int64], line_bytes: int) -> Floats:
    """S at distances beyond the horizon, as StatStack goes on."""
    horizon = max(survival.horizon_accesses, 1)
    plain = SurvivalFunction(survival.edges_accesses, survival.survival, survival.sampled_accesses)
    lines = np.unique(np.geomspace(1, _FARTHEST_ACCESSES, _STEPS_BEYOND).astype(np.int64))
    curve = StatStack().curve(plain, lines * line_bytes, line_bytes)
    is_beyond = curve.low < curve.high
    lines, missing = lines[is_beyond], curve.miss_ratio[is_beyond]
    steps = np.diff(lines) * 2 / (missing[1:] + missing[:-1])
    at = horizon + np.concatenate([[0.0], np.cumsum(steps)])
    return np.asarray(np.interp(distances, at, missing))
