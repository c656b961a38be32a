"""Which burst is ordered next."""

from __future__ import annotations

import random

import numpy as np
from msgspec.structs import replace
from rowless import rowless_burst

from memsampd.daemon.ledger import Ledger
from memsampd.daemon.planner import BEYOND_SECONDS, BurstLimits, Planner
from memsampd.errors import CaptureError
from memsampd.phases.protocols import Schedule
from memsampd.phases.records import Window
from memsampd.phases.schedule import make_schedule
from memsampd.phases.unseen import UnseenCode
from memsampd.sampler.records import BranchSamples, Burst

LIMITS = BurstLimits(200_000, 0.005)
RAN = {5: 3}


def schedule() -> Schedule:
    return make_schedule("phase-guided", random.Random(1), window_seconds=0.1)


def ledger() -> Ledger:
    return Ledger(0.01, 0.05, 0.0)


def window(index: int) -> Window:
    return Window(index, 0.1 * index, 0.1 * index + 0.1, 0.1, np.zeros(4), 50, 0, 0, RAN)


def burst(accesses: int = 1000) -> Burst:
    return rowless_burst(pid=5, tid=5, accesses=accesses)


def take_first(planner: Planner) -> None:
    """The first burst of the program is ordered, and comes."""
    order = planner.first(RAN)
    assert order is not None
    planner.taken(order, burst())


def test_a_phase_without_a_burst_is_tried_though_another_is_expected() -> None:
    wanted = schedule()
    planner = Planner(wanted, ledger(), LIMITS)
    take_first(planner)
    wanted.record(0, 200_000)
    order = planner.next(window(3), phase=1, expected=0)
    assert order is not None
    assert order.delay_seconds == 0.0
    assert planner.hurries(1)
    planner.taken(order, burst())
    wanted.record(1, 200_000)
    assert not planner.hurries(1)


def test_no_burst_is_due_where_only_child_processes_are_expected() -> None:
    wanted = schedule()
    planner = Planner(wanted, ledger(), LIMITS)
    take_first(planner)
    wanted.record(1, 200_000)
    wanted.hasten(1)  # it is due
    assert planner.next(window(3), phase=1, expected=None) is None
    assert planner.next(window(4), phase=None, expected=None) is None
    assert planner.next(window(5), phase=None, expected=1) is not None


def test_code_of_child_processes_is_not_sought() -> None:
    planner, unseen = Planner(schedule(), ledger(), LIMITS), UnseenCode(5)
    take_first(planner)
    is_seen, bins = np.zeros(4, np.bool_), np.full(200, 2)
    for pid in (6, 5):
        taken = BranchSamples(
            ip=bins.astype(np.uint64),
            pid=np.full(200, pid, np.int32),
            tid=np.full(200, pid, np.int32),
            time_seconds=np.linspace(0.0, 2.0, 200),
            period_seconds=0.01,
        )
        unseen.add(taken, bins)
        order = planner.seek(unseen, is_seen, 3, None)
        assert (order is None) == (pid == 6)
    assert order is not None
    assert order.thread_samples == {5: 1}


def test_where_short_bursts_leave_much_open_later_ones_go_on_for_longer() -> None:
    wanted = schedule()
    planner = Planner(wanted, ledger(), LIMITS)
    take_first(planner)
    beyond_seconds = []
    for number in range(6):
        wanted.drift(0)  # it is due
        order = planner.next(window(3 + number), phase=0, expected=0, is_open=lambda _: True)
        assert order is not None
        beyond_seconds.append(order.beyond_seconds)
        planner.taken(order, burst())
        wanted.record(0, 1000)
        planner.has_counted(0)
    assert beyond_seconds == [BEYOND_SECONDS] * 3 + [5 * BEYOND_SECONDS] * 3
    wanted.drift(0)
    order = planner.next(window(20), phase=0, expected=0, is_open=lambda _: False)
    assert order is not None
    assert order.beyond_seconds == BEYOND_SECONDS


def test_a_burst_of_code_without_accesses_is_no_failure() -> None:
    planner = Planner(schedule(), ledger(), LIMITS)
    order = planner.first(RAN)
    assert order is not None
    planner.taken(order, replace(burst(0), instructions=10_000))
    assert planner.first(RAN) is None


def test_a_first_burst_comes_though_own_cpu_time_is_used_up() -> None:
    costs = ledger()
    planner = Planner(schedule(), costs, LIMITS)
    costs.tell_time(1.0, 0.01, 5.0)
    assert planner.first(RAN) is None
    costs.tell_time(10.0, 0.1, 5.0)
    take_first(planner)
    costs.tell_time(100.0, 1.0, 5.0)
    assert planner.first(RAN) is None
    assert planner.next(window(3), phase=1, expected=1) is None
    planner.restart()  # another program
    assert planner.first(RAN) is not None


def test_tries_end_after_some_in_a_row_until_another_window() -> None:
    planner = Planner(schedule(), ledger(), LIMITS)
    refusal = CaptureError("not-running", "it sleeps")
    tried = 0
    while (order := planner.first(RAN)) is not None:
        planner.refused(order, refusal, 0)
        tried += 1
    assert tried == 8
    assert planner.next(window(0), 0, 0) is not None


