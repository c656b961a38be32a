"""Windows that later bursts may still tell something of: shared out, settled, counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import PhaseAccounts, WindowSums
from memsampd.estimate.counters import Counters
from memsampd.estimate.course import Course
from memsampd.estimate.events import WindowRecord, code_hits
from memsampd.estimate.evidence import likeness_of_spacing, rates_in_windows, spacing_table
from memsampd.estimate.footprint import Footprint
from memsampd.estimate.layout import COMPARED_SIZES_BYTES, HIGH, LOW, MIDDLE, CurveLayout
from memsampd.estimate.memory import BurstMemory
from memsampd.estimate.records import Totals, WindowEstimate
from memsampd.estimate.scaling import growth, more_misses, octaves_of_data
from memsampd.estimate.sharing import LEAST_RATE, burst_shares
from memsampd.estimate.timings import ALIKE
from memsampd.models.write_backs import written_back
from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

# What a burst of another phase counts that ran the code: it may work on other data there.
_LIKE_CODE = 0.1
# ... and what it counts where it is not known what code it, or the window, ran.
_OTHER_PHASE = 1e-9
# Windows of phases without a burst are of known code if bursts of others ran so much of it.
_MOST_UNSEEN = 0.1
# Windows are counted so long after they ended, or once they are settled: what the next bursts
# correct of them, mostly sooner, would otherwise be worked off at the cost of later ones.
_COUNT_AFTER_SECONDS = 1.0
_AT_ONCE = 16  # windows that are shared out together: most of the work does not depend on how many


class _Waiting(msgspec.Struct):
    """One of them; ``most_misses`` in it, shape (policies, s)."""

    index: int
    phase: int
    end_seconds: float
    cpu_seconds: float
    hits: NDArray[np.uint16]
    rates: tuple[CodeRate, ...]
    spacing: Spacing | None
    most_misses: NDArray[np.float64]
    sums: WindowSums
    is_known: bool = False


class _Told(msgspec.Struct, frozen=True):
    """What bursts tell of windows, w of them.

    Attributes:
        index: of each, shape (w,).
        cpu_seconds: of each, shape (w,).
        accesses: by burst, shape (w, m).
        misses: in the figures of a curve layout, shape (w, values); theirs to change who asked.
        unseen: share of code that no burst has seen, shape (w,).
        rated: CPU time in code whose rate was measured, shape (w,).
        is_known: whether bursts have seen their code, shape (w,).
    """

    index: NDArray[np.int64]
    cpu_seconds: NDArray[np.float64]
    accesses: NDArray[np.float64]
    misses: NDArray[np.float64]
    unseen: NDArray[np.float64]
    rated: NDArray[np.float64]
    is_known: NDArray[np.bool_]


class WaitingWindows:
    """Shares windows out among bursts until they are settled, and counts them.

    Args:
        layout: of the curves.
        accounts: of the phases: settled windows are added there.
        course: is told rates of windows.
        capacity: bursts that are told apart.
        settle_windows: windows after which one is settled.
        most: windows that wait for a burst at most.
        tell_window: told of each window once it is settled.
    """

    def __init__(
        self,
        layout: CurveLayout,
        accounts: PhaseAccounts,
        course: Course,
        capacity: int,
        settle_windows: int,
        most: int,
        tell_window: Callable[[WindowEstimate], None] | None,
    ) -> None:
        self._layout = layout
        self._accounts = accounts
        self._course = course
        self._capacity = capacity
        self._settle_windows = settle_windows
        self._most = most
        self._tell_window = tell_window
        self._footprint = Footprint(layout.models, layout.sizes_bytes, layout.line_bytes)
        self._waiting: deque[_Waiting] = deque()
        self._new: list[_Waiting] = []  # of these, not shared out yet
        self._provisional_accesses = 0.0  # of those that wait
        self._provisional_misses = np.zeros(layout.values)
        self._settled_accesses = 0.0
        self._settled_misses = np.zeros(layout.values)
        policies = [model.policy for model in layout.models]
        self._counters = Counters(policies, len(layout.sizes_bytes))

    def _nothing(self) -> WindowSums:
        return WindowSums.nothing(self._layout.values, self._capacity)

    def add(self, record: WindowRecord, phase: int) -> bool:
        """Add the next one; whether it is time to share out those that are new."""
        window = _Waiting(
            record.index,
            phase,
            record.end_seconds,
            record.cpu_seconds,
            code_hits(record.code),
            record.rates,
            record.spacing,
            self._footprint.add(record.memory),
            self._nothing(),
        )
        self._waiting.append(window)
        self._new.append(window)
        self._course.begin(record.index, record.end_seconds)
        return len(self._new) >= _AT_ONCE

    def take_stock(self, memory: BurstMemory | None) -> None:
        """Share out the windows that have ended since the last time, before anything else changes.

        Until then they would be told the same, one by one.

        Args:
            memory: of bursts; None before the first.
        """
        if not self._new:
            return
        new, self._new = self._new, []
        accesses, misses = self._value(new, memory)
        self._provisional_accesses += accesses
        self._provisional_misses += misses
        self.settle()
        self.count_on()

    def value_again(self, memory: BurstMemory | None) -> None:
        """Share out all, now that more is known of bursts."""
        found = self._value(self._waiting, memory)
        self._provisional_accesses, self._provisional_misses = found

    def settle(self) -> None:
        """Settle windows that are old enough; of unknown code only where there are too many."""
        latest = self._waiting[-1].index if self._waiting else 0
        kept: list[_Waiting] = []
        for window in self._waiting:
            is_old = latest - window.index >= self._settle_windows
            if is_old and window.is_known:
                self._settle_one(window)
            else:
                kept.append(window)
        excess = max(len(kept) - self._most, 0)
        for window in kept[:excess]:
            self._settle_one(window)
        if len(kept) - excess != len(self._waiting):
            self._waiting = deque(kept[excess:])

    def settle_all(self) -> None:
        """Settle all: no burst will speak for them any more."""
        for window in self._waiting:
            self._settle_one(window)
        self._waiting.clear()

    def count_on(self) -> None:
        """Counters never run backwards, whatever an estimate is corrected by."""
        later = [each.sums for each in takewhile(self._is_counted_later, reversed(self._waiting))]
        accesses, misses = self.accesses_and_misses()
        accesses -= sum(sums.accesses for sums in later)
        if accesses < 1 or accesses <= self._counters.accesses:  # below 1: what rounding leaves
            return
        misses -= np.sum([sums.misses for sums in later], axis=0)
        middle = self._layout.table(misses)[:, MIDDLE]
        self._counters.count_on(accesses, middle, self._written_back_share())

    def _written_back_share(self) -> NDArray[np.float64]:
        """Share of the lines fetched in all windows that are written back, shape (policies, s)."""
        usual = self._accounts.usual_write_share()
        shares: dict[int, float] = {}
        fetched = np.zeros((len(self._layout.models), len(self._layout.sizes_bytes)))
        written = np.zeros_like(fetched)
        for id, account in self._accounts.by_phase.items():
            share = account.write_share
            shares[id] = usual if share is None else share
            settled = self._layout.table(account.settled.misses)[:, MIDDLE]
            fetched += settled
            written += written_back(settled, shares[id])
        if self._waiting:
            middle = [self._layout.table(window.sums.misses)[:, MIDDLE] for window in self._waiting]
            misses = np.array(middle)
            fetched += misses.sum(axis=0)
            of_each = np.array([shares[window.phase] for window in self._waiting])
            written += written_back(misses, of_each[:, None, None]).sum(axis=0)
        return np.divide(written, fetched, out=np.zeros_like(written), where=fetched > 0)

    def _is_counted_later(self, window: _Waiting) -> bool:
        return window.end_seconds > self._waiting[-1].end_seconds - _COUNT_AFTER_SECONDS

    def merge(self, gone: int, into: int) -> None:
        """A phase turned out to be another one."""
        for window in self._waiting:
            if window.phase == gone:
                window.phase = into

    def bins(self) -> int:
        """Return the length of branch vectors; 0 where none is known."""
        return max((len(each.hits) for each in self._waiting), default=0)

    def accesses_and_misses(self) -> tuple[float, NDArray[np.float64]]:
        """Return those of all windows, settled or not; misses in the layout's figures."""
        return (
            self._provisional_accesses + self._settled_accesses,
            self._provisional_misses + self._settled_misses,
        )

    def sums_by_phase(self) -> dict[int, WindowSums]:
        """Return the sums over all windows of each phase."""
        sums = {id: account.settled.copy() for id, account in self._accounts.by_phase.items()}
        for window in self._waiting:
            sums[window.phase].add(window.sums)
        return sums

    def totals(self) -> Totals:
        """Return what was counted so far."""
        return self._counters.totals()

    # -- one at a time -------------------------------------------------------------------------

    def _settle_one(self, window: _Waiting) -> None:
        self._provisional_accesses -= window.sums.accesses
        self._provisional_misses -= window.sums.misses
        self._settled_accesses += window.sums.accesses
        self._settled_misses += window.sums.misses
        self._accounts.of(window.phase).settled.add(window.sums)
        if self._tell_window is not None:
            self._tell_window(self._estimate(window))

    def _estimate(self, window: _Waiting) -> WindowEstimate:
        sums = window.sums
        curves, accesses = {}, 0.0
        if sums.accesses > LEAST_RATE * window.cpu_seconds:
            accesses, row = sums.accesses, sums.misses / sums.accesses
            sampled = self._accounts.of(window.phase).histogram.accesses
            curves = dict(self._layout.curves(row, sampled))
        return WindowEstimate(
            index=window.index,
            phase=window.phase,
            accesses=accesses if curves or window.is_known else None,
            is_rate_known=sums.rated_cpu_seconds > 0.5 * window.cpu_seconds,
            curves=curves,
            is_known=window.is_known,
        )

    # -- many at once --------------------------------------------------------------------------

    def _value(
        self, windows: Sequence[_Waiting] | deque[_Waiting], memory: BurstMemory | None
    ) -> tuple[float, NDArray[np.float64]]:
        """Share windows out among the bursts; returns accesses and misses of all of them."""
        if memory is not None and memory.count and windows:
            return self._note(windows, _shared_out(windows, memory, self._layout))
        for window in windows:
            window.is_known = False
            window.sums = self._nothing()
            window.sums.unknown_cpu_seconds = window.cpu_seconds
        return 0.0, np.zeros(self._layout.values)

    def _note(
        self, windows: Sequence[_Waiting] | deque[_Waiting], told: _Told
    ) -> tuple[float, NDArray[np.float64]]:
        """Note what is told of windows; returns accesses and misses of all of them."""
        is_known, totals = told.is_known, told.accesses.sum(axis=1)
        weights = np.zeros((len(totals), self._capacity))
        weights[:, : told.accesses.shape[1]] = told.accesses
        weights[~is_known] = 0.0
        table = told.misses.reshape(len(totals), len(self._layout.models), 3, -1)
        table[~is_known, :, LOW] = 0.0
        table[~is_known, :, HIGH] = totals[~is_known, None, None]
        most = np.minimum([window.most_misses for window in windows], totals[:, None, None])
        np.minimum(table, most[:, :, None], out=table)
        figures = (
            totals,
            np.where(is_known, told.unseen * totals, 0.0),
            np.where(is_known, told.rated, 0.0),
            np.where(is_known, 0.0, told.cpu_seconds),
            np.where(is_known, 0.0, totals),
        )
        rows = zip(*(each.tolist() for each in figures), strict=True)
        sure_hits = (totals[:, None, None] - most).reshape(len(totals), -1)
        for window, known, row, misses, hits, weight in zip(
            windows, is_known.tolist(), rows, told.misses, sure_hits, weights, strict=True
        ):
            window.is_known = known
            accesses, unseen, rated, unknown_seconds, unknown_accesses = row
            window.sums = WindowSums(
                accesses, misses, hits, unseen, rated, unknown_seconds, unknown_accesses, weight
            )
        has_rate = is_known & (told.cpu_seconds > 0)
        rates = totals[has_rate] / told.cpu_seconds[has_rate]
        self._course.tell_rates(told.index[has_rate], rates)
        return sum(totals.tolist()), told.misses.sum(axis=0)


