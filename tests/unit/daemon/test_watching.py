"""Which lines are watched: by phases, in random order, as far as the budget goes."""

from __future__ import annotations

import random

import pytest

from memsampd.daemon.watching import RESOLUTION_SECONDS, WatchPlan
from memsampd.errors import CapabilityError, CaptureError
from memsampd.models.open_lines import OpenLine
from memsampd.sampler.perf.watch import FEW_HITS, MOST_HITS, Watched, WatchOrder
from memsampd.sampler.perf.watching_cost import WatchingCost

RATE = 1e8


def plan(budget_share: float = 0.01) -> WatchPlan:
    return WatchPlan(budget_share, random.Random(1))


def lines(count: int, words: int = 1, first: int = 0) -> list[OpenLine]:
    return [
        OpenLine(tuple(64 * (first + each) + 8 * word for word in range(words)), words, 50_000)
        for each in range(count)
    ]


def watched(order: WatchOrder, end: str = "returned", lost_seconds: float = 0.0) -> Watched:
    return Watched(order, (10.0, 10.5, 11.0), (0.0, 0.5, 1.0), (0,), end, 0.5, lost_seconds)  # type: ignore[arg-type]


def since(seconds: float) -> float:
    return seconds - 10.0


def test_lines_of_the_present_phase_are_watched_once_each() -> None:
    chosen = plan()
    chosen.offer(lines(20), 7, 3, 1)
    chosen.offer(lines(20, first=100), 7, 4, 2)
    seen = set()
    for _ in range(10):
        for order in chosen.orders(1, 4, lambda: RATE):
            assert order.tid == 7
            assert order.least_seconds == pytest.approx(50_000 / RATE)
            seen.add(order.addresses[0] >> 6)
            record = chosen.record(watched(order), since)
            assert record is not None
            assert (record.window, record.phase, record.least_accesses) == (3, 1, 50_000)
            assert record.times_seconds == (0.0, 0.5, 1.0)
    assert seen == set(range(20))
    assert chosen.orders(1, 4, lambda: RATE) == ()
    assert chosen.orders(None, 4, lambda: RATE) == ()
    assert chosen.orders(2, 4, lambda: None) == ()  # nobody knows how long to wait
    assert len(chosen.orders(2, 4, lambda: RATE)) == 4


def test_where_copies_are_slow_lines_are_watched_shortly_and_paid_for() -> None:
    cost = WatchingCost(repeat_seconds=0.25e-9, times=30.0)
    chosen = WatchPlan(0.01, random.Random(1), cost=cost)
    chosen.offer(lines(20), 7, 3, 1)
    chosen.copies.elapse(1.0, 200_000_000)  # a share of 0.05
    chosen.copies.add_burst(1, 2, 1)  # another of 0.05
    first, *_ = chosen.orders(1, 4, lambda: RATE)
    assert first.limit_seconds == pytest.approx(0.005 / 0.1)
    told = chosen.with_loss(watched(first, lost_seconds=1e-5))
    assert told.lost_seconds == pytest.approx(1e-5 + 0.1 / 1.1)
    record = chosen.record(told, since)
    assert record is not None
    assert record.hit_seconds == told.lost_seconds
    assert chosen.orders(1, 4, lambda: RATE) == ()  # that is more than the budget has
    assert not chosen.is_costly


def test_nothing_more_is_watched_while_watches_are_to_end() -> None:
    chosen = WatchPlan(0.01, random.Random(1), cost=WatchingCost(0.25e-9, 30.0))
    chosen.elapse(1.0)
    chosen.offer(lines(20), 7, 3, 1)
    first, *others = chosen.orders(1, 4, lambda: RATE)
    assert first.limit_seconds is None
    chosen.elapse(0.1, 100_000_000)
    assert chosen.copies.is_too_much
    assert chosen.orders(1, 4, lambda: RATE) == ()
    for order in (first, *others):
        chosen.record(watched(order, "evicted"), since)
    chosen.elapse(1.0)
    assert not chosen.copies.is_too_much
    for _ in range(20):
        chosen.elapse(1.0)
    assert chosen.orders(1, 4, lambda: RATE)


