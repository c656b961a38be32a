"""What is charged, and when bursts wait for memsampd's own CPU time."""

from __future__ import annotations

import math

import pytest

from memsampd.daemon.ledger import Ledger
from memsampd.daemon.sampling import Sampling
from memsampd.sampler.records import BurstCost


def ledger(own_cpu_share: float = 0.05) -> Ledger:
    return Ledger(0.01, own_cpu_share, now_seconds=100.0)


def test_a_second_is_granted_and_no_more_in_the_first_ten() -> None:
    costs = ledger()
    costs.add_burst(BurstCost(replica_cpu_seconds=0.29))
    costs.tell_time(101.0, 0.5, 0.70)
    assert costs.overhead().own_cpu_seconds == pytest.approx(0.99)
    assert costs.allows_burst(is_urgent=True)
    costs.tell_time(105.0, 300.0, 0.72)  # of many threads
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(111.0, 300.0, 0.72)
    assert costs.allows_burst(is_urgent=True)


def test_first_bursts_of_later_phases_may_go_a_tenth_beyond_it() -> None:
    costs = ledger()
    costs.tell_time(109.0, 9.0, 1.05)
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(112.0, 12.0, 1.09)
    assert costs.allows_burst(is_urgent=True)
    assert not costs.allows_burst()
    costs.tell_time(113.0, 13.0, 1.11)
    assert not costs.allows_burst(is_urgent=True)


def test_a_program_without_a_curve_has_a_try_now_and_then_though_nothing_is_left() -> None:
    """Where it uses little CPU time, turns use more than it earns: there would never be a curve."""
    costs, tries = ledger(), []
    for second in range(1, 61):
        costs.tell_time(100.0 + second, 0.001 * second, 1.0 + 0.01 * second)
        assert not costs.allows_burst(is_urgent=True)
        if costs.allows_burst(is_first=True):
            assert not costs.overhead().waits_for_own_cpu
            tries.append(second)
    assert tries == [10, 20, 30, 40, 50, 60]


def test_a_try_on_credit_disturbs_nobody() -> None:
    costs = Ledger(0.01, 0.05, 100.0, is_sparing=True)
    costs.tell_time(200.0, 0.1, 1.1, True)
    assert not costs.allows_burst(is_first=True)


def test_a_phase_that_has_lasted_goes_beyond_what_is_granted_now_and_then() -> None:
    costs, lent = ledger(), []
    for tenth in range(1, 61):
        costs.tell_time(100.0 + tenth / 10, tenth / 10, 1.0)
        assert not costs.allows_burst(is_urgent=True)
        if costs.allows_burst(is_urgent=True, is_lasting=True):
            lent.append(tenth)
    assert lent == [20, 40, 60]
    busy = Ledger(0.01, 0.05, 100.0, is_sparing=True)
    busy.tell_time(106.0, 6.0, 1.1, True)  # no CPU is idle
    assert not busy.allows_burst(is_urgent=True, is_lasting=True)


def test_where_no_cpu_is_idle_bursts_have_nothing_in_advance() -> None:
    costs = Ledger(0.01, 0.05, 100.0, usual_part=0.8, is_sparing=True)
    costs.tell_time(100.0, 0.0, 0.4, True)  # its start
    assert not costs.allows_burst(is_urgent=True)
    costs.add_burst(BurstCost(tracer_cpu_seconds=0.09))
    costs.tell_time(104.0, 4.0, 0.4 + 0.09 + 0.2, True)  # half of 0.05, whatever turns took
    assert costs.allows_burst(is_urgent=True)
    assert not costs.allows_burst()
    costs.add_burst(BurstCost(tracer_cpu_seconds=0.02))
    costs.tell_time(104.0, 4.0, 0.71, True)
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(104.1, 4.0, 0.71, False)  # a CPU is idle: the second is granted
    assert costs.allows_burst()
    costs.tell_time(109.0, 8.0, 1.01, True)  # it is the most in any case
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(124.0, 24.0, 1.19, True)  # and then the share
    assert costs.allows_burst(is_urgent=True)
    costs.tell_time(124.1, 24.0, 1.21, True)
    assert not costs.allows_burst(is_urgent=True)