def _shared_out(
    windows: Sequence[_Waiting] | deque[_Waiting], memory: BurstMemory, layout: CurveLayout
) -> _Told:
    """What the remembered bursts, at least one, tell of windows."""
    index = np.array([window.index for window in windows], np.int64)
    phase = np.array([window.phase for window in windows])
    cpu_seconds = np.array([window.cpu_seconds for window in windows])
    hits = memory.compact([window.hits for window in windows])
    expected, is_rated = memory.expected_rates()
    rates, by_rates = rates_in_windows(
        [window.rates for window in windows], memory.timed_code, memory.like_code(), expected
    )
    spacing = spacing_table([window.spacing for window in windows])
    by_spacing = likeness_of_spacing(spacing, memory.spacing)
    own = np.equal.outer(phase, memory.phase)
    is_told = np.logical_and.outer(hits.any(axis=1), memory.has_code())
    shares = burst_shares(
        index,
        hits,
        memory.window,
        memory.code,
        np.where(own, 1.0, np.where(is_told, _LIKE_CODE, _OTHER_PHASE)),
        memory.bursts * by_rates * by_spacing,
        memory.parts_of_kinds(),
    )
    seconds = shares * cpu_seconds[:, None]
    accesses = seconds * rates
    unseen = hits[:, -1] / np.maximum(hits.sum(axis=1), 1)
    return _Told(
        index=index,
        cpu_seconds=cpu_seconds,
        accesses=accesses,
        misses=accesses @ memory.curves + _grown_misses(windows, spacing, memory, layout, accesses),
        unseen=unseen,
        rated=seconds @ is_rated.astype(np.float64),
        is_known=own.any(axis=1) | (is_told.any(axis=1) & (unseen <= _MOST_UNSEEN)),
    )


