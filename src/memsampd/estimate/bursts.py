"""What bursts saw: their curves, and beyond their horizons what others of like code tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import PhaseAccount, PhaseAccounts
from memsampd.estimate.course import Course
from memsampd.estimate.events import BurstRecord, WatchRecord, code_hits
from memsampd.estimate.layout import COMPARED_SIZES_BYTES, HIGH, LOW, MIDDLE, CurveLayout
from memsampd.estimate.memory import BurstMemory
from memsampd.estimate.speed import ERROR, SpeedModel
from memsampd.estimate.watches import is_same_kind
from memsampd.estimate.window_rates import RatesByCode
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.late_returns import LateReturns, continued
from memsampd.models.statstack import StatStack, seen_lines
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

# From how large a difference of miss ratios on the stored bursts of a phase do not hold any more.
_OTHER_ANYWHERE = 0.1
_OTHER_EVERYWHERE = 0.05
_CHECKED_BURSTS = 4  # of a phase, are compared with what was stored of it
# A burst is modelled again once so many times as much is told of what lies beyond its horizon.
_NEWS_OF_LIKE = 2.0
_FIRST_NEWS = 0.1  # ... and this much at least, in octaves that a burst of the same code sees on
# So many watches of bursts of their own are believed as much as how a burst's curve goes on by
# itself, of n the share n^2 / (n^2 + 16): many are believed as they are. In replays of 24 runs of
# eight programs, with all of their watches and with 0.4 of them, the error at 4 to 64 MiB was 0.75
# and 0.80 points with n / (n + 4), 0.75 and 0.83 without either, 0.75 with this and all.
_PRIOR_WATCHES = 4.0

# A burst of fewer accesses counts as that part of one: of 64 nothing is known but that they were
# made, and at every size all of them miss.
_WHOLE_ACCESSES = 1000


class _Seen(msgspec.Struct):
    """What a burst saw, as long as it is remembered by itself.

    Attributes:
        own: its survival function.
        for_watches: the same without stack distances: watches keep it for longer.
        late: what that tells other bursts.
        told: octaves that like bursts saw further, all together, when it was modelled.
        whole: its survival function, and beyond its horizon what these saw.
        row: curves by that alone, of the layout, shape (values,).
        compared: the same of the layout for comparisons.
    """

    own: SurvivalFunction
    for_watches: SurvivalFunction
    late: LateReturns
    told: float
    whole: SurvivalFunction
    row: NDArray[np.float64]
    compared: NDArray[np.float64]


class _Modelled(msgspec.Struct, frozen=True):
    """What is told of a burst, as :meth:`BurstMemory.add` takes it."""

    curve: NDArray[np.float64]
    compared: NDArray[np.float64]
    rate: float = 0.0
    error: float = 0.0
    modelled: float = 1.0
    sight_lines: float = 0.0
    highest: float | None = None


class ModelledBursts:
    """Models what bursts see, and remembers it.

    Args:
        layout: of the curves.
        speed: tells rates of bursts that were not timed.
        accounts: of the phases.
        course: tells accesses from one moment to another.
        capacity: bursts that are told apart.

    Attributes:
        memory: what is remembered of them; None before the first.
        last_ratios: miss ratios of the last one, shape (s,), by the first model; None before it.
    """

    def __init__(
        self,
        layout: CurveLayout,
        speed: SpeedModel,
        accounts: PhaseAccounts,
        course: Course,
        capacity: int,
    ) -> None:
        self._layout = layout
        self._compared = CurveLayout((StatStack(),), COMPARED_SIZES_BYTES, layout.line_bytes)
        self._speed = speed
        self._accounts = accounts
        self._course = course
        self._capacity = capacity
        self._rates = RatesByCode(capacity)
        self._seen: dict[int, _Seen] = {}  # by row of the memory
        self._last_read: tuple[tuple[bytes, ...], ReuseHistogram, SurvivalFunction] | None = None
        self.memory: BurstMemory | None = None
        self.last_ratios: NDArray[np.float64] | None = None

    # -- what is asked before one is told ------------------------------------------------------

    def _read(self, record: BurstRecord) -> tuple[ReuseHistogram, SurvivalFunction]:
        """What a burst saw; several things are asked about it before it is told."""
        sampled = record.sampled_reuses, record.sampled_stacks
        key = record.bins, record.reuses, record.censored, *sampled
        if self._last_read is None or self._last_read[0] != key:
            histogram = record.histogram()
            self._last_read = key, histogram, SurvivalFunction.from_histogram(histogram)
        return self._last_read[1:]

    def possible_rates(self, record: BurstRecord) -> tuple[float, float]:
        """Return the lowest and the highest rate of a burst's code, accesses per CPU second."""
        return self._speed.limits(record, self._read(record)[1])

    def modelled_rate(self, record: BurstRecord) -> float:
        """Return the rate that is likely of a burst's code, accesses per CPU second."""
        return self._speed.rate(record, self._read(record)[1])

    def contradicts(self, record: BurstRecord) -> bool:
        """Whether one of a phase's first bursts shows clearly other misses than the stored ones.

        That is, at some size by a tenth of the accesses, or a twentieth on the average of sizes,
        more than all of these that ran like code differ among themselves, bounds of all of them
        included. Where none of them did, it says nothing of them.
        """
        memory, phase = self.memory, self._accounts.phase_now(record.phase)
        if memory is None or record.is_memoryless or not record.accesses > 0:
            return False
        stored = memory.is_stored & (memory.phase == phase)
        stored &= memory.ran_like(code_hits(record.code))
        if not stored.any() or self._accounts.of(phase).taken.bursts >= _CHECKED_BURSTS:
            return False
        own = self._read(record)[1]
        _, low, high = self._layout.table(self._layout.row(own))[0]
        tables = [self._layout.table(row)[0] for row in memory.curves[stored]]
        least = np.min([table[1] for table in tables], axis=0)
        most = np.max([table[2] for table in tables], axis=0)
        apart = np.maximum(np.maximum(low - most, least - high), 0.0)
        return bool(apart.max() > _OTHER_ANYWHERE or apart.mean() > _OTHER_EVERYWHERE)

    # -- what is told --------------------------------------------------------------------------

    def add(self, record: BurstRecord, phase: int, bins: int) -> bool:
        """Take in a burst; whether it tells something of windows.

        Args:
            record: the burst.
            phase: its phase, as called now.
            bins: length of the branch vectors of windows; 0 where none is known.
        """
        account = self._accounts.of(phase)
        sums = account.stored if record.is_stored else account.taken
        sums.bursts += record.part == 0
        if record.is_stored:
            seconds = max(account.latest_stored_seconds, record.time_seconds)
            account.latest_stored_seconds = seconds
        if record.is_memoryless:
            nothing = _Modelled(np.zeros(self._layout.values), np.zeros(self._compared.values))
            self._remember(record, phase, nothing, bins)
            return True
        if not record.accesses > 0:
            return False
        histogram, own = self._read(record)
        sums.rows += record.rows
        sums.beyond_rows += min(record.beyond_accesses, record.rows)
        sums.writes += record.writes
        sums.histogram += histogram
        seen, modelled = self._model(record, phase, own)
        self.last_ratios = self._layout.table(modelled.curve)[0, MIDDLE]
        at = self._remember(record, phase, modelled, bins)
        self._seen[at] = seen
        octaves = self._octaves()
        seen.told = octaves[at]
        self._model_again(
            row
            for row, other in self._seen.items()
            if octaves[row] >= _NEWS_OF_LIKE * other.told + _FIRST_NEWS
        )
        return True

    def add_watch(self, record: WatchRecord, phase: int) -> bool:
        """Take in what a watchpoint told of a phase; whether curves changed by it."""
        rows = self._rows_of(phase)
        watches = self._accounts.of(phase).watches
        if not watches.add(record, self._burst_of(record), len(rows)) or not rows:
            return False
        self._set_curves(rows)
        return True

    def finish_watches(self) -> bool:
        """Let the latest watches count that did not seem worth it yet; whether curves changed."""
        changed = False
        for phase, account in self._accounts.by_phase.items():
            rows = self._rows_of(phase)
            if rows and account.watches.take_rest():
                self._set_curves(rows)
                changed = True
        return changed

    def _rows_of(self, phase: int) -> list[int]:
        """Bursts of a phase that are remembered by themselves."""
        if self.memory is None:
            return []
        rows = np.flatnonzero(self.memory.phase == phase).tolist()
        return [row for row in rows if row in self._seen]

    def add_window_rate(self, rate: CodeRate, spacing: Spacing | None) -> bool:
        """Take in how fast a window ran some code; whether many are to be looked at anew.

        Those that agree are believed where bursts do not: :meth:`rates_changed`.
        """
        return self._rates.add(rate, spacing) and self.memory is not None

    def rates_changed(self) -> None:
        """Have the memory look at the rates of windows again."""
        if self.memory is not None:
            self.memory.rates_changed()

    def merge(self, gone: int, into: int) -> None:
        """A phase turned out to be another one."""
        if self.memory is not None:
            self.memory.merge_phases(gone, into)

    def drop_stored(self, phase: int) -> bool:
        """Forget the bursts of a phase that were taken before the attach; whether any is known."""
        if self.memory is None:
            return False
        kept, dropped = self.memory.drop_stored(phase)
        for account in self._accounts.by_phase.values():
            account.keep_rows(kept, dropped)
        seen = self._seen
        self._seen = {row: seen[was] for row, was in enumerate(kept.tolist()) if was in seen}
        if not self.memory.count:
            self.memory = None
        self._model_again(self._seen)  # those of other phases, too: they went on as these did
        return True

    def _remember(
        self,
        record: BurstRecord,
        phase: int,
        modelled: _Modelled,
        bins: int,
    ) -> int:
        """Remember a burst; returns where."""
        code = code_hits(record.code)
        if self.memory is None:
            self.memory = BurstMemory(
                len(code) or bins or 1,
                self._layout.values,
                self._capacity,
                self._compared.values,
                self._rates,
            )
        at, joined = self.memory.add(
            record.window,
            phase,
            code,
            is_timed=record.timed is not None,
            timed_code=record.timed_code,
            is_stored=record.is_stored,
            spacing=record.spacing,
            bursts=_part_of_burst(record),
            **msgspec.structs.asdict(modelled),
        )
        if joined is not None:
            gone, into = joined
            for account in self._accounts.by_phase.values():
                account.join_rows(gone, into)
            self._seen.pop(into, None)
        self._seen.pop(at, None)
        return at

    # -- models --------------------------------------------------------------------------------

    def _model(
        self, record: BurstRecord, phase: int, own: SurvivalFunction
    ) -> tuple[_Seen, _Modelled]:
        """Model what a burst saw."""
        likeness = np.empty(0)
        if self.memory is not None:
            likeness = self.memory.likeness([code_hits(record.code)], [phase])[0]
        whole = self._continued(own, likeness)
        rows = self._layout.row(whole), self._compared.row(whole)
        thin = own.thinned()
        for_watches = msgspec.structs.replace(thin, stacks=None)
        seen = _Seen(thin, for_watches, LateReturns.of(own), 0.0, whole.thinned(), *rows)
        modelled = self._speed.rate(record, whole)
        rate, error = modelled, ERROR
        if record.timed is not None:
            rate, error = record.timed.accesses_per_cpu_second, record.timed.error
        return seen, _Modelled(
            curve=self._with_watches(seen, self._accounts.of(phase)),
            compared=seen.compared,
            rate=rate,
            error=error,
            modelled=modelled,
            sight_lines=seen_lines(own) if record.sampled_reuses else 0.0,
            highest=self._speed.highest(record, whole),
        )

    def _model_again(self, rows: Iterable[int]) -> None:
        """Model bursts again: bursts like them saw more of what lies beyond their horizons."""
        rows, memory = list(rows), self.memory
        if memory is None or not rows:
            return
        likeness, octaves = memory.likenesses(), self._octaves()
        for row in rows:
            seen = self._seen[row]
            seen.told = float(octaves[row])
            seen.whole = self._continued(seen.own, likeness[row])
            seen.row, seen.compared = self._layout.row(seen.whole), self._compared.row(seen.whole)
        self._set_curves(rows)

    def _set_curves(self, rows: Sequence[int]) -> None:
        """Have the memory know bursts' curves as they are now, and all who counted those before."""
        memory = self.memory
        assert memory is not None, "a burst was kept"
        for row in rows:
            seen = self._seen[row]
            curve = self._with_watches(seen, self._accounts.of(int(memory.phase[row])))
            change = self._layout.table(curve - memory.curves[row])
            memory.set_curve(row, curve, seen.compared)
            change[:, MIDDLE] = 0.0
            if change.any():
                for account in self._accounts.by_phase.values():
                    account.change_bounds(row, change)

    def _continued(self, own: SurvivalFunction, likeness: NDArray[np.float64]) -> SurvivalFunction:
        """What a burst saw, and beyond its horizon what those like it saw, by rows (m,)."""
        rows = list(self._seen)
        return continued(own, [self._seen[row].late for row in rows], likeness[rows])

    def _octaves(self) -> NDArray[np.float64]:
        """How many octaves bursts of like code saw further than each, all together, shape (m,)."""
        assert self.memory is not None, "a burst was kept"
        rows = list(self._seen)
        told = np.zeros(self.memory.count)
        octaves = np.log2([max(self._seen[row].own.horizon_accesses, 1) for row in rows])
        further = np.maximum(octaves[None, :] - octaves[:, None], 0.0)
        told[rows] = (self.memory.likenesses()[np.ix_(rows, rows)] * further).sum(axis=1)
        return told

    def _burst_of(self, watch: WatchRecord) -> SurvivalFunction | None:
        """What the burst saw that told the line; None if none did, or it is not remembered."""
        memory = self.memory
        if memory is None or watch.is_sampled:
            return None
        found = [row for row in self._seen if memory.window[row] == watch.window]
        return self._seen[found[0]].for_watches if found else None

    def _with_watches(self, seen: _Seen, account: PhaseAccount) -> NDArray[np.float64]:
        """The curves of a burst: what it and bursts like it saw, and what watchpoints told.

        Where there were too few of these for bursts of its kind, others of its phase tell what is
        likely, and nothing of bounds. The estimate goes the further from what the curve would be
        without them, the more there are, and what they rule out is left at once.
        """
        table, whole = self._layout.table(seen.row.copy()), seen.whole
        if not account.watches.count or not np.any(table[:, LOW] < table[:, HIGH]):
            return table.ravel()
        tails = account.watches.read(self._course.accesses, self._course.settled_seconds)
        horizon, before = whole.horizon_accesses, table[:, MIDDLE].copy()
        # The same code on another working set: what its phase did says nothing of it.
        tail = tails.beyond(horizon, None if is_same_kind(seen.own, account.pooled()) else seen.own)
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


def _part_of_burst(record: BurstRecord) -> float:
    """For how much of a burst it counts, among others of its code."""
    if record.is_memoryless:
        return 1.0
    return min(record.accesses / _WHOLE_ACCESSES, 1.0)
