"""Phases from branch vectors: leader-follower clustering that knows how noisy a vector is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memsampd.phases.noise import compare
from memsampd.phases.records import Assignment, Leader, Window

_TOGETHER = (2, 4)  # windows in a row that are looked at together
# Noise is exceeded as rarely as a normal variable exceeds so many standard deviations; with 4, 5 of
# 72000 windows founded a phase although nothing changed. Merging is stricter, so that no phase is
# founded and merged in turns.
_DEVIATIONS, _MERGE_DEVIATIONS = 4.0, 1.0
_HOT_SHARE, _HOT_HITS = 0.1, 4  # of a window: what once had so many has a place of its own


class _Found(NamedTuple):
    """A row, whether it accepts the window, and how far away it is."""

    row: int
    accepts: bool
    distance: float


def _are_alike(
    counts: NDArray[np.float64],
    other: NDArray[np.float64],
    tolerance: float,
    deviations: float = _DEVIATIONS,
) -> bool:
    """Whether noise and a true L1 distance that is tolerated explain how far apart two are."""
    comparison = compare(counts, other)
    return comparison.distance <= comparison.threshold(tolerance, deviations)


class LeaderFollower:
    """Online leader-follower clustering of branch vectors.

    A window joins the nearest phase from which it is no further away than noise (for its hits n
    and the M of the centroid) or ``tolerance`` explain; if none is, it founds one.

    The centroid is the sum of the hits of its windows, so a window weighs 1/(count + 1). Beyond
    ``memory_windows`` windows the sum is aged to that many before each new one joins: the weight
    stays at 1/(memory_windows + 1), so slow drift is followed, and M stays an honest sample size.

    One window of few hits cannot tell what is half its phase from all of it, so a phase that once
    took in a window of other code may go on to take in all of that. Therefore the latest windows
    are looked at together, two and four in a row that joined one phase: if they are further from
    the rest of it than noise and ``split_tolerance`` explain, they leave it and found one.

    Two phases whose centroids turn out alike (half the tolerance, and less noise is allowed for)
    become one, the one of more windows. A phase too many pushes out the least active one, whose
    windows are counted to the nearest phase but leave its centroid alone. Both are reported as
    merges; ids are given once and never again.

    Few bins make less noise than many, but of six loops two share a bin of 64 in every fifth
    program, and what runs one of them would be in the phase of the other. So where vectors are of
    more bins than they are compared by, those that once had a tenth of a window's hits count by
    themselves, in all centroids from then on.

    Args:
        tolerance: true L1 distance (0..2) that still counts as one phase.
        split_tolerance: true L1 distance of windows in a row from the rest of their phase that
            still counts as one.
        max_phases: phases alive at most.
        memory_windows: windows that a centroid remembers, and half-life of the activity of a phase
            in windows.
        first_id: id of the first phase; the next ones count on from it.
        bins: vectors are compared by so many bins, into which theirs fall by their remainders;
            None: by their own.

    References:
        Sembrant, Eklov, Hagersten: Efficient software-based online phase classification
        (ScarPhase), IISWC 2011, where the threshold is fixed (0.4) whatever the hits of a window.

    Examples:
        >>> phases = LeaderFollower()
        >>> for hits in ([90.0, 10, 0], [85.0, 15, 0], [0.0, 0, 100]):
        ...     phases.learn_counts(np.array(hits)).phase
        0
        0
        1
    """

    def __init__(
        self,
        tolerance: float = 0.3,
        split_tolerance: float = 0.6,
        max_phases: int = 64,
        memory_windows: int = 256,
        first_id: int = 0,
        bins: int | None = None,
    ) -> None:
        if not 0 <= tolerance <= 2:
            raise ValueError(f"tolerance is an L1 distance, 0..2, not {tolerance}")
        if max_phases < 1 or memory_windows < 1:
            raise ValueError("max_phases and memory_windows are at least 1")
        self.tolerance = tolerance
        self.split_tolerance = split_tolerance
        self._max_phases = max_phases
        self._memory_windows = memory_windows
        self._bins = bins or 0
        self._columns: dict[int, int] = {}  # of bins
        self._sums: NDArray[np.float64] = np.zeros((0, 0))
        self._places = np.empty(0, np.intp)  # of columns, in what is compared
        self._own_places = 0  # of columns that share none, behind `_bins` of those that do
        self._compared: NDArray[np.float64] | None = None  # sums by place, until they change
        self._ids: list[int] = []
        self._remembered: list[float] = []  # windows in the centroid, at most memory_windows
        self._windows: list[int] = []
        self._activity: list[float] = []
        self._founded = first_id
        self._run_phase = -1  # that the latest windows joined
        self._run: list[NDArray[np.float64]] = []  # these, as many as are looked at together

    # -- the seam WindowClusterer --------------------------------------------------------------

    def assign(self, window: Window) -> Assignment:
        """Learn one window and say which phase it belongs to.

        Raises:
            ValueError: if it holds no sample.
        """
        return self.learn_counts(window.code)

    def learn_counts(self, counts: NDArray[np.float64]) -> Assignment:
        """Learn one window given as a vector.

        Args:
            counts: hits a bin, shape (bins,): raw counts, since their sum says how noisy they are.

        Raises:
            ValueError: if it holds no hit, or a count is negative or not finite.
        """
        bins = np.flatnonzero(counts)
        if not len(bins):
            raise ValueError("a window without hits has no phase")
        vector = self._vector(bins, counts[bins])
        self._part(vector)
        return self._learn(vector)

    @property
    def phases(self) -> tuple[int, ...]:
        """Ids of the live phases, ascending."""
        return tuple(sorted(self._ids))

    # -- what outlives it ----------------------------------------------------------------------

    def leaders(self, bins: int) -> tuple[Leader, ...]:
        """Say what the live phases are known by, so that another one can go on with them.

        Args:
            bins: length of branch vectors.
        """
        found = []
        for row, phase in enumerate(self._ids):
            hits = np.zeros(bins)
            for bin_, column in self._columns.items():
                hits[bin_] = self._sums[row, column]
            found.append(Leader(phase, hits, self._remembered[row], self._windows[row]))
        return tuple(found)

    def restore(self, leaders: Sequence[Leader]) -> None:
        """Begin with phases that are known already, before the first window.

        Args:
            leaders: of different ids from ``first_id`` on, ``max_phases`` at most; each with a hit.
        """
        if self._ids:
            raise ValueError("phases can be restored before the first window only")
        for leader in leaders:
            bins = np.flatnonzero(leader.hits)
            counts = self._vector(bins, leader.hits[bins])
            self._sums = np.vstack([self._sums, counts])
            self._ids.append(leader.phase)
            self._remembered.append(leader.remembered)
            self._windows.append(leader.windows)
            self._activity.append(1.0)
            self._founded = max(self._founded, leader.phase + 1)

    # -- inside --------------------------------------------------------------------------------

    def _vector(self, bins: NDArray[np.intp], hits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lay hits out in columns; bins unknown so far get new ones at the end."""
        if not 0 < hits.min() <= hits.max() < np.inf:
            raise ValueError("hits are finite counts, not negative")
        columns = [self._columns.setdefault(each, len(self._columns)) for each in bins.tolist()]
        new = [*itertools.islice(self._columns, len(self._places), None)]
        places = [each % self._bins if self._bins else self._own_place() for each in new]
        self._places = np.concatenate([self._places, np.array(places, np.intp)])
        if self._sums.shape[1] < len(self._columns):
            # Room for twice as many, so that growing costs little on the whole.
            missing = 2 * len(self._columns) - self._sums.shape[1]
            self._sums = np.pad(self._sums, ((0, 0), (0, missing)))
        vector = np.zeros(self._sums.shape[1])
        vector[columns] = hits
        return vector

    def _own_place(self) -> int:
        self._own_places += 1
        self._compared = None
        return self._bins + self._own_places - 1

    def _part(self, counts: NDArray[np.float64]) -> None:
        """Give columns that have many of a window's hits places of their own."""
        for column in np.flatnonzero(counts >= max(_HOT_SHARE * counts.sum(), _HOT_HITS)).tolist():
            if self._places[column] < self._bins:
                self._places[column] = self._own_place()

    def _by_place(self, hits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lay hits by column out as they are compared."""
        known = hits[: len(self._places)]  # behind these there is but room
        places = self._bins + self._own_places
        return np.asarray(np.bincount(self._places[: len(known)], known, places), np.float64)

    def _learn(self, counts: NDArray[np.float64]) -> Assignment:
        """Join the window to a phase or found one for it."""
        merged: list[tuple[int, int]] = []
        found = self._find(counts)
        if not found.accepts:
            if len(self._ids) == self._max_phases:
                merged.append(self._evict())
            phase = self._found(counts)
            self._note(phase, counts)
            return Assignment(phase, found.distance, True, tuple(merged))
        self._join(found.row, counts)
        phase = self._ids[found.row]
        self._note(phase, counts)
        if (founded := self._leave(phase, merged)) is not None:
            return Assignment(founded, found.distance, True, tuple(merged))
        while (pair := self._merge_with_alike(phase)) is not None:
            merged.append(pair)
            phase = pair[1]
        return Assignment(phase, found.distance, merged=tuple(merged))

    def _find(self, counts: NDArray[np.float64]) -> _Found:
        """Find the nearest row that accepts the window, else the nearest row."""
        if not self._ids:
            return _Found(0, False, 0.0)
        mine, sums = self._by_place(counts), self._sums_by_place()
        apart = np.abs(self._centroids() - mine / mine.sum()).sum(axis=1)
        distances = [min(each, 2.0) for each in apart.tolist()]
        order = sorted(range(len(distances)), key=distances.__getitem__)
        for row in order:
            if distances[row] <= self.tolerance or _are_alike(mine, sums[row], self.tolerance):
                return _Found(row, True, distances[row])
        return _Found(order[0], False, distances[order[0]])

    def _sums_by_place(self) -> NDArray[np.float64]:
        """What centroids are compared by, shape (phases, places)."""
        if self._compared is None:
            self._compared = np.array([self._by_place(row) for row in self._sums])
        return self._compared

    def _centroids(self) -> NDArray[np.float64]:
        """The same as shares of their hits."""
        sums = self._sums_by_place()
        return np.asarray(sums / sums.sum(axis=1, keepdims=True))

    def _found(self, counts: NDArray[np.float64], windows: int = 1) -> int:
        self._age_activity()
        self._sums, self._compared = np.vstack([self._sums, counts]), None
        self._ids.append(self._founded)
        self._remembered.append(float(windows))
        self._windows.append(windows)
        self._activity.append(float(windows))
        self._founded += 1
        return self._ids[-1]

    def _join(self, row: int, counts: NDArray[np.float64]) -> None:
        self._age_activity()
        excess = self._remembered[row] / self._memory_windows
        if excess > 1:
            self._sums[row] /= excess
            self._remembered[row] /= excess
        self._sums[row] += counts
        if self._compared is not None:
            self._compared[row] = self._by_place(self._sums[row])
        self._remembered[row] += 1
        self._windows[row] += 1
        self._activity[row] += 1

    def _note(self, phase: int, counts: NDArray[np.float64]) -> None:
        """Remember a window that joined a phase, and those in a row before it."""
        if phase != self._run_phase:
            self._run_phase, self._run = phase, []
        self._run = [*self._run, counts][-_TOGETHER[-1] :]

    def _latest(self, windows: int) -> NDArray[np.float64]:
        """The hits of so many of the latest windows."""
        hits = np.zeros(self._sums.shape[1])
        for counts in self._run[-windows:]:
            hits[: len(counts)] += counts
        return hits

    def _leave(self, phase: int, merged: list[tuple[int, int]]) -> int | None:
        """Have the latest windows found a phase if they are unlike the rest of theirs; its id.

        Args:
            phase: theirs.
            merged: is told which phase was given up, if there were as many as there may be.
        """
        if self._max_phases == 1:
            return None
        row = self._ids.index(phase)
        for windows in _TOGETHER:
            if len(self._run) < windows or self._remembered[row] < windows + 1:
                break
            latest = self._latest(windows)
            rest = np.maximum(self._sums[row] - latest, 0.0)
            pair = self._by_place(latest), self._by_place(rest)
            if _are_alike(*pair, self.split_tolerance):
                continue
            if len(self._ids) == self._max_phases:
                merged.append(self._evict(spared=row))
                row = self._ids.index(phase)
            self._sums[row] = rest
            self._remembered[row] -= windows
            self._windows[row] -= windows
            self._activity[row] = max(self._activity[row] - windows, 0.0)
            self._run_phase, self._run = self._found(latest, windows), self._run[-windows:]
            return self._run_phase
        return None

    def _age_activity(self) -> None:
        aging = 0.5 ** (1 / self._memory_windows)
        self._activity = [activity * aging for activity in self._activity]

    def _merge_with_alike(self, phase: int) -> tuple[int, int] | None:
        """Merge this phase with its nearest neighbour if the two are alike: (gone, into)."""
        if len(self._ids) < 2:
            return None
        row = self._ids.index(phase)
        neighbour = self._neighbour(row)
        pair = self._sums_by_place()[row], self._sums_by_place()[neighbour]
        if not _are_alike(*pair, self.tolerance / 2, _MERGE_DEVIATIONS):
            return None
        into, gone = sorted((row, neighbour), key=lambda r: (-self._windows[r], self._ids[r]))
        self._sums[into] += self._sums[gone]
        self._compared = None
        self._remembered[into] += self._remembered[gone]
        return self._hand_over(gone, into)

    def _evict(self, spared: int | None = None) -> tuple[int, int]:
        """Give up the least active phase, but for one row: (gone, its nearest neighbour)."""
        rows = [row for row in range(len(self._ids)) if row != spared]
        gone = min(rows, key=lambda row: (self._activity[row], self._ids[row]))
        if len(self._ids) == 1:
            # max_phases = 1: nobody can take its place but the phase that is about to come.
            pair = (self._ids[0], self._founded)
            self._drop(0)
            return pair
        return self._hand_over(gone, self._neighbour(gone))

    def _neighbour(self, row: int) -> int:
        """The row whose centroid is nearest to this one's."""
        shares = self._centroids()
        distance = np.abs(shares - shares[row]).sum(axis=1)
        distance[row] = np.inf
        return int(np.argmin(distance))

    def _hand_over(self, gone: int, into: int) -> tuple[int, int]:
        pair = self._ids[gone], self._ids[into]
        self._windows[into] += self._windows[gone]
        self._activity[into] += self._activity[gone]
        self._drop(gone)
        return pair

    def _drop(self, row: int) -> None:
        self._sums = np.delete(self._sums, row, axis=0)
        self._compared = None
        for column in (self._ids, self._remembered, self._windows, self._activity):
            del column[row]
