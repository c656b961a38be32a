"""Watches of a session: lines offered in the phase of their moment, ordered, paid and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from memsampd.daemon.closed import ClosedWindows
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.sampled_lines import SampledLine
from memsampd.daemon.tracer import CaptureOrder
from memsampd.daemon.turns import Counts, Turn
from memsampd.daemon.watching import OPEN_LINES, SHORT_BURST, WatchPlan
from memsampd.errors import CaptureError
from memsampd.estimate.events import WatchRecord
from memsampd.models.open_lines import OpenLine
from memsampd.phases.records import Window
from memsampd.sampler.perf.watch import WatchOrder
from memsampd.sampler.records import Burst, BurstCost
from memsampd.sampler.spacing import DataSpacing

# Bursts of a phase whose miss ratios they leave open by more than this, mean over sizes, are too
# short: watches, or bursts that go on for longer, then tell more than further bursts.
_OPEN_BAND = 0.1
_COPIES = (
    "no words are watched: this CPU copies memory (rep movs) so much slower meanwhile that the "
    "target would take longer; distances longer than bursts are not measured"
)
_MOST_SAMPLED = 64  # lines whose window has not ended: the latest


class Watches:
    """Tells a plan what happened, and asks it for words to watch.

    Args:
        plan: chooses lines; None: none are watched, and nothing here does anything.
        ledger: of costs.
        counts: what was watched, and what went wrong, is counted there.
        since_start: makes seconds since the attach of CLOCK_MONOTONIC times.
    """

    def __init__(
        self,
        plan: WatchPlan | None,
        ledger: Ledger,
        counts: Counts,
        since_start: Callable[[float], float],
    ) -> None:
        self._plan = plan
        self._ledger = ledger
        self._counts = counts
        self._since_start = since_start
        self._bands: Mapping[int, float] = {}
        self._sampled_lines: list[SampledLine] = []  # their windows have not ended

    def change(self, *, stops_nothing: bool) -> None:
        """Take lines from elsewhere from now on."""
        if self._plan is not None:
            self._plan.change(stops_nothing=stops_nothing)

    def restart(self) -> None:
        """Another program: its memory is another."""
        self._bands = {}
        self._sampled_lines = []
        if self._plan is not None:
            self._plan.restart()

    def merge(self, gone: int, into: int) -> None:
        """Make two phases one."""
        if self._plan is not None:
            self._plan.merge(gone, into)

    def tell_bands(self, bands: Mapping[int, float]) -> None:
        """Note what bursts leave open of each phase's miss ratios, mean over sizes."""
        self._bands = bands

    def is_open(self, phase: int | None) -> bool:
        """Whether bursts of a phase leave so much open that they are too short."""
        return phase is not None and self._bands.get(phase, 0.0) > _OPEN_BAND

    def take(
        self,
        turn: Turn,
        elapsed_seconds: float,
        charge: Callable[[float], None],
        by_user_time: Callable[[int, float, float], float],
    ) -> Iterator[WatchRecord]:
        """Pay for watches that have ended, and make records of what they tell.

        Args:
            turn: what has happened.
            elapsed_seconds: CPU time of the target since the last turn.
            charge: what bursts may cost the target pays for hits, too.
            by_user_time: as of :class:`~memsampd.sampler.protocols.AccessClock`.
        """
        plan = self._plan
        if plan is None:
            return
        plan.elapse(elapsed_seconds, turn.copied_bytes, self._ledger.busy_share)
        for watched in map(plan.with_loss, turn.watched):
            self._ledger.add_burst(BurstCost(hit_seconds=watched.lost_seconds))
            charge(watched.lost_seconds)
            begin_seconds, *_, end_seconds = watched.times_seconds
            factor = by_user_time(watched.order.tid, begin_seconds, end_seconds)
            record = plan.record(watched, self._since_start, factor)
            if record is not None:
                self._counts.watches += 1
                yield record
        for order, error in turn.refused_watches:
            plan.refused(order, error)
            if not isinstance(error, CaptureError):  # else its thread has ended: nothing is wrong
                self._counts.add_error("watch", str(error))

    @property
    def is_too_costly(self) -> bool:
        """Whether watches are to end now, as the target copies more than when they began."""
        return self._plan is not None and self._plan.copies.is_too_much

    def offer_burst(self, burst: Burst, lines: Sequence[OpenLine], window: int, phase: int) -> None:
        """Offer lines that a burst left open; it also says how much its code copies."""
        if self._plan is not None:
            self._plan.copies.add_burst(phase, burst.repeats, burst.accesses)
            self._plan.offer(lines, burst.tid, window, phase)

    def offer_sampled(self, lines: Sequence[SampledLine], closed: ClosedWindows) -> None:
        """Offer lines that a PMU sampled, once the windows of their moments have ended."""
        if self._plan is None:
            return
        waiting = [*self._sampled_lines, *lines][-_MOST_SAMPLED:]
        self._sampled_lines = []
        for each in waiting:
            window = closed.find(each.time_seconds)
            if window is None:
                self._sampled_lines.append(each)
            elif self._plan.wants_lines(window.phase, is_sampled=True):
                self._plan.offer_sampled(each.line, each.tid, window.index, window.phase)

    def offer_sample(self, window: Window, phase: int, spacing: DataSpacing) -> None:
        """Where bursts tell too few lines, offer one that a branch sample of the window tells."""
        if self._plan is not None and self._plan.wants_samples(phase):
            tids, addresses = spacing.addresses(window.start_seconds, window.end_seconds)
            self._plan.offer_samples(tids.tolist(), addresses.tolist(), window.index, phase)

    def with_lines(self, order: CaptureOrder, phase: int | None) -> CaptureOrder:
        """The order of a burst, asking for lines if they are needed and may cost CPU time."""
        if self._plan is None or not self._plan.wants_lines(phase):
            return order
        if self._ledger.has_spare():
            return replace(order, open_lines=OPEN_LINES)
        if self._may_watch(self._plan, phase):
            return replace(order, open_lines=OPEN_LINES, open_accesses=SHORT_BURST)
        return order

    def orders(
        self, phase: int | None, free: int, present_rate: Callable[[], float | None]
    ) -> tuple[WatchOrder, ...]:
        """Words to be watched now: see :meth:`WatchPlan.orders`; none where CPU time is short."""
        plan = self._plan
        if plan is None or not self._may_watch(plan, phase):
            return ()
        was_costly = plan.is_costly
        orders = plan.orders(phase, free, present_rate)
        if plan.is_costly and not was_costly:
            self._counts.add_error("copies", _COPIES)
        return orders

    def _may_watch(self, plan: WatchPlan, phase: int | None) -> bool:
        """Whether own CPU time is left for watches, as much as they are needed.

        Without hits they take none to speak of.
        """
        is_open = self.is_open(phase)
        if plan.is_silent(phase) or (is_open and plan.is_untried(phase)):
            return True
        return self._ledger.has_spare(is_open=is_open)
