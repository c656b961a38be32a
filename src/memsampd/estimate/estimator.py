"""From windows and bursts, as they come, to the curves of phases, windows and the whole run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import BurstSums, PhaseAccount, WindowSums
from memsampd.estimate.course import Course
from memsampd.estimate.events import (
    BurstRecord,
    EstimatorEvent,
    ExecRecord,
    MergeRecord,
    StoreDropRecord,
    WatchRecord,
    WindowRecord,
    code_hits,
)
from memsampd.estimate.evidence import likeness_of_spacing, rates_in_windows
from memsampd.estimate.layout import HIGH, LOW, MIDDLE, CurveLayout
from memsampd.estimate.memory import BurstMemory
from memsampd.estimate.records import Estimate, Totals, WindowEstimate
from memsampd.estimate.scatter import phase_bands, phase_scatter
from memsampd.estimate.sharing import burst_shares
from memsampd.estimate.speed import ERROR, SpeedModel
from memsampd.estimate.summary import summarise
from memsampd.estimate.watches import is_same_kind
from memsampd.estimate.window_rates import WindowRates
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.late_returns import LateReturns, continued
from memsampd.models.policies import MODELS
from memsampd.models.protocols import CacheModel
from memsampd.models.statstack import StatStack, expected_stack_distances
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.records import CodeRate, Spacing

# What a burst of another phase counts that ran the code: it may work on other data there.
_LIKE_CODE = 0.1
# ... and what it counts where it is not known what code it, or the window, ran.
_OTHER_PHASE = 1e-9
# Windows of phases without a burst are of known code if bursts of others ran so much of it.
_MOST_UNSEEN = 0.1
# Where timings contradict each other, curves are compared at these sizes, whatever others are asked
# for: estimates at other sizes are to be of the same accesses.
_COMPARED_SIZES_BYTES = np.array([1024 << 2 * at for at in range(9)], np.int64)
# From how large a difference of miss ratios on the stored bursts of a phase do not hold any more.
_OTHER_ANYWHERE = 0.1
_OTHER_EVERYWHERE = 0.05
_CHECKED_BURSTS = 4  # of a phase, are compared with what was stored of it
# A burst is modelled again once so many times as much is told of what lies beyond its horizon.
_NEWS_OF_LIKE = 2.0
_FIRST_NEWS = 0.1  # ... and this much at least, in octaves that a burst of the same code sees on
# The latest windows are counted once so many have followed: what the next burst corrects of them
# would otherwise be worked off at the cost of later ones. In replays of 90 live runs the CDF error
# of the counters fell from 1.93 to 1.78 %, with 2 windows as with 5.
_COUNTED_LATER = 3
# So many watches of bursts of their own are believed as much as how a burst's curve goes on by
# itself, of n the share n^2 / (n^2 + 16): many are believed as they are. In replays of 24 runs of
# eight programs, with all of their watches and with 0.4 of them, the error at 4 to 64 MiB was 0.75
# and 0.80 points with n / (n + 4), 0.75 and 0.83 without either, 0.75 with this and all.
_PRIOR_WATCHES = 4.0
_AT_ONCE = 16  # windows that are shared out together: most of the work does not depend on how many


class _Waiting(msgspec.Struct):
    """A window that later bursts may still tell something of."""

    index: int
    phase: int
    cpu_seconds: float
    hits: NDArray[np.uint16]
    rates: tuple[CodeRate, ...]
    spacing: Spacing | None
    sums: WindowSums
    is_known: bool = False


class _Seen(msgspec.Struct):
    """What a burst saw, as long as it is remembered by itself.

    Attributes:
        own: its survival function.
        late: what that tells other bursts.
        told: octaves that like bursts saw further, all together, when it was modelled.
    """

    own: SurvivalFunction
    late: LateReturns
    told: float


class Estimator:
    """One target's estimate; O(1) a window, in bounded memory.

    Each window is shared out among the bursts that ran its code, nearby ones before others
    (:func:`~memsampd.estimate.sharing.burst_shares`): its accesses are its CPU time times their
    rates, its misses these times their curves. It is settled once ``settle_windows`` have followed,
    so that bursts after it speak for it as well as those before; until then it counts as it is
    known. A window of code that no burst has seen waits for one, as long as there is room.

    Told the same events, it says the same: live, and when a recording is replayed.

    Args:
        sizes_bytes: cache sizes, shape (s,), int64, ascending.
        line_bytes: size of a line.
        models: one for each policy; the first one's curves decide on drift.
        cache_sizes_bytes: this machine's data caches by name: what misses cost, where code could
            not be timed.
        settle_windows: windows after which one is settled.
        waiting_windows: windows that wait for a burst at most.
        remembered_bursts: bursts that are told apart.
        tell_window: told of each window once it is settled.
    """

    def __init__(
        self,
        sizes_bytes: NDArray[np.int64],
        line_bytes: int,
        models: Sequence[CacheModel] | None = None,
        cache_sizes_bytes: Mapping[str, int] | None = None,
        settle_windows: int = 32,
        waiting_windows: int = 512,
        remembered_bursts: int = 128,
        tell_window: Callable[[WindowEstimate], None] | None = None,
    ) -> None:
        chosen = [model() for model in MODELS.values()] if models is None else models
        self._layout = CurveLayout(tuple(chosen), np.asarray(sizes_bytes, np.int64), line_bytes)
        self._compared = CurveLayout((StatStack(),), _COMPARED_SIZES_BYTES, line_bytes)
        self._speed = SpeedModel(cache_sizes_bytes or {}, line_bytes)
        self._settle_windows = settle_windows
        self._waiting_windows = waiting_windows
        self._capacity = remembered_bursts
        self._tell_window = tell_window
        self._forget()

    def _forget(self) -> None:
        self._memory: BurstMemory | None = None
        self._seen: dict[int, _Seen] = {}  # by row of the memory
        self._phases: dict[int, PhaseAccount] = {}
        self._merged: dict[int, int] = {}
        self._waiting: deque[_Waiting] = deque()
        self._new: list[_Waiting] = []  # of these, not shared out yet
        self._course = Course()
        self._window_rates: dict[int, WindowRates] = {}
        self._provisional = WindowSums.nothing(self._layout.values, self._capacity)
        self._settled = WindowSums.nothing(self._layout.values, self._capacity)
        self._most_accesses = 0.0
        self._most_misses = np.zeros(len(self._layout.models) * len(self._layout.sizes_bytes))
        self._last_ratios: NDArray[np.float64] | None = None
        self._last_read: tuple[tuple[bytes, ...], ReuseHistogram, SurvivalFunction] | None = None

    # -- events --------------------------------------------------------------------------------

    def add(self, event: EstimatorEvent) -> None:
        """Take in what happened next."""
        if isinstance(event, WindowRecord):
            self._add_window(event)
            return
        self._take_stock()
        match event:
            case BurstRecord():
                self._add_burst(event)
            case WatchRecord():
                self._add_watch(event)
            case MergeRecord():
                self._merge(event.gone, event.into)
            case StoreDropRecord():
                self._drop_stored(event.phase)
            case ExecRecord():
                self._settle_all()
                self._forget()
        self._count_on()

    def finish(self) -> None:
        """Settle all windows: nothing more will come."""
        self._take_stock()
        self._settle_all()
        self._count_on()

    def last_burst_ratios(self) -> NDArray[np.float64] | None:
        """Miss ratios of the last burst, shape (s,), by the first model; None before the first."""
        return self._last_ratios

    def contradicts(self, record: BurstRecord) -> bool:
        """Whether one of a phase's first bursts shows clearly other misses than the stored ones.

        That is, at some size by a tenth of the accesses, or a twentieth on the average of sizes,
        more than all of these that ran like code differ among themselves, bounds of all of them
        included. Where none of them did, it says nothing of them.

        Args:
            record: the burst, which the estimator has not been told yet.
        """
        memory, phase = self._memory, self.phase_now(record.phase)
        if memory is None or record.is_memoryless or not record.accesses > 0:
            return False
        stored = memory.is_stored & (memory.phase == phase)
        stored &= memory.ran_like(code_hits(record.code))
        if not stored.any() or self._account(phase).taken.bursts >= _CHECKED_BURSTS:
            return False
        own = self._read(record)[1]
        _, low, high = self._layout.table(self._layout.row(own))[0]
        tables = [self._layout.table(row)[0] for row in memory.curves[stored]]
        least = np.min([table[1] for table in tables], axis=0)
        most = np.max([table[2] for table in tables], axis=0)
        apart = np.maximum(np.maximum(low - most, least - high), 0.0)
        return bool(apart.max() > _OTHER_ANYWHERE or apart.mean() > _OTHER_EVERYWHERE)

    def possible_rates(self, burst: BurstRecord) -> tuple[float, float]:
        """Return the lowest and the highest rate of a burst's code, accesses per CPU second."""
        return self._speed.limits(burst, self._read(burst)[1])

    def modelled_rate(self, burst: BurstRecord) -> float:
        """Return the rate that is likely of a burst's code, accesses per CPU second."""
        return self._speed.rate(burst, self._read(burst)[1])

    def present_rate(self) -> float | None:
        """Return the latest rate that is known of a window, accesses per CPU second."""
        self._take_stock()
        return self._course.present_rate()

    def scatter(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return how much the bursts of each phase differ, and how wide their bounds are.

        By phase; see :mod:`memsampd.estimate.scatter`. Empty where nothing is known of it.
        """
        self._take_stock()
        memory = self._memory
        accesses = self._settled.accesses + self._provisional.accesses
        if memory is None or not accesses > 0:
            return {}, {}
        figures = memory.curves.reshape(memory.count, -1, 3, len(self._layout.sizes_bytes))[:, 0]
        widths = figures[:, HIGH] - figures[:, LOW]
        misses = self._layout.table(self._settled.misses + self._provisional.misses)[0, MIDDLE]
        rates, _ = memory.expected_rates()
        scatter = phase_scatter(
            memory.phase, memory.bursts, rates, figures[:, MIDDLE], widths, misses / accesses
        )
        return scatter, phase_bands(memory.phase, memory.bursts, widths)

    def seen_code(self) -> NDArray[np.bool_]:
        """Return which bins of branch vectors bursts ran code of, shape (bins,); (0,) at first."""
        return np.empty(0, np.bool_) if self._memory is None else self._memory.seen_code

    def phase_now(self, phase: int) -> int:
        """Return what a phase is called now, merges applied."""
        passed = []
        while phase in self._merged:
            passed.append(phase)
            phase = self._merged[phase]
        for each in passed:  # long chains become short
            self._merged[each] = phase
        return phase

    def _add_window(self, record: WindowRecord) -> None:
        for rate in record.rates:
            self._add_window_rate(rate)
        phase = self.phase_now(record.phase)
        account = self._account(phase)
        account.windows += 1
        account.cpu_seconds += record.cpu_seconds
        account.add_speed(record.speed, record.cpu_seconds)
        window = _Waiting(
            record.index,
            phase,
            record.cpu_seconds,
            code_hits(record.code),
            record.rates,
            record.spacing,
            WindowSums.nothing(self._layout.values, self._capacity),
        )
        self._waiting.append(window)
        self._new.append(window)
        self._course.begin(record.index, record.end_seconds)
        if len(self._new) >= _AT_ONCE:
            self._take_stock()

    def _add_window_rate(self, rate: CodeRate) -> None:
        """How fast a window ran some code: many that agree are believed where bursts do not."""
        rates = self._window_rates.setdefault(rate.code, WindowRates())
        if len(self._window_rates) > self._capacity:
            del self._window_rates[next(iter(self._window_rates))]
        if not rates.add(rate.accesses_per_cpu_second) or self._memory is None:
            return
        self._take_stock()
        self._memory.set_steady(rate.code, rates.steady)
        self._value_again()

    def _take_stock(self) -> None:
        """Share out the windows that have ended since the last time, before anything else changes.

        Until then they would be told the same, one by one.
        """
        if not self._new:
            return
        new, self._new = self._new, []
        self._provisional.add(self._value(new))
        self._settle()
        self._count_on()

    def _add_burst(self, record: BurstRecord) -> None:
        phase = self.phase_now(record.phase)
        account = self._account(phase)
        sums = account.stored if record.is_stored else account.taken
        sums.bursts += 1
        if record.is_stored:
            seconds = max(account.latest_stored_seconds, record.time_seconds)
            account.latest_stored_seconds = seconds
        if record.is_memoryless:
            compared = np.zeros(self._compared.values)
            row = np.zeros(self._layout.values)
            self._keep(record, phase, row, compared, 0.0, 0.0, 1.0)
        elif record.accesses > 0:
            self._add_accesses(record, phase, account)
        else:
            return
        self._value_again()
        self._settle()

    def _read(self, record: BurstRecord) -> tuple[ReuseHistogram, SurvivalFunction]:
        """What a burst saw; several things are asked about it before it is told."""
        sampled = record.sampled_reuses, record.sampled_stacks
        key = record.bins, record.reuses, record.censored, *sampled
        if self._last_read is None or self._last_read[0] != key:
            histogram = record.histogram()
            self._last_read = key, histogram, SurvivalFunction.from_histogram(histogram)
        return self._last_read[1:]

    def _add_accesses(self, record: BurstRecord, phase: int, account: PhaseAccount) -> None:
        """Model what a burst saw."""
        histogram, own = self._read(record)
        sums = account.stored if record.is_stored else account.taken
        sums.rows += record.rows
        sums.beyond_rows += min(record.beyond_accesses, record.rows)
        sums.writes += record.writes
        sums.histogram += histogram
        likeness = np.empty(0)
        if self._memory is not None:
            likeness = self._memory.likeness([code_hits(record.code)], [phase])[0]
        whole = self._continued(own, likeness)
        row = self._row(own, whole, phase)
        self._last_ratios = self._layout.table(row)[0, MIDDLE]
        modelled = self._speed.rate(record, whole)
        rate, error = modelled, ERROR
        if record.timed is not None:
            rate, error = record.timed.accesses_per_cpu_second, record.timed.error
        sight_lines = expected_stack_distances(own)[-1] if record.sampled_reuses else 0.0
        highest = self._speed.highest(record, whole)
        compared = self._compared.row(whole)
        at = self._keep(record, phase, row, compared, rate, error, modelled, sight_lines, highest)
        self._seen[at] = _Seen(own.thinned(), LateReturns.of(own), 0.0)
        octaves = self._octaves()
        self._seen[at].told = octaves[at]
        self._model_again(
            each
            for each, seen in self._seen.items()
            if octaves[each] >= _NEWS_OF_LIKE * seen.told + _FIRST_NEWS
        )

    def _add_watch(self, record: WatchRecord) -> None:
        phase = self.phase_now(record.phase)
        account = self._account(phase)
        says_new = account.watches.add(record, self._burst_of(record))
        if not (says_new and account.histogram.accesses):
            return
        account.watches.told = account.watches.count
        if self._memory is not None:
            phases = self._memory.phase
            self._model_again(row for row in self._seen if phases[row] == phase)
            self._value_again()
            self._settle()

    def _burst_of(self, watch: WatchRecord) -> SurvivalFunction | None:
        """What the burst saw that told the line; None if none did, or it is not remembered."""
        memory = self._memory
        if memory is None or watch.is_sampled:
            return None
        found = [row for row in self._seen if memory.window[row] == watch.window]
        return self._seen[found[0]].own if found else None

    def _continued(self, own: SurvivalFunction, likeness: NDArray[np.float64]) -> SurvivalFunction:
        """What a burst saw, and beyond its horizon what those like it saw, by rows (m,)."""
        rows = list(self._seen)
        return continued(own, [self._seen[row].late for row in rows], likeness[rows])

    def _octaves(self) -> NDArray[np.float64]:
        """How many octaves bursts of like code saw further than each, all together, shape (m,)."""
        assert self._memory is not None, "a burst was kept"
        rows = list(self._seen)
        told = np.zeros(self._memory.count)
        octaves = np.log2([max(self._seen[row].own.horizon_accesses, 1) for row in rows])
        further = np.maximum(octaves[None, :] - octaves[:, None], 0.0)
        told[rows] = (self._memory.likenesses()[np.ix_(rows, rows)] * further).sum(axis=1)
        return told

    def _row(
        self, own: SurvivalFunction, whole: SurvivalFunction, phase: int
    ) -> NDArray[np.float64]:
        """The curve of a burst: what it saw, what bursts like it did, and what watchpoints told.

        Where there were too few of these for bursts of its kind, others of its phase tell what is
        likely, and nothing of bounds. The estimate goes the further from what the curve would be
        without them, the more there are, and what they rule out is left at once.
        """
        table = self._layout.table(self._layout.row(whole))
        account = self._phases[phase]
        if not account.watches.count or not np.any(table[:, LOW] < table[:, HIGH]):
            return table.ravel()
        tails = account.watches.read(self._course.accesses)
        horizon, before = whole.horizon_accesses, table[:, MIDDLE].copy()
        # The same code on another working set: what its phase did says nothing of it.
        tail = tails.beyond(horizon, None if is_same_kind(own, account.pooled()) else own)
        parts = {} if tail is None else {MIDDLE: tail.middle, LOW: tail.low, HIGH: tail.high}
        if tail is None:
            tail = tails.beyond(horizon)
            parts = {} if tail is None else {MIDDLE: tail.middle}
        for bound, part in parts.items():
            row = self._layout.row(whole.continued_by(part))
            table[:, bound] = self._layout.table(row)[:, bound]
        if tail is not None:
            share = tail.count**2 / (tail.count**2 + _PRIOR_WATCHES**2)
            possible = np.clip(before, table[:, LOW], table[:, HIGH])
            table[:, MIDDLE] = possible + share * (table[:, MIDDLE] - possible)
        return table.ravel()

    def _keep(
        self,
        record: BurstRecord,
        phase: int,
        row: NDArray[np.float64],
        compared: NDArray[np.float64],
        rate: float,
        error: float,
        modelled: float,
        sight_lines: float = 0.0,
        highest: float | None = None,
    ) -> int:
        """Remember a burst; returns where."""
        code = code_hits(record.code)
        if self._memory is None:
            bins = len(code) or max((len(each.hits) for each in self._waiting), default=0) or 1
            self._memory = BurstMemory(
                bins, self._layout.values, self._capacity, self._compared.values
            )
        at, joined = self._memory.add(
            record.window,
            phase,
            code,
            row,
            rate,
            error,
            modelled,
            record.timed is not None,
            record.timed_code,
            record.is_stored,
            sight_lines,
            self._spacing_of(record.window),
            highest,
            compared,
        )
        if joined is not None:
            gone, into = joined
            for account in self._phases.values():
                account.join_rows(gone, into)
            self._seen.pop(into, None)
        self._seen.pop(at, None)
        return at

    def _spacing_of(self, index: int) -> Spacing | None:
        """How far apart data lay in a window, as long as it waits."""
        found = (window.spacing for window in reversed(self._waiting) if window.index == index)
        return next(found, None)

    def _model_again(self, rows: Iterable[int]) -> None:
        """Model bursts again: beyond their horizons something else is known now."""
        rows, memory = list(rows), self._memory
        if memory is None or not rows:
            return
        likeness, octaves = memory.likenesses(), self._octaves()
        for row in rows:
            seen = self._seen[row]
            seen.told = float(octaves[row])
            whole = self._continued(seen.own, likeness[row])
            curve = self._row(seen.own, whole, int(memory.phase[row]))
            memory.set_curve(row, curve, self._compared.row(whole))

    def _merge(self, gone: int, into: int) -> None:
        gone, into = self.phase_now(gone), self.phase_now(into)
        if gone == into:
            return
        self._merged[gone] = into
        old = self._phases.pop(gone, None)
        if old is not None:
            self._account(into).absorb(old)
        if self._memory is not None:
            self._memory.merge_phases(gone, into)
        for window in self._waiting:
            if window.phase == gone:
                window.phase = into
        self._value_again()

    def _drop_stored(self, phase: int) -> None:
        """Forget the bursts of a phase that were taken before the attach."""
        phase = self.phase_now(phase)
        account = self._account(phase)
        account.stored, account.latest_stored_seconds = BurstSums(), -np.inf
        if self._memory is None:
            return
        kept, dropped = self._memory.drop_stored(phase)
        for each in self._phases.values():
            each.keep_rows(kept, dropped)
        self._settled.keep_rows(kept)
        seen = self._seen
        self._seen = {row: seen[was] for row, was in enumerate(kept.tolist()) if was in seen}
        if not self._memory.count:
            self._memory = None
        self._model_again(self._seen)  # those of other phases, too: they went on as these did
        self._value_again()

    def _account(self, phase: int) -> PhaseAccount:
        if phase not in self._phases:
            self._phases[phase] = PhaseAccount.new(self._layout.values, self._capacity)
        return self._phases[phase]

    # -- windows -------------------------------------------------------------------------------

    def _value_again(self) -> None:
        """What is known of the waiting windows, now that more is known of bursts."""
        self._provisional = self._value(self._waiting)

    def _value(self, windows: Sequence[_Waiting] | deque[_Waiting]) -> WindowSums:
        """Share windows out among the bursts; returns the sums over all of them."""
        memory = self._memory
        if memory is None or not memory.count or not windows:
            all_sums = WindowSums.nothing(self._layout.values, self._capacity)
            for window in windows:
                window.is_known = False
                window.sums = WindowSums.nothing(self._layout.values, self._capacity)
                window.sums.unknown_cpu_seconds = window.cpu_seconds
                all_sums.unknown_cpu_seconds += window.cpu_seconds
            return all_sums
        hits = memory.compact([window.hits for window in windows])
        phase = np.array([window.phase for window in windows])
        cpu_seconds = np.array([window.cpu_seconds for window in windows])
        expected, is_rated = memory.expected_rates()
        rates, by_rates = rates_in_windows(
            [window.rates for window in windows], memory.timed_code, memory.like_code(), expected
        )
        by_spacing = likeness_of_spacing([window.spacing for window in windows], memory.spacing)
        own = np.equal.outer(phase, memory.phase)
        is_told = np.logical_and.outer(hits.any(axis=1), memory.has_code())
        shares = burst_shares(
            np.array([window.index for window in windows], np.int64),
            hits,
            memory.window,
            memory.code,
            np.where(own, 1.0, np.where(is_told, _LIKE_CODE, _OTHER_PHASE)),
            memory.bursts * by_rates * by_spacing,
            memory.parts_of_kinds(),
        )
        seconds = shares * cpu_seconds[:, None]
        accesses = seconds * rates
        misses = accesses @ memory.curves
        total = hits.sum(axis=1)
        unseen = hits[:, -1] / np.maximum(total, 1)
        is_known = own.any(axis=1) | (is_told.any(axis=1) & (unseen <= _MOST_UNSEEN))
        rated = seconds @ is_rated.astype(np.float64)
        return self._set_sums(windows, accesses, misses, unseen, rated, is_known)

    def _set_sums(
        self,
        windows: Sequence[_Waiting] | deque[_Waiting],
        accesses: NDArray[np.float64],
        misses: NDArray[np.float64],
        unseen: NDArray[np.float64],
        rated: NDArray[np.float64],
        is_known: NDArray[np.bool_],
    ) -> WindowSums:
        """Note what is known of windows, w of them; returns the sums over all of them.

        Args:
            windows: these.
            accesses: by burst, shape (w, m).
            misses: in the figures of a curve layout, shape (w, values); changed.
            unseen: share of code that no burst has seen, shape (w,).
            rated: CPU time in code whose rate was measured, shape (w,).
            is_known: whether bursts have seen their code, shape (w,).
        """
        cpu_seconds = np.array([window.cpu_seconds for window in windows])
        totals = accesses.sum(axis=1)
        weights = np.zeros((len(totals), self._capacity))
        weights[:, : accesses.shape[1]] = accesses
        weights[~is_known] = 0.0
        table = misses.reshape(len(totals), len(self._layout.models), 3, -1)
        table[~is_known, :, LOW] = 0.0
        table[~is_known, :, HIGH] = totals[~is_known, None, None]
        figures = (
            totals,
            np.where(is_known, unseen * totals, 0.0),
            np.where(is_known, rated, 0.0),
            np.where(is_known, 0.0, cpu_seconds),
            np.where(is_known, 0.0, totals),
        )
        rows = zip(*(each.tolist() for each in figures), strict=True)
        for window, known, row, sums, weight in zip(
            windows, is_known.tolist(), rows, misses, weights, strict=True
        ):
            window.is_known = known
            window.sums = _sums_of(row, sums, weight)
        has_rate = is_known & (cpu_seconds > 0)
        index = np.array([window.index for window in windows], np.int64)
        self._course.tell_rates(index[has_rate], totals[has_rate] / cpu_seconds[has_rate])
        together = [sum(each.tolist()) for each in figures]
        return _sums_of(together, misses.sum(axis=0), weights.sum(axis=0))

    def _settle(self) -> None:
        """Settle windows that are old enough; of unknown code only where there are too many."""
        latest = self._waiting[-1].index if self._waiting else 0
        room = self._waiting_windows
        kept: list[_Waiting] = []
        for window in self._waiting:
            is_old = latest - window.index >= self._settle_windows
            if is_old and window.is_known:
                self._settle_one(window)
            else:
                kept.append(window)
        for window in kept[: max(len(kept) - room, 0)]:
            self._settle_one(window)
        if len(kept) != len(self._waiting) or len(kept) > room:
            self._waiting = deque(kept[max(len(kept) - room, 0) :])

    def _settle_all(self) -> None:
        for window in self._waiting:
            self._settle_one(window)
        self._waiting.clear()

    def _settle_one(self, window: _Waiting) -> None:
        self._provisional.add(window.sums, -1.0)
        self._settled.add(window.sums)
        self._account(window.phase).settled.add(window.sums)
        if self._tell_window is not None:
            self._tell_window(self._window_estimate(window))

    def _window_estimate(self, window: _Waiting) -> WindowEstimate:
        sums = window.sums
        curves = {}
        if sums.accesses > 0:
            row = sums.misses / sums.accesses
            curves = dict(self._layout.curves(row, self._sampled(window.phase)))
        return WindowEstimate(
            index=window.index,
            phase=window.phase,
            accesses=sums.accesses if curves or window.is_known else None,
            is_rate_known=sums.rated_cpu_seconds > 0.5 * window.cpu_seconds,
            curves=curves,
            is_known=window.is_known,
        )

    def _sampled(self, phase: int) -> int:
        return self._phases[phase].histogram.accesses if phase in self._phases else 0

    def _count_on(self) -> None:
        """Counters never run backwards, whatever an estimate is corrected by."""
        sums = self._provisional.copy()
        sums.add(self._settled)
        for window in islice(reversed(self._waiting), _COUNTED_LATER):
            sums.add(window.sums, -1.0)
        if sums.accesses < 1:  # what rounding leaves
            return
        middle = self._layout.table(sums.misses)[:, MIDDLE].ravel()
        self._most_accesses = max(self._most_accesses, sums.accesses)
        self._most_misses = np.maximum(self._most_misses, middle)

    # -- what is known -------------------------------------------------------------------------

    def estimate(self) -> Estimate:
        """Return all that is known now."""
        self._take_stock()
        sums = {id: account.settled.copy() for id, account in self._phases.items()}
        for window in self._waiting:
            sums[window.phase].add(window.sums)
        misses = self._most_misses.reshape(len(self._layout.models), -1)
        totals = Totals(
            self._most_accesses,
            {model.policy: row for model, row in zip(self._layout.models, misses, strict=True)},
        )
        return summarise(self._layout, self._phases, sums, self._memory, totals)


def _sums_of(
    figures: Sequence[float], misses: NDArray[np.float64], weights: NDArray[np.float64]
) -> WindowSums:
    """Sums over windows: of accesses, unseen ones, seconds, seconds and accesses not known."""
    accesses, unseen, rated, unknown_seconds, unknown_accesses = figures
    return WindowSums(accesses, misses, unseen, rated, unknown_seconds, unknown_accesses, weights)
