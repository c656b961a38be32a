"""From windows and bursts, as they come, to the curves of phases, windows and the whole run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import BurstSums, PhaseAccounts
from memsampd.estimate.bursts import ModelledBursts
from memsampd.estimate.course import Course
from memsampd.estimate.events import (
    BurstRecord,
    EstimatorEvent,
    ExecRecord,
    MergeRecord,
    StoreDropRecord,
    WatchRecord,
    WindowRecord,
)
from memsampd.estimate.layout import HIGH, LOW, MIDDLE, CurveLayout
from memsampd.estimate.records import Estimate, WindowEstimate
from memsampd.estimate.scatter import phase_bands, phase_scatter
from memsampd.estimate.speed import SpeedModel
from memsampd.estimate.summary import summarise
from memsampd.estimate.windows import WaitingWindows
from memsampd.models.policies import MODELS
from memsampd.models.protocols import CacheModel


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
        cache_seconds: what accesses to them take, by name, where that was measured.
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
        cache_seconds: Mapping[str, float] | None = None,
        settle_windows: int = 32,
        waiting_windows: int = 512,
        remembered_bursts: int = 128,
        tell_window: Callable[[WindowEstimate], None] | None = None,
    ) -> None:
        chosen = [model() for model in MODELS.values()] if models is None else models
        self._layout = CurveLayout(tuple(chosen), np.asarray(sizes_bytes, np.int64), line_bytes)
        self._speed = SpeedModel(cache_sizes_bytes or {}, line_bytes, cache_seconds)
        self._settle_windows = settle_windows
        self._waiting_windows = waiting_windows
        self._capacity = remembered_bursts
        self._tell_window = tell_window
        self._begin()

    def _begin(self) -> None:
        """Nothing is known of the program."""
        layout, capacity = self._layout, self._capacity
        self._accounts = PhaseAccounts(layout.values, capacity)
        self._course = Course()
        self._bursts = ModelledBursts(layout, self._speed, self._accounts, self._course, capacity)
        self._windows = WaitingWindows(
            layout,
            self._accounts,
            self._course,
            capacity,
            self._settle_windows,
            self._waiting_windows,
            self._tell_window,
        )

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
                if self._bursts.add_watch(event, self.phase_now(event.phase)):
                    self._value_again()
                    self._windows.settle()
            case MergeRecord():
                self._merge(event.gone, event.into)
            case StoreDropRecord():
                self._drop_stored(event.phase)
            case ExecRecord():
                self._windows.settle_all()
                self._begin()
        self._windows.count_on()

    def finish(self) -> None:
        """Settle all windows: nothing more will come."""
        self._take_stock()
        if self._bursts.finish_watches():
            self._value_again()
        self._windows.settle_all()
        self._windows.count_on()

    def _take_stock(self) -> None:
        self._windows.take_stock(self._bursts.memory)

    def _value_again(self) -> None:
        self._windows.value_again(self._bursts.memory)

    def _add_window(self, record: WindowRecord) -> None:
        for rate in record.rates:
            if self._bursts.add_window_rate(rate, record.spacing):
                self._take_stock()
                self._bursts.rates_changed()
                self._value_again()
        phase = self.phase_now(record.phase)
        account = self._accounts.of(phase)
        account.windows += 1
        account.cpu_seconds += record.cpu_seconds
        account.add_speed(record.speed, record.cpu_seconds)
        if self._windows.add(record, phase):
            self._take_stock()

    def _add_burst(self, record: BurstRecord) -> None:
        phase = self.phase_now(record.phase)
        if self._bursts.add(record, phase, self._windows.bins()):
            self._value_again()
            self._windows.settle()

    def _merge(self, gone: int, into: int) -> None:
        gone, into = self.phase_now(gone), self.phase_now(into)
        if gone == into:
            return
        self._accounts.merge(gone, into)
        self._bursts.merge(gone, into)
        self._windows.merge(gone, into)
        self._value_again()

    def _drop_stored(self, phase: int) -> None:
        """Forget the bursts of a phase that were taken before the attach."""
        phase = self.phase_now(phase)
        account = self._accounts.of(phase)
        account.stored, account.latest_stored_seconds = BurstSums(), -np.inf
        if self._bursts.drop_stored(phase):
            self._value_again()

    # -- what is known -------------------------------------------------------------------------

    def phase_now(self, phase: int) -> int:
        """Return what a phase is called now, merges applied."""
        return self._accounts.phase_now(phase)

    def last_burst_ratios(self, most_bytes: float = np.inf) -> NDArray[np.float64] | None:
        """Miss ratios of the last burst, shape (s,), by the first model; None before the first.

        Args:
            most_bytes: at sizes up to this.
        """
        ratios = self._bursts.last_ratios
        return None if ratios is None else ratios[self._layout.sizes_bytes <= most_bytes]

    def contradicts(self, record: BurstRecord) -> bool:
        """Whether a burst, which is not told yet, contradicts what was stored of its phase."""
        return self._bursts.contradicts(record)

    def possible_rates(self, burst: BurstRecord) -> tuple[float, float]:
        """Return the lowest and the highest rate of a burst's code, accesses per CPU second."""
        return self._bursts.possible_rates(burst)

    def modelled_rate(self, burst: BurstRecord) -> float:
        """Return the rate that is likely of a burst's code, accesses per CPU second."""
        return self._bursts.modelled_rate(burst)

    def present_rate(self) -> float | None:
        """Return the latest rate that is known of a window, accesses per CPU second."""
        self._take_stock()
        return self._course.present_rate()

    def scatter(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return how much the bursts of each phase differ, and how wide their bounds are.

        By phase; see :mod:`memsampd.estimate.scatter`. Empty where nothing is known of it.
        """
        self._take_stock()
        memory = self._bursts.memory
        accesses, misses = self._windows.accesses_and_misses()
        if memory is None or not accesses > 0:
            return {}, {}
        figures = memory.curves.reshape(memory.count, -1, 3, len(self._layout.sizes_bytes))[:, 0]
        widths = figures[:, HIGH] - figures[:, LOW]
        ratios = self._layout.table(misses)[0, MIDDLE] / accesses
        rates, _ = memory.expected_rates()
        scatter = phase_scatter(
            memory.phase, memory.bursts, rates, figures[:, MIDDLE], widths, ratios
        )
        return scatter, phase_bands(memory.phase, memory.bursts, widths)

    def seen_code(self) -> NDArray[np.bool_]:
        """Return which bins of branch vectors bursts ran code of, shape (bins,); (0,) at first."""
        memory = self._bursts.memory
        return np.empty(0, np.bool_) if memory is None else memory.seen_code

    def estimate(self, only: Collection[int] | None = None) -> Estimate:
        """Return all that is known now.

        Args:
            only: the phases that are wanted, without curves and rate of the run; None: all.
        """
        self._take_stock()
        return summarise(
            self._layout,
            self._accounts.by_phase,
            self._windows.sums_by_phase(),
            self._bursts.memory,
            self._windows.totals(),
            only,
        )