def test_where_copies_would_take_most_of_the_time_nothing_is_watched() -> None:
    chosen = WatchPlan(0.01, random.Random(1), cost=WatchingCost(0.25e-9, 30.0))
    chosen.offer(lines(20), 7, 3, 1)
    chosen.copies.elapse(1.0, 10**10)
    assert chosen.orders(1, 4, lambda: RATE) == ()
    assert chosen.is_costly
    for _ in range(100):
        chosen.copies.elapse(0.1, 0)
    assert all(order.limit_seconds is None for order in chosen.orders(1, 4, lambda: RATE))
    assert not chosen.is_costly


def test_a_line_of_many_words_waits_for_room_and_is_not_passed() -> None:
    """Or lines of one word would be watched more often than they were chosen."""
    chosen = plan()
    chosen.offer(lines(1, words=4), 7, 3, 1)
    assert chosen.orders(1, 3, lambda: RATE) == ()
    chosen.offer(lines(40, first=10), 7, 3, 1)
    sizes = []
    for _ in range(60):
        sizes += [len(order.addresses) for order in chosen.orders(1, 4, lambda: RATE)]
    assert sorted(sizes) == [1] * 40 + [4]


def test_what_is_touched_often_is_watched_again_for_longer() -> None:
    chosen = plan()
    chosen.offer(lines(1), 7, 3, 1)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    assert order.most_hits == FEW_HITS
    assert chosen.record(watched(order, "hits"), since) is None
    (again,) = chosen.orders(1, 4, lambda: RATE)
    assert (again.addresses, again.most_hits) == (order.addresses, MOST_HITS)
    record = chosen.record(watched(again, "hits"), since)
    assert record is not None
    assert record.end == "hits"


def test_hits_are_paid_for() -> None:
    chosen = plan(0.01)
    chosen.offer(lines(50), 7, 3, 1)
    (order, *_) = chosen.orders(1, 4, lambda: RATE)
    chosen.record(watched(order, lost_seconds=1.0), since)
    assert chosen.orders(1, 4, lambda: RATE) == ()
    chosen.elapse(100.0)
    assert chosen.orders(1, 4, lambda: RATE) == ()
    chosen.elapse(1000.0)
    assert chosen.orders(1, 4, lambda: RATE)


def test_a_refusal_is_waited_out() -> None:
    chosen = plan()
    chosen.offer(lines(50), 7, 3, 1)
    (order, *_) = chosen.orders(1, 4, lambda: RATE)
    chosen.refused(order, CapabilityError("no room", "make some"))
    turns = 0
    while not chosen.orders(1, 4, lambda: RATE):
        turns += 1
        assert turns < 1000
    assert turns > 10


def test_a_thread_that_has_ended_is_no_reason_to_wait() -> None:
    chosen = plan()
    chosen.offer(lines(50), 7, 3, 1)
    (order, *_) = chosen.orders(1, 4, lambda: RATE)
    chosen.refused(order, CaptureError("gone", "it is gone"))
    assert chosen.orders(1, 4, lambda: RATE)


def test_another_program_has_other_lines() -> None:
    chosen = plan()
    chosen.offer(lines(50), 7, 3, 1)
    (order, *_) = chosen.orders(1, 4, lambda: RATE)
    chosen.restart()
    assert chosen.record(watched(order), since) is None
    assert chosen.orders(1, 4, lambda: RATE) == ()


def test_merged_phases_share_their_lines() -> None:
    chosen = plan()
    chosen.offer(lines(5), 7, 3, 1)
    before, again = chosen.orders(1, 2, lambda: RATE)
    chosen.merge(1, 2)
    orders = chosen.orders(2, 4, lambda: RATE)
    assert len(orders) == 3
    assert chosen.record(watched(again, "hits"), since) is None
    assert len(chosen.orders(2, 4, lambda: RATE)) == 1  # it is watched again for longer
    records = [chosen.record(watched(each), since) for each in (before, *orders)]
    assert {each.phase for each in records if each is not None} == {2}
    assert chosen.orders(1, 4, lambda: RATE) == ()
    assert chosen.wants_lines(1)