def test_others_have_the_second_in_any_case() -> None:
    costs = ledger()
    costs.tell_time(101.0, 0.5, 0.70, True)
    assert costs.allows_burst()


@pytest.mark.parametrize(
    ("threads", "granted_seconds", "share"),
    [(1, 1.0, 0.04), (2, 1.0, 0.02), (4, 0.5, 0.01), (6, 0.5, 0.01)],
)
def test_a_target_on_busy_cpus_lends_what_bursts_may_cost_it(
    threads: int, granted_seconds: float, share: float
) -> None:
    """On four CPUs, none of them idle: half a second at the start, later a hundredth."""

    def used_at(seconds: float) -> float:
        costs = Ledger(0.01, 0.05, 100.0, cpus=4)
        for step in range(1, 101):
            passed = seconds * step / 100
            costs.tell_time(100.0 + passed, threads * passed, 0.0, True)
        own = 0.0
        while costs.allows_burst(is_urgent=True):
            own += 0.01
            costs.tell_time(100.0 + seconds, threads * seconds, own, True)
        return own

    # How much it runs is known after a second or two.
    assert used_at(9.0) == pytest.approx(granted_seconds, abs=0.15)
    assert used_at(600.0) == pytest.approx(share * 600 * threads, rel=0.03)


@pytest.mark.parametrize(
    ("turns_share", "bursts_share"), [(0.0, 0.01), (0.02, 0.01), (0.045, 0.005)]
)
def test_turns_leave_bursts_what_these_may_take(turns_share: float, bursts_share: float) -> None:
    """Up to the limit of all own CPU time."""
    costs, bursts_seconds = Ledger(0.01, 0.05, 0.0, cpus=1), 0.0
    for second in range(1, 1001):
        costs.tell_time(second, second, turns_share * second + bursts_seconds, True)
        while costs.allows_burst(is_urgent=True):
            costs.add_burst(BurstCost(tracer_cpu_seconds=0.01))
            bursts_seconds += 0.01
            costs.tell_time(second, second, turns_share * second + bursts_seconds, True)
    assert bursts_seconds == pytest.approx(1000 * bursts_share, rel=0.1)


def test_what_was_allowed_while_a_cpu_was_idle_stays_allowed() -> None:
    costs = Ledger(0.01, 0.05, 0.0, cpus=2)
    costs.tell_time(100.0, 200.0, 9.0, False)
    assert costs.allows_burst(is_urgent=True)
    costs.add_burst(BurstCost(replica_cpu_seconds=2.5))
    costs.tell_time(200.0, 400.0, 9.0, True)  # 5 % of 200 s and 1 % of 200 s
    assert costs.allows_burst(is_urgent=True)
    assert costs.overhead().taken_cpu_seconds == pytest.approx(2.5)
    costs.add_burst(BurstCost(replica_cpu_seconds=0.6))
    costs.tell_time(200.0, 400.0, 9.0, True)
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(300.0, 420.0, 9.8, False)
    assert costs.allows_burst(is_urgent=True)
    assert costs.overhead().taken_cpu_seconds == pytest.approx(3.1)


def test_of_own_cpu_time_so_much_is_taken_as_the_target_has_of_the_cpus() -> None:
    taken = []
    for cpus in (1, 2, 8):
        costs = Ledger(0.01, 0.05, 0.0, cpus=cpus)
        costs.tell_time(10.0, 10.0, 0.4, True)
        costs.add_burst(BurstCost(replica_cpu_seconds=0.2))
        costs.tell_time(20.0, 20.0, 0.6, True)
        costs.tell_time(30.0, 30.0, 0.8, False)
        taken.append(costs.overhead().taken_cpu_seconds)
    assert taken == pytest.approx([0.8, 0.4, 0.1])


@pytest.mark.parametrize(("waits_for_cpu", "granted_seconds"), [(False, 1.0), (True, 0.5)])
def test_what_is_granted_in_any_case_is_told(waits_for_cpu: bool, granted_seconds: float) -> None:
    costs = Ledger(0.01, 0.05, 0.0, cpus=1)
    costs.tell_time(10.0, 10.0, 0.4, waits_for_cpu)
    assert costs.overhead().own_cpu_granted_seconds == pytest.approx(granted_seconds)


