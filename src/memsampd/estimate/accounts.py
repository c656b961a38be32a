"""What has been added up of phases: time, accesses, misses, and what these rest on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.estimate.watches import PhaseWatches
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import Speed

# Bursts and watches that are told late name phases that are gone, but none gone for so long.
_MERGES_KNOWN = 4096


class WindowSums(msgspec.Struct):
    """Sums over windows.

    Attributes:
        accesses: estimated accesses.
        misses: estimated misses, in the figures of a :class:`CurveLayout`, shape (values,).
        sure_hits: accesses that hit by what memory the program had, shape (policies * s,).
        unseen: accesses in code that no burst has seen, bounded by those of bursts besides.
        rated_cpu_seconds: CPU time in code whose rate was measured in the target.
        unknown_cpu_seconds: CPU time of windows of which nothing is known.
        unknown_accesses: guessed accesses of these.
        weights: accesses for which each remembered burst speaks, shape (capacity,).
    """

    accesses: float
    misses: NDArray[np.float64]
    sure_hits: NDArray[np.float64]
    unseen: float
    rated_cpu_seconds: float
    unknown_cpu_seconds: float
    unknown_accesses: float
    weights: NDArray[np.float64]

    @classmethod
    def nothing(cls, values: int, capacity: int) -> WindowSums:
        """Return the sums over no window."""
        misses, hits = np.zeros(values), np.zeros(values // 3)
        return cls(0.0, misses, hits, 0.0, 0.0, 0.0, 0.0, np.zeros(capacity))

    def add(self, other: WindowSums) -> None:
        """Add what was summed over other windows."""
        self.accesses += other.accesses
        self.misses += other.misses
        self.sure_hits += other.sure_hits
        self.unseen += other.unseen
        self.rated_cpu_seconds += other.rated_cpu_seconds
        self.unknown_cpu_seconds += other.unknown_cpu_seconds
        self.unknown_accesses += other.unknown_accesses
        self.weights += other.weights

    def keep_rows(self, kept: NDArray[np.int64]) -> None:
        """Of the remembered bursts only these are left, in this order."""
        weights = np.zeros_like(self.weights)
        weights[: len(kept)] = self.weights[kept]
        self.weights = weights

    def copy(self) -> WindowSums:
        """Return sums that can be changed."""
        return replace(
            self,
            misses=self.misses.copy(),
            sure_hits=self.sure_hits.copy(),
            weights=self.weights.copy(),
        )


class BurstSums(msgspec.Struct):
    """Sums over bursts of a phase.

    Attributes:
        bursts: how many.
        rows: references observed in them.
        beyond_rows: of these, made when the target ran on meanwhile.
        writes: stores among these.
        histogram: reuse histogram of all of them.
    """

    bursts: int = 0
    rows: int = 0
    beyond_rows: int = 0
    writes: int = 0
    histogram: ReuseHistogram = msgspec.field(default_factory=ReuseHistogram.empty)

    def absorb(self, other: BurstSums) -> None:
        """Add those of others."""
        self.bursts += other.bursts
        self.rows += other.rows
        self.beyond_rows += other.beyond_rows
        self.writes += other.writes
        self.histogram += other.histogram


class PhaseAccount(msgspec.Struct):
    """One phase: windows that are settled, and its bursts.

    Attributes:
        settled: sums over the windows that are settled.
        windows: all of its windows.
        cpu_seconds: of all of these.
        squares: sum of the squares of weights of bursts that are not remembered by themselves.
        taken: its bursts that were taken since the attach.
        stored: those that were known before.
        latest_stored_seconds: when the latest of these was taken, seconds since the attach.
        watches: what watchpoints told of its lines.
        instructions: executed in the windows of which counters told it.
        cycles: that these took.
    """

    settled: WindowSums
    windows: int = 0
    cpu_seconds: float = 0.0
    squares: float = 0.0
    taken: BurstSums = msgspec.field(default_factory=BurstSums)
    stored: BurstSums = msgspec.field(default_factory=BurstSums)
    latest_stored_seconds: float = -np.inf
    watches: PhaseWatches = msgspec.field(default_factory=PhaseWatches)
    instructions: float = 0.0
    cycles: float = 0.0
    _all: tuple[ReuseHistogram, ReuseHistogram, ReuseHistogram] | None = None
    _pooled: tuple[ReuseHistogram, SurvivalFunction] | None = None

    @classmethod
    def new(cls, values: int, capacity: int) -> PhaseAccount:
        """Return the account of a phase that has just been found."""
        return cls(WindowSums.nothing(values, capacity))

    def absorb(self, other: PhaseAccount) -> None:
        """Take over all of a phase that turned out to be this one."""
        self.settled.add(other.settled)
        self.windows += other.windows
        self.cpu_seconds += other.cpu_seconds
        self.squares += other.squares
        self.taken.absorb(other.taken)
        self.stored.absorb(other.stored)
        self.latest_stored_seconds = max(self.latest_stored_seconds, other.latest_stored_seconds)
        self.watches.absorb(other.watches)
        self.instructions += other.instructions
        self.cycles += other.cycles

    def add_speed(self, speed: Speed | None, cpu_seconds: float) -> None:
        """Count what a window executed.

        Args:
            speed: as counters told it, for a part of the time where others had them; None: nothing.
            cpu_seconds: of all of the window.
        """
        if speed is None or not math.isfinite(speed.cycles_per_instruction):
            return
        instructions = speed.instructions_per_cpu_second * cpu_seconds
        self.instructions += instructions
        self.cycles += instructions * speed.cycles_per_instruction

    @property
    def cycles_per_instruction(self) -> float | None:
        """CPI of its windows; None where no counter told it."""
        return self.cycles / self.instructions if self.instructions > 0 else None

    @property
    def write_share(self) -> float | None:
        """Share of stores among the accesses of its bursts; None where these made none."""
        return _write_share([self])

    @property
    def histogram(self) -> ReuseHistogram:
        """Reuse histogram of all its bursts."""
        return self._both()[2]

    def pooled(self) -> SurvivalFunction:
        """Return the survival function of all its bursts, worked out once until there are more."""
        histogram = self._both()[2]
        if self._pooled is None or self._pooled[0] is not histogram:
            self._pooled = histogram, SurvivalFunction.from_histogram(histogram)
        return self._pooled[1]

    def _both(self) -> tuple[ReuseHistogram, ReuseHistogram, ReuseHistogram]:
        """Those that were taken, those that were stored, and both together."""
        taken, stored = self.taken.histogram, self.stored.histogram
        if self._all is None or self._all[0] is not taken or self._all[1] is not stored:
            self._all = taken, stored, taken + stored
        return self._all

    def keep_rows(self, kept: NDArray[np.int64], dropped: NDArray[np.int64]) -> None:
        """Some remembered bursts were forgotten: what they spoke for stays as uncertain as it was.

        Args:
            kept: rows of those that stay, in their new order, shape (k,).
            dropped: rows of the others, shape (d,).
        """
        weights = self.settled.weights
        self.squares += float(weights[dropped] @ weights[dropped])
        self.settled.keep_rows(kept)

    def change_bounds(self, row: int, change: NDArray[np.float64]) -> None:
        """Bounds of a remembered burst are others now: so are those of the windows it speaks for.

        Args:
            row: of the burst.
            change: of its curve, shape (policies, 3, s): nothing where accesses hit in any case, by
                what memory the program had.
        """
        settled = self.settled
        if not settled.weights[row]:
            return
        free = 1.0 - settled.sure_hits / max(settled.accesses, 1.0)
        settled.misses += settled.weights[row] * (change * free.reshape(len(change), 1, -1)).ravel()

    def join_rows(self, gone: int, into: int) -> None:
        """Two remembered bursts became one: what they spoke for stays as uncertain as it was."""
        weights = self.settled.weights
        self.squares += float(weights[gone] ** 2 + weights[into] ** 2)
        weights[gone] = weights[into] = 0.0


def _write_share(accounts: Collection[PhaseAccount]) -> float | None:
    bursts = [sums for account in accounts for sums in (account.taken, account.stored)]
    rows = sum(sums.rows for sums in bursts)
    return sum(sums.writes for sums in bursts) / rows if rows else None


class PhaseAccounts:
    """Accounts of all phases, by what these are called now.

    Args:
        values: figures of a curve.
        capacity: bursts that are told apart.
    """

    def __init__(self, values: int, capacity: int) -> None:
        self._values = values
        self._capacity = capacity
        self._accounts: dict[int, PhaseAccount] = {}
        self._merged: dict[int, int] = {}

    @property
    def by_phase(self) -> Mapping[int, PhaseAccount]:
        """All of them, in the order of their first appearance."""
        return self._accounts

    def of(self, phase: int) -> PhaseAccount:
        """Return that of a phase, which may be new."""
        if phase not in self._accounts:
            self._accounts[phase] = PhaseAccount.new(self._values, self._capacity)
        return self._accounts[phase]

    def usual_write_share(self) -> float:
        """Share of stores among the accesses of all bursts; 0 where these made none."""
        return _write_share(self._accounts.values()) or 0.0

    def phase_now(self, phase: int) -> int:
        """Return what a phase is called now, merges applied."""
        passed = []
        while phase in self._merged:
            passed.append(phase)
            phase = self._merged[phase]
        for each in passed:  # long chains become short
            self._merged[each] = phase
        return phase

    def merge(self, gone: int, into: int) -> None:
        """Call a phase by another's id from now on; both as they are called now."""
        self._merged[gone] = into
        if len(self._merged) > _MERGES_KNOWN:
            del self._merged[next(iter(self._merged))]
        old = self._accounts.pop(gone, None)
        if old is not None:
            self.of(into).absorb(old)