def test_a_settled_phase_is_watched_rarely() -> None:
    chosen = plan(1.0)
    counts = []
    for _ in range(600):
        chosen.offer(lines(4), 7, 3, 1)
        counts.append(len(chosen.orders(1, 4, lambda: RATE)))
    assert counts[:10] == [4] * 10
    assert max(counts[100:]) == 1
    assert sum(counts[500:]) < 30
    assert sum(counts[500:]) > 0


def test_lines_are_wanted_where_there_are_few() -> None:
    chosen = plan()
    assert chosen.wants_lines(None)
    assert chosen.wants_lines(1)
    chosen.offer(lines(100), 7, 3, 1)
    assert not chosen.wants_lines(1)
    assert chosen.wants_lines(2)


def test_without_a_stop_lines_cost_few_hits() -> None:
    """Four words of a line, or one: about as many hits in all, and never a second try."""
    chosen = WatchPlan(0.01, random.Random(1), stops_nothing=True)
    chosen.offer(lines(1, words=4), 7, 3, 1)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    assert 4 * order.most_hits <= FEW_HITS + 4
    assert order.least_seconds == pytest.approx(max(RESOLUTION_SECONDS, 50_000 / RATE))
    record = chosen.record(watched(order, "hits"), since)
    assert record is not None
    assert record.resolution_seconds == RESOLUTION_SECONDS
    assert chosen.orders(1, 4, lambda: RATE) == ()


def test_without_a_stop_watches_have_all_of_the_budget() -> None:
    with_bursts, alone = plan(), WatchPlan(0.01, random.Random(1), stops_nothing=True)
    can = []
    for each in (with_bursts, alone):
        each.offer(lines(2), 7, 3, 1)
        (order, _) = each.orders(1, 2, lambda: RATE)
        each.record(watched(order, lost_seconds=0.015), since)
        each.offer(lines(1, first=50), 7, 3, 1)
        each.elapse(0.6)  # 6 ms of the budget
        can.append(bool(each.orders(1, 1, lambda: RATE)))
    assert can == [False, True]


def test_lines_from_elsewhere_are_watched_as_theirs_are() -> None:
    chosen = plan()
    chosen.offer(lines(3), 7, 3, 1)
    (before, *_) = chosen.orders(1, 4, lambda: RATE)
    chosen.change(stops_nothing=True)
    assert chosen.orders(1, 4, lambda: RATE) == ()  # of bursts
    assert chosen.record(watched(before), since) is None
    chosen.offer(lines(1, words=4), 7, 4, 1)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    record = chosen.record(watched(order), since)
    assert record is not None
    assert record.resolution_seconds == RESOLUTION_SECONDS
    chosen.change(stops_nothing=False)
    chosen.offer(lines(1), 7, 5, 1)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    record = chosen.record(watched(order), since)
    assert record is not None
    assert record.resolution_seconds == 0


def test_lines_of_short_bursts_are_watched_as_those_of_walks() -> None:
    """Pauses as short as the burst was are lost in what hits take."""
    chosen = plan()
    chosen.offer([OpenLine((0,), 8, 4000)], 7, 3, 1)
    (order,) = chosen.orders(1, 4, lambda: 2 * 4000 / RESOLUTION_SECONDS)
    assert order.least_seconds == RESOLUTION_SECONDS
    record = chosen.record(watched(order, "hits"), since)
    assert record is not None
    assert record.resolution_seconds == RESOLUTION_SECONDS
    assert chosen.orders(1, 4, lambda: RATE) == ()  # it is not watched again for longer


def test_short_bursts_tell_few_lines_each() -> None:
    """They hardly differ: others are to come from other bursts."""
    chosen = plan()
    for window in range(4):
        chosen.offer([OpenLine((64 * each,), 8, 500) for each in range(24)], 7, window, 1)
    found = []
    while orders := chosen.orders(1, 4, lambda: 1e7):
        found += [chosen.record(watched(each), since) for each in orders]
    windows = [each.window for each in found if each is not None]
    assert {windows.count(window) for window in range(4)} == {6}


def sampled_lines(chosen: WatchPlan, count: int, first: int = 1000) -> None:
    for each in range(first, first + count):
        words = tuple(64 * each + 8 * word for word in range(4))
        chosen.offer_sampled(OpenLine(words, 1, 1, 1), 7, 3, 1)