def test_a_part_is_kept_for_phases_without_a_curve() -> None:
    costs = ledger()
    costs.tell_time(101.0, 0.5, 0.89)
    assert costs.allows_burst()
    costs.tell_time(101.1, 0.5, 0.91)
    assert not costs.allows_burst()
    assert costs.allows_burst(is_urgent=True)


def test_usual_bursts_leave_turns_what_they_will_take_until_the_grant_is_earned() -> None:
    costs = ledger()
    costs.tell_time(100.0, 0.0, 0.1)  # its start
    costs.add_burst(BurstCost(tracer_cpu_seconds=0.1))
    costs.tell_time(104.9, 4.0, 0.3 + 0.16)
    assert costs.has_room()  # what turns took so far tells nothing
    costs.tell_time(108.0, 8.0, 0.3 + 0.32)  # turns: 0.04 a second of the target's
    assert not costs.has_room()  # 0.62 + 8 * 0.04 > 0.9
    assert costs.has_room(is_unseen=True)
    costs.tell_time(108.1, 8.0, 0.3 + 0.4)
    assert not costs.has_room(is_unseen=True)
    assert costs.has_room(is_urgent=True)  # a phase without a curve has what there is
    costs.tell_time(118.0, 18.0, 0.3 + 0.54)  # two seconds are left until it is earned
    assert costs.has_room(is_unseen=True)
    costs.tell_time(140.0, 40.0, 0.3 + 1.2)
    assert costs.has_room()


def test_a_question_changes_nothing() -> None:
    costs = ledger()
    costs.tell_time(101.0, 1.0, 0.95)
    assert not costs.allows_burst()
    assert costs.has_room(is_urgent=True)
    costs.tell_time(103.0, 3.0, 0.95)
    told = costs.overhead()
    assert (told.waits_for_own_cpu, told.own_cpu_waited_seconds) == (True, 2.0)
    assert costs.allows_burst(is_urgent=True)
    assert not costs.has_room()
    assert not costs.overhead().waits_for_own_cpu


def test_the_more_phases_a_program_has_had_the_more_is_kept_for_others() -> None:
    found = []
    for phases in (1, 2, 3, 6, 9, 40):
        costs = ledger()
        costs.tell_phases(phases)
        own = [0.01 * step for step in range(101)]
        for used in own:
            costs.tell_time(103.0, 3.0, used)
            if not costs.allows_burst():
                break
        assert costs.allows_burst(is_urgent=True)
        found.append(used)
    assert found == pytest.approx([0.9, 0.9, 0.88, 0.82, 0.76, 0.75], abs=0.011)


def test_the_share_holds_after_the_start() -> None:
    costs = ledger(0.1)
    costs.tell_time(160.0, 49.0, 5.0)
    assert not costs.allows_burst(is_urgent=True)
    costs.tell_time(161.0, 51.0, 5.0)
    assert costs.allows_burst(is_urgent=True)


def test_how_long_bursts_wait_is_counted() -> None:
    costs = ledger()
    assert costs.allows_burst()
    assert not costs.overhead().waits_for_own_cpu
    for now_seconds in (100.0, 110.0, 120.0):
        costs.tell_time(now_seconds, 10.0, 2.0)
        assert not costs.allows_burst()
    costs.tell_time(130.0, 60.0, 2.0)
    told = costs.overhead()
    assert (told.waits_for_own_cpu, told.own_cpu_waited_seconds) == (True, 30.0)
    assert costs.allows_burst()
    costs.tell_time(230.0, 60.0, 2.0)
    told = costs.overhead()
    assert (told.waits_for_own_cpu, told.own_cpu_waited_seconds) == (False, 30.0)


