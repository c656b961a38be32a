"""Which lines are watched next, and what becomes of what watchpoints told."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from memsampd.daemon.copy_loss import CopyLoss
from memsampd.errors import CaptureError, MemsampdError
from memsampd.estimate.events import WatchRecord
from memsampd.models.open_lines import OpenLine, line_of_access
from memsampd.sampler.perf.watch import FEW_HITS, MOST_HITS, Watched, WatchOrder
from memsampd.sampler.perf.watching_cost import WatchingCost

OPEN_LINES = 12
"""Lines that are told of a burst: few, so that they come from many."""
_ENOUGH_LINES = OPEN_LINES  # of a phase, not watched yet: to find them takes a few milliseconds
_REMEMBERED = 256  # lines of a phase
# Hits may take so much of what bursts may cost the target, and so much at once.
_BUDGET_PART = 0.3
_AT_ONCE_SECONDS = 0.01
# From so many watches of a phase on only one line is taken a turn, and from so many one in some:
# twice as many where none return.
_SOME, _MANY = 64, 256
_MANY_TURNS = 5
_REFUSED_TURNS = 100
_FEWEST_HITS = 4
SHORT_BURST = 16_384
"""Accesses: lines of bursts no longer than this are found at once."""
_LINES_OF_A_MOMENT = 6  # a walk, or a burst as short: its lines hardly differ
_LONGEST_WALK = 4096  # accesses
# After so many watches of a phase without any hit one word a line is watched, where one was
# touched: four lines that do not return tell more than one does. Bursts of such phases are short
# and few, and tell few lines; watches without hits cost next to nothing. Lines of gigabytes that
# are touched at random return by chance: one in so many of the latest watches may have hits.
_SILENT, _FOR_A_HIT, _LATEST = 4, 8, 16
_SAMPLED_WAITING = 4  # lines of samples: as many are taken a window, at most
RESOLUTION_SECONDS = 40e-6
"""Pauses of less CPU time are lost in what hits take, 10 to 31 us each."""


class _Line(msgspec.Struct, frozen=True):
    """A line that may be watched."""

    line: OpenLine
    tid: int
    window: int
    phase: int
    is_sampled: bool = False
    most_hits: int = FEW_HITS
    resolution_seconds: float = 0.0
    lost_share: float = 0.0  # of CPU time in user mode, to slower copies, while it is watched
    kernel_since: float = 0.0  # as CopyLoss has it


class _Queue(msgspec.Struct):
    """Lines of a phase that one source told, those of bursts or those that a PMU sampled.

    Attributes:
        waiting: in random order; the last one is the next.
        taken: how many were watched.
        hits: whether the latest watches that ended had any.
    """

    waiting: deque[_Line] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    taken: int = 0
    hits: deque[bool] = msgspec.field(default_factory=lambda: deque(maxlen=_LATEST))

    @property
    def is_silent(self) -> bool:
        """Whether hardly any line that was watched lately was touched."""
        return len(self.hits) >= max(_SILENT, _FOR_A_HIT * sum(self.hits))


class WatchPlan:
    """Chooses the lines, phase by phase and at random, and pays for them.

    Lines that bursts (or walks) left open and lines of accesses that a PMU sampled take turns, as
    long as there are both: neither crowds the other out, however many it tells.

    Args:
        budget_share: share of the target's CPU time that bursts may cost it.
        rng: chooses.
        stops_nothing: lines come from walks, which cost the target nothing: all of the budget is
            for watches, and a line that is touched often has returned soon.
        line_bytes: size of a line.
        cost: what watching takes beside hits.

    Attributes:
        copies: what that is for this target.
        is_costly: nothing was watched the last time, as its copies would take too long.
    """

    def __init__(
        self,
        budget_share: float,
        rng: random.Random,
        *,
        stops_nothing: bool = False,
        line_bytes: int = 64,
        cost: WatchingCost | None = None,
    ) -> None:
        self.copies = CopyLoss(cost or WatchingCost())
        self.is_costly = False
        self._budget_share = budget_share
        self._line_bytes = line_bytes
        self._rng = rng
        self._balance_seconds = _AT_ONCE_SECONDS
        self._refused_turns = 0
        self._turn = 0
        self._number = 0
        self.change(stops_nothing=stops_nothing)

    def change(self, *, stops_nothing: bool) -> None:
        """Take lines from elsewhere; those that are known were chosen otherwise, and go."""
        self._stops_nothing = stops_nothing
        self._budget_part = 1.0 if stops_nothing else _BUDGET_PART
        self.restart()

    def restart(self) -> None:
        """Another program: its memory is another."""
        self._queues: dict[tuple[int, bool], _Queue] = {}  # by phase, and whether a PMU sampled
        self._watched: dict[int, _Line] = {}
        self._last_was_sampled = True
        self.copies.restart()

    def elapse(
        self,
        target_cpu_seconds: float,
        copied_bytes: int | None = 0,
        busy_share: float = 1.0,
    ) -> None:
        """Tell what the target has done since the last call.

        Args:
            target_cpu_seconds: CPU time that it has used.
            copied_bytes: what the kernel copied for it; None if nobody knows.
            busy_share: CPU seconds that it uses a second.
        """
        shares = (line.lost_share for line in self._watched.values())
        present = max(shares, default=None)
        self.copies.elapse(target_cpu_seconds, copied_bytes, busy_share, user_share=present)
        earned = self._budget_part * self._budget_share * target_cpu_seconds
        self._balance_seconds = min(self._balance_seconds + earned, _AT_ONCE_SECONDS)

    def wants_lines(self, phase: int | None, *, is_sampled: bool = False) -> bool:
        """Whether a burst in this phase is to tell lines, or the PMU."""
        if phase is None:
            return True
        queue = self._queues.get((phase, is_sampled))
        return queue is None or len(queue.waiting) < _ENOUGH_LINES

    def offer(self, lines: Sequence[OpenLine], tid: int, window: int, phase: int) -> None:
        """Remember lines that a burst left open, in random order."""
        is_long = any(line.least_accesses > _LONGEST_WALK / 2 for line in lines)
        told = lines if is_long and not self._stops_nothing else lines[:_LINES_OF_A_MOMENT]
        self._keep([_Line(line, tid, window, phase) for line in told], phase, is_sampled=False)

    def offer_sampled(self, line: OpenLine, tid: int, window: int, phase: int) -> None:
        """Remember the line of an access that a PMU sampled."""
        self._keep([_Line(line, tid, window, phase, is_sampled=True)], phase, is_sampled=True)

    def is_silent(self, phase: int | None) -> bool:
        """Whether hardly any line of a phase that was watched lately was touched."""
        if phase is None or not self._queue(phase, is_sampled=False).is_silent:
            return False
        sampled = self._queue(phase, is_sampled=True)
        return sampled.is_silent or len(sampled.hits) < _SILENT

    def is_untried(self, phase: int | None) -> bool:
        """Whether too few lines of a phase were watched to know whether they return."""
        return phase is not None and self._taken(phase) < _SILENT

    def _wants_many(self, phase: int) -> bool:
        """Whether lines that bursts left open do not return: as many are watched as can be."""
        return not self._stops_nothing and self.is_silent(phase)

    def wants_samples(self, phase: int) -> bool:
        """Whether lines of data that samples tell are to be watched, too: bursts tell no more."""
        waits = bool(self._queue(phase, is_sampled=False).waiting)
        return self._wants_many(phase) and not waits and self._room_for_samples(phase) > 0

    def _room_for_samples(self, phase: int) -> int:
        return max(_SAMPLED_WAITING - len(self._queue(phase, is_sampled=True).waiting), 0)

    def offer_samples(
        self, tids: Sequence[int], addresses: Sequence[int], window: int, phase: int
    ) -> None:
        """Remember lines of some of the accesses that samples told."""
        wanted = min(self._room_for_samples(phase), len(addresses))
        for at in self._rng.sample(range(len(addresses)), wanted):
            line = line_of_access(addresses[at], self._line_bytes, self._rng)
            self.offer_sampled(line, tids[at], window, phase)

    def _keep(self, lines: Sequence[_Line], phase: int, *, is_sampled: bool) -> None:
        waiting = self._queue(phase, is_sampled=is_sampled).waiting
        waiting.extend(lines)
        shuffled = list(waiting)
        self._rng.shuffle(shuffled)
        waiting.clear()
        waiting.extend(shuffled)

    def _queue(self, phase: int, *, is_sampled: bool) -> _Queue:
        return self._queues.setdefault((phase, is_sampled), _Queue())

    def merge(self, gone: int, into: int) -> None:
        """Carry over what is known of a phase that turned out to be another."""
        self.copies.merge(gone, into)
        for is_sampled in (False, True):
            other = self._queues.pop((gone, is_sampled), None)
            if other is not None:
                queue = self._queue(into, is_sampled=is_sampled)
                queue.waiting.extend(replace(line, phase=into) for line in other.waiting)
                queue.taken += other.taken
                queue.hits.extend(other.hits)
        for number, line in self._watched.items():
            if line.phase == gone:
                self._watched[number] = replace(line, phase=into)

    def orders(
        self, phase: int | None, free: int, present_rate: Callable[[], float | None]
    ) -> tuple[WatchOrder, ...]:
        """Choose lines of the present phase, in an order that does not depend on their words.

        Args:
            phase: that; None before the first.
            free: how many words can be watched.
            present_rate: tells how many accesses the target makes a CPU second now; None if that
                is not known.
        """
        self._turn += 1
        self._refused_turns = max(self._refused_turns - 1, 0)
        is_paid = self._balance_seconds > 0 and not self.copies.is_too_much
        if phase is None or self._refused_turns or not is_paid:
            return ()
        if self._next(phase) is None:
            return ()
        accesses_per_cpu_second = present_rate()
        if not accesses_per_cpu_second:
            return ()
        lost_share = self.copies.user_share(phase, accesses_per_cpu_second)
        limit_seconds = self.copies.limit_seconds(lost_share)
        self.is_costly = limit_seconds == 0.0
        if self.is_costly:
            return ()
        orders: list[WatchOrder] = []
        wanted = self._wanted(phase)
        while len(orders) < wanted and (queue := self._next(phase)) is not None:
            line = queue.waiting[-1]
            takes_one = self._takes_one_word(line, queue)
            words = line.line.words[: 1 if takes_one and line.line.touched == 1 else None]
            if len(words) > free:
                break  # nobody is passed for having many words
            since = self.copies.kernel_seconds
            chosen = replace(queue.waiting.pop(), lost_share=lost_share, kernel_since=since)
            order = self._order(chosen, words, accesses_per_cpu_second)
            orders.append(replace(order, limit_seconds=limit_seconds))
            queue.taken += 1
            self._last_was_sampled = line.is_sampled
            free -= len(words)
        return tuple(orders)

    def _takes_one_word(self, line: _Line, queue: _Queue) -> bool:
        """Whether one word of a line is enough: hardly any return, or that is likely.

        Who touches new pages all the time has bursts as short as a walk, and few.
        """
        if queue.is_silent or (line.is_sampled and self.is_silent(line.phase)):
            return True
        is_short = line.line.least_accesses <= _LONGEST_WALK
        return is_short and self.is_untried(line.phase) and not self._stops_nothing

    def _next(self, phase: int) -> _Queue | None:
        """The queue whose turn it is; None if no line waits."""
        for is_sampled in (not self._last_was_sampled, self._last_was_sampled):
            queue = self._queues.get((phase, is_sampled))
            if queue is not None and queue.waiting:
                return queue
        return None

    def _order(
        self, line: _Line, words: tuple[int, ...], accesses_per_cpu_second: float
    ) -> WatchOrder:
        """Have a line watched; one of a burst that was as short as a walk, as if it were of one."""
        seconds, most_hits = line.line.least_accesses / accesses_per_cpu_second, line.most_hits
        is_short = line.line.least_accesses <= SHORT_BURST and seconds < RESOLUTION_SECONDS
        if self._stops_nothing or is_short or line.is_sampled:
            seconds = max(seconds, RESOLUTION_SECONDS)
            line = replace(line, resolution_seconds=RESOLUTION_SECONDS)
            most_hits = max(FEW_HITS // len(words), _FEWEST_HITS)  # of the line: each is felt
        self._number += 1
        self._watched[self._number] = line
        return WatchOrder(words, line.tid, seconds, self._number, most_hits)

    def _taken(self, phase: int) -> int:
        return sum(self._queue(phase, is_sampled=each).taken for each in (False, True))

    def _wanted(self, phase: int) -> int:
        taken, wants_many = self._taken(phase), self._wants_many(phase)
        if taken >= _MANY * (1 + wants_many):
            return int(self._turn % _MANY_TURNS == 0)
        return 1 if taken >= _SOME and not wants_many else 4

    def refused(self, order: WatchOrder, error: MemsampdError) -> None:
        """A line could not be watched: others are tried later."""
        self._watched.pop(order.number, None)
        if not isinstance(error, CaptureError):  # else the thread has ended
            self._refused_turns = _REFUSED_TURNS

    def with_loss(self, watched: Watched) -> Watched:
        """The same, what the target lost to slower copies meanwhile added to what it lost."""
        line = self._watched.get(watched.order.number)
        if line is None:  # of another program
            return watched
        more = self.copies.lost_seconds(watched, line.lost_share, line.kernel_since)
        return replace(watched, lost_seconds=watched.lost_seconds + more)

    def record(
        self,
        watched: Watched,
        since_start: Callable[[float], float],
        by_user_time: float = 1.0,
    ) -> WatchRecord | None:
        """Pay for a watch that has ended; None if it was of another program, or begins again.

        Args:
            watched: what came of it.
            since_start: makes seconds since the attach of CLOCK_MONOTONIC times.
            by_user_time: CPU time of the thread in a second of its user time meanwhile: of a second
                of that windows tell how many accesses it is worth.
        """
        self._balance_seconds -= watched.lost_seconds
        line = self._watched.pop(watched.order.number, None)
        if line is None:
            return None
        queue = self._queue(line.phase, is_sampled=line.is_sampled)
        queue.hits.append(bool(watched.hit_words))
        needs_more = watched.end == "hits" and line.most_hits < MOST_HITS
        if needs_more and not line.resolution_seconds:
            queue.waiting.append(replace(line, most_hits=MOST_HITS))
            return None
        return WatchRecord(
            window=line.window,
            phase=line.phase,
            tid=line.tid,
            least_accesses=line.line.least_accesses,
            times_seconds=tuple(since_start(each) for each in watched.times_seconds),
            cpu_seconds=tuple(each / by_user_time for each in watched.cpu_seconds),
            patience_seconds=watched.patience_seconds / by_user_time,
            end=watched.end,
            words=len(watched.order.addresses),
            touched=line.line.touched,
            hit_words=watched.hit_words,
            hit_seconds=watched.lost_seconds,
            resolution_seconds=line.resolution_seconds / by_user_time,
            visit_touches=line.line.touches,
            is_sampled=line.is_sampled,
            counted=watched.counted,
        )