def test_lines_that_a_pmu_sampled_take_turns_with_those_of_bursts() -> None:
    """However many it tells."""
    chosen = plan()
    chosen.offer(lines(10, words=4), 7, 3, 1)
    sampled_lines(chosen, 90)
    told = []
    for _ in range(30):
        (order,) = chosen.orders(1, 4, lambda: RATE)
        assert chosen.orders(1, 0, lambda: RATE) == ()  # who has no room waits, and is not passed
        record = chosen.record(watched(order), since)
        assert record is not None
        assert record.is_sampled is (order.addresses[0] >= 64 * 1000)
        # What is known of their lines is that one access was there.
        assert (record.resolution_seconds > 0) is record.is_sampled
        assert record.least_accesses == (1 if record.is_sampled else 50_000)
        told.append(record.is_sampled)
    assert told == [False, True] * 10 + [True] * 10
    assert not chosen.wants_lines(1, is_sampled=True) or len(told) > 20
    assert chosen.wants_lines(1)


def test_hits_of_sampled_lines_say_nothing_of_those_that_bursts_left() -> None:
    """Most of these return at once, and still words of the others are watched four at a time."""
    chosen = plan()
    for line in range(20):
        chosen.offer([OpenLine(tuple(range(64 * line, 64 * line + 32, 8)), 1, 50_000)], 7, 3, 1)
    sampled_lines(chosen, 20)
    sizes = []
    for _ in range(12):
        orders = chosen.orders(1, 4, lambda: RATE)
        sizes.append([len(each.addresses) for each in orders])
        for each in orders:
            is_sampled = each.addresses[0] >= 64 * 1000
            chosen.record(watched(each) if is_sampled else silent(each), since)
    assert [4] in sizes[:8]
    assert [1] in sizes[8:] or [1, 1] in sizes[8:]


def silent(order: WatchOrder) -> Watched:
    return Watched(order, (10.0, 10.5), (0.0, 0.5), (), "patience", 0.5, 0.0)


def test_of_lines_that_do_not_return_one_word_each_is_watched() -> None:
    chosen = plan()
    touched_once = [
        OpenLine(tuple(64 * line + 8 * word for word in range(4)), 1, 50_000) for line in range(40)
    ]
    chosen.offer(touched_once, 7, 3, 1)
    for _ in range(4):
        (order,) = chosen.orders(1, 4, lambda: RATE)
        assert len(order.addresses) == 4
        assert chosen.record(silent(order), since) is not None
    orders = chosen.orders(1, 4, lambda: RATE)
    assert [each.addresses[0] % 64 for each in orders] == [0, 0, 0, 0]  # that was touched
    assert {len(each.addresses) for each in orders} == {1}
    told = [chosen.record(silent(each), since) for each in orders]
    assert [each.words for each in told if each is not None] == [1, 1, 1, 1]
    first, second, *_ = chosen.orders(1, 4, lambda: RATE)
    chosen.record(watched(first), since)  # it returned: one of nine
    assert chosen.is_silent(1)
    chosen.record(watched(second), since)
    assert not chosen.is_silent(1)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    assert len(order.addresses) == 4
    for _ in range(6):  # once two of sixteen returned
        assert not chosen.is_silent(1)
        chosen.offer(touched_once[:1], 7, 3, 1)
        (order,) = chosen.orders(1, 4, lambda: RATE)
        chosen.record(silent(order), since)
    assert chosen.is_silent(1)
    chosen.offer([OpenLine((0, 8, 16, 24), 3, 50_000)], 7, 4, 2)
    (order,) = chosen.orders(2, 4, lambda: RATE)
    assert len(order.addresses) == 4  # of another phase nothing is known


def test_of_bursts_as_short_as_a_walk_one_word_a_line_is_watched_from_the_first_on() -> None:
    """Until one is touched: then by half lines."""
    chosen = plan()
    short = [
        OpenLine(tuple(64 * line + 8 * word for word in range(4)), 1, 500) for line in range(20)
    ]
    for window in range(3, 6):
        chosen.offer(short, 7, window, 1)
    orders = chosen.orders(1, 4, lambda: RATE)
    assert [len(each.addresses) for each in orders] == [1, 1, 1, 1]
    for order in orders:
        chosen.record(watched(order), since)
    (order,) = chosen.orders(1, 4, lambda: RATE)
    assert len(order.addresses) == 4