def test_all_costs_add_up() -> None:
    costs = ledger()
    assert costs.tell_time(101.0, 4.0, 0.5) == 4.0
    assert costs.tell_time(102.0, 3.9, 0.5) == 0.0  # it has ended: its clock is gone
    costs.tell_sampling(Sampling(0.004, 0.25, "why"))
    for _ in range(2):
        costs.add_burst(BurstCost(0.002, 1, 0.002, hit_seconds=0.001, replica_cpu_seconds=0.1))
    told = costs.overhead()
    assert told.target_cpu_seconds == 4.0
    assert told.stop_seconds == pytest.approx(0.004)
    assert told.longest_stop_seconds == 0.002
    assert (told.sampling_seconds, told.sampled_share, told.sampling_why) == (0.004, 0.25, "why")
    assert told.spent_share == pytest.approx(0.006 / 4)
    assert told.own_cpu_seconds == pytest.approx(0.7)
    assert told.replica_cpu_seconds == pytest.approx(0.2)


def test_an_idle_target_is_told_from_a_busy_one() -> None:
    costs = ledger()
    costs.tell_time(101.0, 1.0, 0.1)
    assert costs.idle_seconds == 0.0
    costs.tell_time(104.5, 1.0, 0.1)
    assert costs.idle_seconds == 3.5
    costs.tell_time(105.0, 1.1, 0.1)
    assert costs.idle_seconds == 0.0


def test_watches_leave_bursts_most_of_own_cpu_time() -> None:
    costs = ledger()
    costs.tell_time(101.0, 1.0, 0.34)
    assert costs.has_spare()
    costs.tell_time(102.0, 2.0, 0.36)
    assert not costs.has_spare()
    assert costs.has_spare(is_open=True)
    assert costs.allows_burst()
    costs.tell_time(103.0, 3.0, 1.01)
    assert not costs.has_spare(is_open=True)
    costs.tell_time(200.0, 90.0, 1.02)
    assert costs.has_spare()


def test_watches_go_on_once_what_was_granted_is_earned() -> None:
    """Else a session that lasts would have none: bursts use what comes in."""
    costs = ledger()
    costs.tell_time(119.0, 19.0, 0.95)
    assert not costs.has_spare()
    costs.tell_time(160.0, 60.0, 0.95 * 0.05 * 60)
    assert not costs.allows_burst()
    assert costs.has_spare()
    costs.tell_time(160.0, 60.0, 0.05 * 60 + 0.01)
    assert not costs.has_spare()


def bursts_ahead(costs: Ledger, bursts: int, cpu_seconds: float) -> tuple[float, float]:
    """Take bursts, and ask."""
    for _ in range(bursts):
        costs.add_burst(BurstCost(replica_cpu_seconds=cpu_seconds), is_taken=True)
    return costs.bursts_ahead()


@pytest.mark.parametrize("length_seconds", [2.0, 4.0, 8.0])
def test_each_doubling_of_a_short_run_has_nearly_as_many_bursts(length_seconds: float) -> None:
    """A burst whenever the pace says so: in the second half, and in that of the first half."""
    costs, moments, progress = ledger(0.15), [], 0.0
    cost = BurstCost(replica_cpu_seconds=0.03)
    costs.tell_time(100.0, 0.0, 0.3)
    for turn in range(50, 1000):
        elapsed = 0.01 * turn
        costs.tell_time(100.0 + elapsed, elapsed, 0.3)
        bursts, seconds = costs.bursts_ahead()
        progress += 0.01 * bursts / seconds
        if progress >= 1:
            progress -= 1
            costs.add_burst(cost, is_taken=True)
            moments.append(elapsed)
    second_half = sum(length_seconds / 2 <= each < length_seconds for each in moments)
    first_half = sum(length_seconds / 4 <= each < length_seconds / 2 for each in moments)
    assert 0.3 + 0.03 * len(moments) == pytest.approx(0.9 * 3.0, abs=0.1)
    assert 0.5 * first_half < second_half <= first_half + 1


def test_what_bursts_cost_is_what_they_have_cost() -> None:
    costs = ledger()
    costs.tell_time(100.0, 0.0, 0.3)
    costs.tell_time(102.0, 1.0, 0.3)
    bursts, seconds = bursts_ahead(costs, bursts=9, cpu_seconds=0.03)
    # 0.9 s may be used by such bursts: 0.3 by the start, 0.27 by nine, leaves eleven.
    assert bursts == pytest.approx(11.0)
    assert seconds == pytest.approx(0.5 * 2 * math.log(5) / 1.5)  # it uses half a CPU
    costs.tell_time(102.0, 1.0, 0.7)
    assert costs.bursts_ahead()[0] == 0.0