def _grown_misses(
    windows: Sequence[_Waiting] | deque[_Waiting],
    spacing: NDArray[np.float64],
    memory: BurstMemory,
    layout: CurveLayout,
    accesses: NDArray[np.float64],
) -> NDArray[np.float64]:
    """How many more misses windows have than bursts on other data tell, shape (w, values)."""
    shares = accesses / np.maximum(accesses.sum(axis=1, keepdims=True), 1.0)
    may_grow = growth(spacing, memory.spacing, shares)
    if not may_grow.any():
        return np.zeros((len(accesses), layout.values))
    alike = memory.likeness([each.hits for each in windows], [each.phase for each in windows])
    window, burst = np.nonzero(np.where(alike >= ALIKE, may_grow, 0.0))
    change = more_misses(
        memory.compared[burst, : len(COMPARED_SIZES_BYTES)],
        COMPARED_SIZES_BYTES / layout.line_bytes,
        octaves_of_data(memory.spacing[burst, 0]),
        may_grow[window, burst],
        layout.sizes_bytes / layout.line_bytes,
    )
    before = memory.curves[burst]
    change = np.clip(before + np.tile(change, 3 * len(layout.models)), 0.0, 1.0) - before
    grown = np.zeros((len(accesses), layout.values))
    np.add.at(grown, window, accesses[window, burst][:, None] * change)
    return grown