def test_a_burst_that_found_nobody_awake_is_ordered_again_and_counts_for_nothing() -> None:
    permits = iter([True, False, *[True] * 100])
    costs = Ledger(0.01, 0.05, 0.0, lambda: next(permits))
    planner = Planner(schedule(), costs, LIMITS)
    order = planner.first(RAN)
    assert order is not None
    assert order.patience_seconds > 0
    planner.refused(order, CaptureError("none-ran", "it sleeps"), 0)
    assert planner.first(RAN) is None  # others have the turn
    for _ in range(50):
        order = planner.first(RAN)
        assert order is not None
        planner.refused(order, CaptureError("none-ran", "it sleeps"), 0)
    assert planner.hurries(None)
    assert planner.trouble == ""


def test_what_is_not_due_does_not_wait_for_own_cpu_time() -> None:
    wanted, costs = schedule(), ledger()
    planner = Planner(wanted, costs, LIMITS)
    take_first(planner)
    planner.next(window(0), 0, 0)
    wanted.record(0, 200_000)
    wanted.pace(1, 100.0)
    wanted.record(0, 200_000)  # a long gap
    assert wanted.windows_left(0) > 1
    costs.tell_time(5.0, 5.0, 3.0)
    assert planner.next(window(1), 0, 0) is None
    assert not costs.overhead().waits_for_own_cpu
    wanted.hasten(0)
    assert planner.next(window(2), 0, 0) is None
    assert costs.overhead().waits_for_own_cpu


def test_a_phase_has_one_burst_on_credit_until_that_is_earned() -> None:
    wanted, costs, lent = schedule(), ledger(), []
    planner = Planner(wanted, costs, LIMITS)
    take_first(planner)
    wanted.record(0, 200_000)
    for index in range(1, 2000):
        seconds = 0.1 * index
        wanted.elapse(0.1)
        wanted.skip(1)
        costs.tell_time(seconds, seconds, 2.0)  # earned after some 40 s
        if costs.has_room(is_urgent=True):
            break
        if planner.next(window(index), 1, 1) is not None:  # and nothing tells of phase 1
            lent.append(index)
    assert len(lent) == 1
    costs.tell_time(seconds + 10, seconds + 10, 2.0)
    assert planner.next(window(index), 1, 1) is not None
    costs.tell_time(seconds + 11, seconds + 11, 10.0)
    assert not costs.has_room(is_urgent=True)
    assert planner.next(window(index), 1, 1) is not None
    costs.tell_time(seconds + 15, seconds + 15, 10.0)
    assert planner.next(window(index), 1, 1) is None


def test_a_lasting_refusal_is_told_from_the_second_time_on() -> None:
    planner = Planner(schedule(), ledger(), LIMITS)
    refusal = CaptureError("no-room", "no room", "make some")
    order = planner.first(RAN)
    assert order is not None
    planner.refused(order, refusal, 0)
    assert planner.trouble == ""
    assert not planner.hurries(None)
    assert planner.next(window(0), 0, 0) is None
    order = planner.next(window(1), 0, 0)
    assert order is not None
    planner.refused(order, refusal, 1)
    assert planner.trouble == "no room; make some"
    planner.restart()
    assert planner.trouble == ""
    assert planner.first(RAN) is not None


def test_first_bursts_of_phases_have_own_cpu_time_kept_for_them() -> None:
    costs, wanted = ledger(), schedule()
    planner = Planner(wanted, costs, LIMITS)
    take_first(planner)
    wanted.record(0, 200_000)
    costs.tell_time(1.0, 0.5, 0.9)  # of a second that is granted
    wanted.drift(0)
    assert planner.next(window(4), 0, 0) is not None  # it begins anew
    wanted.record(0, 200_000)
    assert [planner.next(window(n), 0, 0) for n in range(5, 50)] == [None] * 45
    assert planner.next(window(50), 1, 1) is not None
    costs.tell_time(2.0, 0.6, 1.1)
    assert planner.next(window(51), 2, 2) is None


def test_a_phase_that_lasts_has_a_burst_though_own_cpu_time_is_used_up() -> None:
    costs, wanted = ledger(), schedule()
    planner = Planner(wanted, costs, LIMITS)
    take_first(planner)
    ordered = []
    for index in range(30):
        costs.tell_time(5.0 + 0.1 * index, 5.0 + 0.1 * index, 2.0)
        wanted.skip(1)
        order = planner.next(window(index), phase=1, expected=1)
        ordered.append(order is not None)
    assert not any(ordered[:4])  # less than half a second of it
    assert any(ordered)


def test_nothing_hurries_while_bursts_wait_for_own_cpu_time() -> None:
    costs = ledger()
    planner = Planner(schedule(), costs, LIMITS)
    assert planner.hurries(None)
    costs.tell_time(1.0, 1.0, 100.0)
    assert planner.first(RAN) is None
    assert not planner.hurries(None)
    costs.tell_time(5000.0, 5000.0, 100.0)
    assert planner.first(RAN) is not None
    assert planner.hurries(None)


def test_nothing_hurries_while_the_budget_is_spent() -> None:
    wanted = schedule()
    planner = Planner(wanted, ledger(), LIMITS)
    wanted.spend(1000, 100.0)
    assert not planner.hurries(None)
    wanted.elapse(20_000.0)
    assert planner.hurries(None)