def test_later_what_comes_in_is_spent() -> None:
    costs = ledger()
    costs.tell_time(100.0, 0.0, 0.0)
    costs.tell_time(200.0, 100.0, 4.5)  # all that was granted, but for the part of new phases
    bursts, seconds = bursts_ahead(costs, bursts=0, cpu_seconds=0.0)
    assert seconds == pytest.approx(100.0)
    assert bursts == pytest.approx((0.9 * 0.05 * 200.0 - 4.5) / (4.5 + 0.03))


def test_walks_and_watches_share_what_is_allowed_otherwise() -> None:
    """Where nothing else tells of large caches, watches have a larger part."""
    usual = Ledger(0.01, 0.05, 0.0)
    walks = Ledger(0.01, 0.05, 0.0, usual_part=0.75, spare_part=0.95)
    can = []
    for each in (usual, walks):
        each.tell_time(1.0, 1.0, 0.6)  # of a second that is granted at the start
        can.append(each.has_spare())
        each.tell_time(1.1, 1.0, 0.85)
        can.append(each.allows_burst())
    assert can == [False, True, True, False]


def test_it_tells_how_busy_the_target_was_lately() -> None:
    costs = ledger()
    assert costs.busy_share == 1
    target_seconds, shares = 0.0, []
    for now_seconds, share in [(100 + at, 0.2) for at in range(1, 21)] + [(123.0, 4.0)]:
        target_seconds += share
        costs.tell_time(float(now_seconds), target_seconds, 0.1)
        shares.append(costs.busy_share)
    assert shares[:-1] == sorted(shares[:-1], reverse=True)
    assert shares[-2] == pytest.approx(0.2, abs=0.01)
    assert shares[-1] == pytest.approx(4 / 3)  # of the last three seconds: what was before is over
    costs.tell_time(123.0, target_seconds, 0.1)  # no time has passed
    assert costs.busy_share == shares[-1]


def test_a_long_burst_leaves_others_room_until_what_was_granted_is_earned() -> None:
    costs = ledger()
    costs.tell_time(101.0, 1.0, 0.5)
    assert costs.affords(0.25)
    costs.add_burst(BurstCost(replica_cpu_seconds=0.25))
    costs.tell_time(102.0, 2.0, 0.52)
    assert costs.allows_burst()
    assert not costs.affords(0.25)
    costs.tell_time(121.0, 21.0, 0.9)
    assert costs.affords(0.25)


def test_a_night_without_work_is_no_debt_of_the_day() -> None:
    costs = ledger()
    costs.tell_time(100.0, 0.0, 0.3)
    costs.tell_time(160.0, 60.0, 1.0)
    assert costs.allows_burst()
    for quarter in range(1, 100_000):  # turns cost a millisecond each
        costs.tell_time(160.0 + 0.25 * quarter, 60.0, 1.0 + 0.001 * quarter)
    assert costs.overhead().own_cpu_seconds == pytest.approx(101.0, abs=0.01)  # and are told
    costs.tell_time(26_000.0, 61.0, 101.0)
    assert costs.allows_burst()
    costs.tell_time(26_001.0, 62.0, 105.0)  # while it works they count
    assert not costs.allows_burst()


def test_nor_is_what_comes_before_each_time_that_it_wakes_up() -> None:
    """Every eight seconds for twenty milliseconds, of which a turn tells at their end."""
    costs = ledger()
    costs.tell_time(100.0, 0.0, 0.3)
    costs.tell_time(160.0, 60.0, 1.0)
    ran, own = 60.0, 1.0
    for woken in range(160, 8160, 8):
        for later in (0.5, 1.1):  # turns; the next one is when it wakes up
            costs.tell_time(woken + later, ran, own)
        ran, own = ran + 0.02, own + 0.02
        costs.tell_time(woken + 8.0, ran, own)
    assert costs.overhead().own_cpu_seconds == pytest.approx(own)
    assert costs.allows_burst()
