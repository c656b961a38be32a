"""Which burst is to be ordered next, if any."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.daemon.backoff import BackOff
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.tracer import CaptureOrder
from memsampd.errors import CaptureError
from memsampd.phases.protocols import Schedule
from memsampd.phases.records import Window
from memsampd.phases.unseen import UnseenCode
from memsampd.sampler.records import Burst

_PASSING = {"not-running", "in-rseq", "gone"}
"""Refusals that the next moment may well change."""
# Bursts that gave nothing are tried again without waiting for another window so often in a row, and
# so often in short turns.
_TRIES_IN_A_ROW = 8
_HURRIED_TRIES = 16
# Code that is sought may be waited for as long as this many windows of a phase that a burst is due
# of; no other burst is taken meanwhile.
_OVERDUE_WINDOWS = 4.0
# A phase that has had so much CPU time without a burst may have one beyond what is allowed of ours.
_LASTING_SECONDS = 0.5
# Where a new page is touched at nearly every access, a hold and what follows it usually see a
# thousand. After some of these bursts they go on for longer: CPU time of ours.
_SHORT_BURSTS = 3
_FAR_SECONDS = 0.25
BEYOND_SECONDS = 0.05
"""CPU time of ours for which bursts go on when the hold is over."""
_PATIENCE_SECONDS = 10.0  # to wait until a thread runs, where all of them sleep


class BurstLimits(msgspec.Struct, frozen=True):
    """What holds of every burst.

    Attributes:
        first_accesses: length of the first burst of all.
        max_stop_seconds: how long it may hold the target.
        seeks: breakpoints may catch a thread in code that is sought; else they are needed for
            watches.
        sample_seconds: what a sample takes from the thread, of those taken in quick succession;
            None: there is no need of them.
    """

    first_accesses: int
    max_stop_seconds: float
    seeks: bool = True
    sample_seconds: float | None = None


class Planner:
    """Orders a burst where the schedule wants one and nothing is in the way.

    The first burst of a program is ordered as soon as a thread of it was seen to run. What was
    refused, or empty, is tried again soon.

    Args:
        schedule: says whether a phase is worth a burst now.
        ledger: says whether memsampd's own CPU time allows it.
        limits: of every burst.

    Attributes:
        asked_about: index of the window that the schedule was asked about last.
    """

    def __init__(self, schedule: Schedule, ledger: Ledger, limits: BurstLimits) -> None:
        self._schedule = schedule
        self._ledger = ledger
        self._limits = limits
        self._forget()

    def _forget(self) -> None:
        self._backoff = BackOff()
        self._trouble = ""
        self._again: CaptureOrder | None = None
        self._tries = 0
        self._has_curve = False
        self.asked_about: int | None = None
        self._bursts: Counter[int | None] = Counter()
        self._lent: set[int | None] = set()  # phases with a burst on credit that is not earned yet

    def restart(self) -> None:
        """Another program: nothing is known of it; what was spent stays spent."""
        self._schedule.restart()
        self._forget()

    def know(self) -> None:
        """There are curves from before the attach: a first burst is nothing urgent."""
        self._has_curve = True

    @property
    def trouble(self) -> str:
        """Why no burst is taken at present, with the remedy; empty where nothing lasting is."""
        return self._trouble

    def hurries(self, phase: int | None) -> bool:
        """Whether the program, or this phase of it, has no burst yet, and one seems to be had."""
        if not self._schedule.takes_bursts or self._backoff.is_on or self._tries >= _HURRIED_TRIES:
            return False
        if self._ledger.is_waiting or not self._schedule.can_pay:
            return False
        return not self._has_curve or self._schedule.is_new(phase)

    def windows_left(self, phase: int | None) -> float:
        """Return after how many windows of a phase a burst will be due, and may be had."""
        is_possible = not self._backoff.is_on and not self._ledger.is_waiting
        return self._schedule.windows_left(phase) if is_possible else math.inf

    def is_overdue(self, phase: int | None) -> bool:
        """Whether a burst of a phase has been due for so long that nothing else is waited for."""
        return self.windows_left(phase) <= -_OVERDUE_WINDOWS

    # -- learning ------------------------------------------------------------------------------

    def taken(self, order: CaptureOrder, burst: Burst) -> None:
        """A burst has come of an order, perhaps an empty one."""
        self._trouble = ""
        self._backoff.succeeded()
        if burst.tells:
            self._has_curve, self._tries, self._again = True, 0, None
        elif not order.seek_ips:
            self._try_again(order)

    def has_counted(self, phase: int) -> None:
        """A burst told something of a phase."""
        self._bursts[phase] += 1

    def merge(self, gone: int, into: int) -> None:
        """A phase turned out to be another one."""
        self._bursts[into] += self._bursts.pop(gone, 0)

    def refused(self, order: CaptureOrder, error: CaptureError, window: int) -> None:
        """Nothing has come of an order; ``window`` is the index of the latest one."""
        if order.seek_ips:  # somewhere else, later
            return
        if error.reason == "none-ran":  # nothing was tried
            self._again = order
            return
        if error.reason in _PASSING:
            self._try_again(order)
            return
        self._trouble = str(error) if self._backoff.is_on else ""
        self._backoff.refused(window)

    def _try_again(self, order: CaptureOrder) -> None:
        self._tries += 1
        self._again = order if self._tries % _TRIES_IN_A_ROW else None

    # -- ordering ------------------------------------------------------------------------------

    def first(self, thread_samples: Mapping[int, int]) -> CaptureOrder | None:
        """Order the first burst of a program, or another try, between two windows.

        Args:
            thread_samples: samples of each thread when the program ran last.
        """
        schedule = self._schedule
        if not thread_samples or self._backoff.is_on or not schedule.takes_bursts:
            return None
        if not schedule.can_pay:
            return None
        again = self._again
        if again is not None:
            if not self._ledger.allows_burst(is_first=not self._has_curve):
                return None
            self._again = None
            return self._capture(thread_samples, 0.0, again.max_accesses)
        if self._has_curve or self._tries or not self._ledger.allows_burst(is_first=True):
            return None
        return self._capture(thread_samples, 0.0, self._limits.first_accesses)

    def seek(
        self, unseen: UnseenCode, is_seen: NDArray[np.bool_], window: int, phase: int | None
    ) -> CaptureOrder | None:
        """Order a burst of code that runs and that no burst has seen.

        Args:
            unseen: knows what has run.
            is_seen: of each bin of branch vectors, whether a burst ran code in it, shape (bins,).
            window: index of the latest window.
            phase: its phase: one without a burst comes first, and a burst of it that is overdue.
        """
        if self._schedule.is_new(phase) or self.is_overdue(phase) or not self._limits.seeks:
            return None
        is_possible = self._schedule.takes_bursts and self._schedule.can_pay and self._has_curve
        if not is_possible or self._backoff.waits(window):
            return None
        if not self._ledger.has_room(is_unseen=True):
            return None
        sought = unseen.seek(is_seen, window)
        if sought is None:
            return None
        order = self._capture({sought.tid: 1}, 0.0, self._limits.first_accesses)
        return replace(order, seek_ips=sought.ips, seek_seconds=sought.patience_seconds)

    @property
    def may_hurry(self) -> bool:
        """Whether a burst may be had at once where the program has gone on to other code."""
        schedule = self._schedule
        is_possible = schedule.takes_bursts and schedule.can_pay and self._has_curve
        return is_possible and not self._backoff.is_on and self._ledger.has_room(is_unseen=True)

    def at_once(self, tid: int) -> CaptureOrder | None:
        """Order a burst of code that may be over before a window is: no burst has seen it."""
        if not self.may_hurry:
            return None
        return self._capture({tid: 1}, 0.0, self._limits.first_accesses)

    def next(
        self,
        window: Window,
        phase: int | None,
        expected: int | None,
        is_open: Callable[[int | None], bool] = lambda phase: False,
    ) -> CaptureOrder | None:
        """Order a burst for the window after this one, if it is worth it.

        Args:
            window: that has just ended; with the threads of which a burst may be taken.
            phase: its phase: one without a burst may go on though another one is expected; None if
                only child processes ran.
            expected: phase of the next window; None if only child processes run in it.
            is_open: says whether bursts of a phase leave much of its miss ratios open.
        """
        if self._schedule.is_new(phase) and not self._schedule.is_new(expected):
            expected = phase
        if expected is None or self._backoff.waits(window.index):
            return None
        is_urgent = self._schedule.is_new(expected)
        # A phase without a burst is due from its first window on.
        due_seconds = -self._schedule.windows_left(expected) * window.cpu_seconds
        is_lasting = is_urgent and due_seconds >= _LASTING_SECONDS and expected not in self._lent
        if not self._may_take(expected, is_urgent=is_urgent, is_lasting=is_lasting):
            return None
        self._schedule.pace(*self._ledger.bursts_ahead())
        self.asked_about = window.index + 1
        decision = self._schedule.decide(self.asked_about, expected)
        if not decision.profile:
            return None
        order = self._capture(
            window.thread_samples,
            decision.delay_cpu_seconds,
            decision.max_accesses,
        )
        has_tried = self._bursts[expected] >= _SHORT_BURSTS
        if has_tried and is_open(expected) and self._ledger.affords(_FAR_SECONDS):
            return replace(order, beyond_seconds=_FAR_SECONDS)
        return order

    def _may_take(self, phase: int | None, *, is_urgent: bool, is_lasting: bool) -> bool:
        """Whether own CPU time allows a burst of a phase; what is not due does not wait for it."""
        ledger, is_first = self._ledger, not self._has_curve
        if ledger.has_room():
            self._lent.clear()
        has_room = ledger.has_room(is_urgent=is_urgent, is_first=is_first)
        is_later = 1 < self._schedule.windows_left(phase) < math.inf and not is_urgent
        if not has_room and is_later:
            return False
        if not ledger.allows_burst(is_urgent=is_urgent, is_first=is_first, is_lasting=is_lasting):
            return False
        if not has_room:
            self._lent.add(phase)
        return True

    def _capture(
        self,
        thread_samples: Mapping[int, int],
        delay_seconds: float,
        max_accesses: int,
    ) -> CaptureOrder:
        limits = self._limits
        return CaptureOrder(
            thread_samples,
            delay_seconds,
            max_accesses,
            limits.max_stop_seconds,
            BEYOND_SECONDS,
            _PATIENCE_SECONDS,
            sample_seconds=limits.sample_seconds,
        )