def test_many_lines_are_watched_at_a_time_as_long_as_hardly_any_returns() -> None:
    chosen = plan()
    taken = []
    for turn in range(200):
        chosen.elapse(1.0)
        chosen.offer(lines(4, first=4 * turn), 7, turn, 1)
        orders = chosen.orders(1, 4, lambda: RATE)
        for order in orders:
            chosen.record(silent(order), since)
        taken.append(len(orders))
    assert taken[:128] == [4] * 128
    assert sum(taken[128:]) < len(taken[128:])


def silent_phase(chosen: WatchPlan) -> None:
    """Four lines of phase 1 that a burst left open do not return."""
    chosen.offer(lines(4), 7, 3, 1)
    for order in chosen.orders(1, 4, lambda: RATE):
        chosen.record(silent(order), since)


def test_where_no_line_returns_lines_of_samples_are_watched_once_bursts_tell_no_more() -> None:
    chosen = plan()
    assert not chosen.is_silent(None)
    assert not chosen.wants_samples(1)
    silent_phase(chosen)
    assert chosen.is_silent(1)
    assert not chosen.is_silent(2)
    chosen.offer(lines(1, first=9), 7, 3, 1)
    assert not chosen.wants_samples(1)
    for order in chosen.orders(1, 4, lambda: RATE):
        chosen.record(silent(order), since)
    assert chosen.wants_samples(1)
    chosen.offer_samples([], [], 4, 1)
    assert chosen.orders(1, 4, lambda: RATE) == ()
    chosen.offer_samples([8, 8], [1 << 20, (1 << 20) + 24], 4, 1)
    order, other = chosen.orders(1, 4, lambda: RATE)
    assert {*order.addresses, *other.addresses} == {1 << 20, (1 << 20) + 24}
    record = chosen.record(silent(order), since)
    assert record is not None
    assert record.is_sampled
    assert (record.window, record.tid) == (4, 8)


def test_many_lines_of_samples_are_watched_as_long_as_hardly_any_is_touched() -> None:
    chosen = plan()
    silent_phase(chosen)
    for window in range(100):
        assert chosen.wants_samples(1)
        chosen.offer_samples([7], [4096 * (1 + window)], window, 1)
        for order in chosen.orders(1, 4, lambda: RATE):
            chosen.record(silent(order), since)
    for window in range(4):
        chosen.offer_samples([7], [4096 * (1000 + window)], window, 1)
    assert not chosen.wants_samples(1)
    orders = chosen.orders(1, 4, lambda: RATE)
    assert [len(each.addresses) for each in orders] == [1, 1, 1, 1]
    for order in orders[:2]:  # two of sixteen
        chosen.record(watched(order), since)
    assert chosen.is_silent(1)
    chosen.record(watched(orders[2]), since)
    assert not chosen.is_silent(1)
    assert not chosen.wants_samples(1)


def test_a_window_of_many_samples_tells_lines_for_all_words() -> None:
    chosen = plan()
    silent_phase(chosen)
    chosen.offer_samples([7] * 50, list(range(4096, 4096 * 51, 4096)), 0, 1)
    assert not chosen.wants_samples(1)
    orders = chosen.orders(1, 4, lambda: RATE)
    assert [len(each.addresses) for each in orders] == [1, 1, 1, 1]
    assert len({each.addresses for each in orders}) == 4


def test_the_first_lines_of_a_phase_are_those_of_which_too_little_is_known() -> None:
    chosen = plan()
    assert not chosen.is_untried(None)
    assert chosen.is_untried(1)
    silent_phase(chosen)
    assert not chosen.is_untried(1)
    assert chosen.is_untried(2)


def test_without_a_stop_samples_tell_no_lines_for_bursts_walks_do() -> None:
    chosen = WatchPlan(0.01, random.Random(1), stops_nothing=True)
    silent_phase(chosen)
    assert not chosen.wants_samples(1)
