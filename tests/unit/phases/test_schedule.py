"""One contract for all schedules, then what is particular to each."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.errors import UsageError
from memsampd.phases.protocols import Schedule
from memsampd.phases.schedule import SCHEDULES, BurstShape, make_schedule
from memsampd.phases.schedule.budget import CostModel, TokenBucket
from memsampd.phases.schedule.lengths import BurstLengths
from memsampd.phases.schedule.phase_guided import PhaseGuided, _Phase

ALL = pytest.mark.parametrize("name", sorted(SCHEDULES))
PROFILING = pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"none"}))
SHAPE = BurstShape(1000, 50_000, 100_000, stop_seconds=0.01, seconds_per_access=1e-6)
FREE = {"share": math.inf}


def make(name: Any, seed: Any = 0, **options: Any) -> Any:
    options = {"shape": SHAPE, "window_seconds": 0.1, **options}
    return make_schedule(name, random.Random(seed), **options)


EVENTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 4)),  # predicted phase
        st.floats(0, 0.3),  # CPU time that passes
        st.floats(0, 0.5),  # cost of a burst if one is taken
        st.sampled_from(["", "", "", "drift", "merge"]),
    ),
    max_size=120,
)


@ALL
@settings(max_examples=60)
@given(events=EVENTS, share=st.floats(0, 0.5), allowance=st.floats(0, 0.5))
def test_budget_is_kept_but_for_one_burst(
    name: Any, events: Any, share: Any, allowance: Any
) -> None:
    """Whatever phases come and whatever bursts turn out to cost."""
    schedule = make(name, share=share, allowance_seconds=allowance)
    spent = elapsed = 0.0
    for index, (phase, cpu_seconds, cost, event) in enumerate(events):
        decision = schedule.decide(index, phase)
        if decision.profile:
            assert SHAPE.min_accesses <= decision.max_accesses <= SHAPE.max_accesses
            assert 0 <= decision.delay_cpu_seconds <= 0.1
            assert spent <= allowance + share * elapsed + 1e-9  # no debt when a burst starts
            schedule.spend(decision.max_accesses, cost)
            schedule.record(phase if phase is not None else 0, decision.max_accesses)
            spent += cost
        else:
            assert decision.reason in {"not-due", "budget", "no-prediction"}
            assert decision.max_accesses == 0
        if event == "drift":
            schedule.drift(phase or 0)
        if event == "merge":
            schedule.merge(3, 1)
        schedule.elapse(cpu_seconds)
        elapsed += cpu_seconds


@PROFILING
def test_spends_its_share_and_no_more(name: Any) -> None:
    """Costs as predicted, so the budget binds from both sides."""
    schedule = make(name, share=0.05, allowance_seconds=0.2)
    rng = random.Random(1)
    costs = []
    for index in range(5000):
        decision = schedule.decide(index, rng.randrange(3))
        if decision.profile:
            costs.append(_cost(decision.max_accesses))
            schedule.spend(decision.max_accesses, costs[-1])
            schedule.record(0, decision.max_accesses)
        schedule.elapse(0.1)
    assert len(costs) > 10
    assert sum(costs) <= 0.2 + 0.05 * 500
    if name == "all":
        assert sum(costs) >= 0.8 * 0.05 * 500


@PROFILING
def test_same_seed_same_decisions(name: Any) -> None:
    def run(seed: Any) -> Any:
        schedule = make(name, seed, share=0.1)
        rng, decisions = random.Random(9), []
        for index in range(300):
            phase = rng.randrange(3)
            decision = schedule.decide(index, phase)
            decisions.append(decision)
            if decision.profile:
                schedule.spend(decision.max_accesses, 0.02)
                schedule.record(phase, decision.max_accesses)
            schedule.elapse(0.1)
        return decisions

    assert run(1) == run(1)
    assert run(1) != run(2)


@ALL
def test_keeps_its_seam_and_its_name(name: Any) -> None:
    schedule = make(name)
    assert isinstance(schedule, Schedule)
    assert schedule.name == name
    with pytest.raises(ValueError, match="backwards"):
        schedule.elapse(-1.0)


@PROFILING
def test_a_fresh_session_with_the_defaults_soon_gets_its_first_burst(name: Any) -> None:
    schedule = make_schedule(name, random.Random(0))
    for index in range(60):
        if schedule.decide(index, 0).profile:
            return
    pytest.fail("no burst in the first 6 s")


def asked_lengths(schedule: Any, windows: int, phase: int = 0) -> list[int]:
    """What is asked for while one phase runs and bursts cost nothing."""
    asked = []
    for index in range(windows):
        decision = schedule.decide(index, phase)
        if decision.profile:
            asked.append(decision.max_accesses)
            schedule.spend(decision.max_accesses, 0.0)
            schedule.record(phase, decision.max_accesses)
    return asked


@PROFILING
def test_one_burst_in_eight_is_a_long_one_and_the_second_is_the_first(name: Any) -> None:
    asked = asked_lengths(make(name, **FREE), 4000)
    usual, long = SHAPE.usual_accesses, SHAPE.max_accesses
    assert asked[:11] == [usual, long, *[usual] * 7, long, usual]
    assert set(asked) == {usual, long}


def test_each_phase_gets_its_own_long_bursts_anew_when_it_has_drifted() -> None:
    schedule = make("phase-guided", **FREE)
    usual, long = SHAPE.usual_accesses, SHAPE.max_accesses
    assert asked_lengths(schedule, 400)[:2] == [usual, long]
    assert asked_lengths(schedule, 400, phase=1)[:2] == [usual, long]
    schedule.drift(1)
    assert asked_lengths(schedule, 400, phase=1)[:2] == [usual, long]


def test_a_long_burst_that_cannot_be_paid_for_stays_due() -> None:
    lengths = BurstLengths(SHAPE)
    usual, long = SHAPE.usual_accesses, SHAPE.max_accesses
    affordable = [long, long - 1, 0, 2000, long, long]
    assert [lengths.choose(n) for n in affordable] == [usual, usual, 0, 2000, long, usual]


@PROFILING
def test_a_short_budget_shortens_bursts(name: Any) -> None:
    schedule = make(name, share=0.0, allowance_seconds=0.05)
    for index in range(400):
        decision = schedule.decide(index, 0)
        if decision.profile:
            assert decision.max_accesses == pytest.approx(40_000, rel=0.01)
            return
    pytest.fail("never affordable")


@PROFILING
def test_moments_within_the_window_are_even(name: Any) -> None:
    schedule = make(name, **FREE, **({"max_gap": 1.0} if name == "phase-guided" else {}))
    delays = []
    for index in range(20_000):
        decision = schedule.decide(index, 0)
        if decision.profile:
            delays.append(decision.delay_cpu_seconds)
            schedule.record(0, SHAPE.min_accesses)
    counts, _ = np.histogram(delays, bins=10, range=(0, 0.1))
    expected = len(delays) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 9 + 5 * np.sqrt(18)


def test_unknown_names_are_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="phase-guided"):
        make_schedule("sometimes", random.Random(0))


def test_all_takes_every_window() -> None:
    schedule = make("all", **FREE)
    for index in range(100):
        assert schedule.decide(index, None).profile
        schedule.spend(1000, 100.0)
        schedule.record(0, 1000)


def test_periodic_takes_every_tenth_window() -> None:
    schedule = make("periodic", **FREE)
    assert [i for i in range(45) if schedule.decide(i, 0).profile] == [0, 10, 20, 30, 40]


def decide_in_turns(schedule: Any, windows: int, turn: int, phase: int = 0) -> list[int]:
    """Windows that get a burst where several end at once, and it is asked about the next only."""
    taken = []
    for index in range(0, windows, turn):
        for _ in range(turn - 1 if index else 0):
            schedule.skip(phase)
        if schedule.decide(index, phase).profile:
            taken.append(index)
            schedule.record(phase, SHAPE.max_accesses)
    return taken


def test_periodic_makes_up_for_windows_that_nobody_asked_about() -> None:
    taken = decide_in_turns(make("periodic", **FREE), 300, 3)
    assert taken[:4] == [0, 12, 21, 30]
    assert len(taken) == pytest.approx(300 / 10, abs=1)


@pytest.mark.parametrize("name", ["burst", "phase-guided"])
def test_windows_that_nobody_asked_about_count_for_the_next(name: Any) -> None:
    usual = len(decide_in_turns(make(name, **FREE), 20_000, 1))
    in_turns = len(decide_in_turns(make(name, **FREE), 20_000, 3))
    assert in_turns == pytest.approx(usual, rel=0.25)


def test_random_gaps_are_geometric() -> None:
    schedule = make("burst", **FREE)
    taken = [i for i in range(40_000) if schedule.decide(i, 0).profile]
    gaps = np.diff(taken)
    assert gaps.mean() == pytest.approx(10, rel=0.06)
    assert gaps.std() == pytest.approx(math.sqrt(10 * 9), rel=0.06)


# -- phase-guided --------------------------------------------------------------------------------


def run_one_phase(schedule: Any, windows: Any, phase: Any = 0, start: Any = 0) -> Any:
    """Indices of profiled windows while only this phase runs."""
    taken = []
    for index in range(start, start + windows):
        decision = schedule.decide(index, phase)
        if decision.profile:
            taken.append(index)
            schedule.spend(decision.max_accesses, 0.0)
            schedule.record(phase, decision.max_accesses)
    return taken


@pytest.mark.parametrize(("windows", "mean"), [(8, 2), (40, 4), (80, 8), (400, 16)])
def test_gaps_grow_with_the_age_of_the_phase_between_their_limits(windows: int, mean: int) -> None:
    gaps = []
    for seed in range(500):
        schedule = make("phase-guided", seed, first_gap=2, max_gap=16, resolution=10, **FREE)
        schedule._phases[0] = _Phase(BurstLengths(SHAPE), age=windows - 1, weight=1.0)
        (first, *later) = run_one_phase(schedule, 300)
        gaps.append(later[0] - first)
    # Whole windows: what is drawn evenly from half to one and a half of the mean, rounded.
    even = np.ceil(mean * np.linspace(0.5, 1.5, 10_001)[1:-1] - 0.5)
    assert set(gaps) <= set(even)
    assert np.mean(gaps) == pytest.approx(even.mean(), abs=5 * even.std() / math.sqrt(len(gaps)))


def test_what_comes_late_makes_the_next_burst_come_sooner() -> None:
    """A burst is had, and analysed, some windows after it was due: gaps stay as meant."""
    schedule = make("phase-guided", 0, first_gap=10, max_gap=10, **FREE)
    taken, waiting, index = [], None, 0
    while index < 3000:
        if waiting is None:
            decision = schedule.decide(index, 0)
            if decision.profile:
                schedule.spend(decision.max_accesses, 0.0)
                taken.append(index)
                waiting = index + 3
        else:
            schedule.skip(0)
            if index == waiting:
                schedule.record(0, 200_000)
                waiting = None
        index += 1
    assert np.diff(taken).mean() == pytest.approx(10, rel=0.05)


def test_a_phase_that_waited_for_long_has_no_more_bursts_in_a_row_than_others() -> None:
    schedule = make("phase-guided", 0, first_gap=6, max_gap=6, **FREE)
    for _ in range(100):
        schedule.skip(0)
    taken = run_one_phase(schedule, 100)
    assert len(taken) < 20


def test_how_many_windows_are_left_is_known_of_phases_with_a_burst() -> None:
    schedule = make("phase-guided", 0, first_gap=6, max_gap=6, **FREE)
    assert schedule.windows_left(0) == schedule.windows_left(None) == math.inf
    assert run_one_phase(schedule, 1) == [0]
    left = schedule.windows_left(0)
    assert 2 < left < 10
    schedule.skip(0)
    assert schedule.windows_left(0) == pytest.approx(left - 1)
    assert make("burst", **FREE).windows_left(0) == math.inf


def test_a_phase_is_seen_as_often_in_each_octave_of_its_age() -> None:
    """However long it lasts: resolution * log(2) bursts, once there are gaps of several windows."""
    taken = np.array(
        [
            window
            for seed in range(40)
            for window in run_one_phase(
                make("phase-guided", seed, resolution=16, max_gap=1e9, **FREE), 4096
            )
        ]
    )
    octaves = [np.sum((taken >= 1 << k) & (taken < 2 << k)) / 40 for k in range(9, 12)]
    assert octaves == pytest.approx([16 * math.log(2)] * 3, rel=0.15)


def test_no_bursts_takes_none() -> None:
    schedule = make("none", **FREE)
    assert not any(schedule.decide(index, 0).profile for index in range(100))


def test_gaps_are_counted_in_windows_of_the_phase() -> None:
    """A phase that is rare in time is profiled after as many windows of its own."""
    alone = run_one_phase(make("phase-guided", 3, **FREE), 100)
    schedule = make("phase-guided", 3, **FREE)
    mixed, own = [], 0
    schedule.spend(1000, 0.0)
    schedule.record(1, 1000)  # the other phase is known and waits long
    schedule._phases[1].windows_left = 1e9
    schedule._rng.seed(3)
    for index in range(1000):
        phase = 0 if index % 10 == 0 else 1
        if schedule.decide(index, phase).profile:
            mixed.append(own)
            schedule.spend(1000, 0.0)
            schedule.record(0, 1000)
        own += phase == 0
    assert mixed == alone


def test_new_phases_are_profiled_at_once_and_drifted_ones_again() -> None:
    schedule = make("phase-guided", **FREE)
    assert schedule.decide(0, None).reason == "no-prediction"
    for index, phase in enumerate((0, 1, 2), 1):
        decision = schedule.decide(index, phase)
        assert (decision.profile, decision.reason) == (True, "new-phase")
        schedule.spend(1000, 0.0)
        schedule.record(phase, 1000)
    run_one_phase(schedule, 200, start=10)
    waiting = schedule.decide(300, 0)
    schedule.drift(0)
    schedule.drift(77)  # unknown: nothing to do
    again = schedule.decide(301, 0)
    assert waiting.reason in {"not-due", "due"}
    assert (again.profile, again.reason) == (True, "drift")
    schedule.spend(1000, 0.0)
    schedule.record(0, 1000)
    assert schedule._phases[0].age == 1


def test_a_phase_that_works_on_other_data_is_due_at_once() -> None:
    schedule = make("phase-guided", **FREE)
    schedule.hasten(None)
    schedule.hasten(0)  # not known yet: nothing to do
    run_one_phase(schedule, 200)
    while schedule.windows_left(0) <= 1:
        run_one_phase(schedule, 1, start=300)
    schedule.hasten(0)
    decision = schedule.decide(400, 0)
    assert (decision.profile, decision.reason) == (True, "other-pace")
    assert decision.delay_cpu_seconds == 0
    schedule.spend(1000, 0.0)
    schedule.record(0, 1000)
    assert schedule.windows_left(0) > 0
    assert schedule.decide(401, 0).reason != "other-pace"


def test_a_phase_known_from_before_is_checked_soon_and_seen_rarely() -> None:
    def bursts(known: bool) -> list[int]:
        schedule = make("phase-guided", **FREE)
        if known:
            schedule.know(0, 100, 12)
        assert schedule.is_new(0) != known
        return list(run_one_phase(schedule, 600))

    fresh, known = bursts(False), bursts(True)
    assert fresh[0] == 0
    assert 0 < known[0] < 60
    assert 2 <= len(known) < len(fresh) / 3


def test_a_phase_stays_due_until_it_was_profiled() -> None:
    schedule = make("phase-guided", share=0.01, allowance_seconds=0.0)
    reasons = []
    for index in range(400):
        reasons.append(schedule.decide(index, 0).reason)
        if reasons[-1] == "new-phase":
            break
        schedule.elapse(0.1)
    # The shortest burst costs 11 ms, which takes 11 windows at 1 ms each.
    assert reasons == ["budget"] * 11 + ["new-phase"]


def test_a_burst_that_saw_nothing_costs_but_does_not_count() -> None:
    schedule = make("phase-guided", share=0.5, allowance_seconds=1.0)
    assert schedule.decide(0, 0).profile
    schedule.spend(0, 0.25)
    schedule.record(0, 0)
    assert schedule.balance_seconds == 0.75
    reasons = [schedule.decide(index, 0).reason for index in range(1, 60)]
    assert reasons[0] == "not-due" or reasons[1] == "new-phase"
    assert "new-phase" in reasons
    assert "due" not in reasons


def test_short_bursts_count_as_parts_and_are_soon_followed_by_others() -> None:
    """A server's bursts, a half of the shortest worth a hold; and tiny ones, for a quarter."""
    taken: dict[int, int] = {}
    parts = {10: 0.25, 500: 0.5, 1000: 1.0}
    for accesses, part in parts.items():
        schedule = make("phase-guided", first_gap=20, max_gap=20, **FREE)
        count = 0
        for index in range(4000):
            if schedule.decide(index, 0).profile:
                schedule.record(0, accesses)
                count += 1
        assert schedule._phases[0].seen.bursts == pytest.approx(count * part)
        taken[accesses] = count
    assert taken[1000] == pytest.approx(4000 / 20.5, rel=0.25)
    assert taken[500] == pytest.approx(4000 / 10.5, rel=0.25)
    assert taken[10] == pytest.approx(4000 / 5.5, rel=0.25)


def _cost(accesses: int) -> float:
    return 0.01 + 1e-6 * accesses


@pytest.mark.parametrize("rare", [0.2, 0.05])
def test_a_phase_without_a_burst_is_first_in_line(rare: Any) -> None:
    """Another, always due, could eat every token before the rare one comes along."""
    for seed in range(10):
        schedule = make(
            "phase-guided", seed, share=0.02, allowance_seconds=0.0, first_gap=0.01, max_gap=0.01
        )
        rng = random.Random(seed)
        for index in range(1000):  # the common phase alone
            if schedule.decide(index, 0).profile:
                schedule.spend(SHAPE.min_accesses, _cost(SHAPE.min_accesses))
                schedule.record(0, SHAPE.min_accesses)
            schedule.elapse(0.1)
        served = appearances = 0
        for index in range(1000, 2000):
            phase = 1 if rng.random() < rare else 0
            appearances += phase == 1
            decision = schedule.decide(index, phase)
            if decision.profile:
                schedule.spend(decision.max_accesses, _cost(decision.max_accesses))
                schedule.record(phase, decision.max_accesses)
                if phase == 1:
                    served = appearances
                    break
            schedule.elapse(0.1)
        # One cheapest burst takes 5.5 windows to earn. What is missing at its first windows
        # is not spent by the other phase before the next ones.
        assert 1 <= served <= 1 + math.ceil(5.5)


def test_known_phases_leave_enough_for_the_first_bursts_of_new_ones() -> None:
    cost = CostModel(SHAPE).predict(SHAPE.min_accesses)
    schedule = make("phase-guided", share=0.0, allowance_seconds=5.5 * cost, max_gap=1.0)
    schedule.record(0, SHAPE.min_accesses)
    taken = 0
    for index in range(100):
        if schedule.decide(index, 0).profile:
            schedule.spend(SHAPE.min_accesses, cost)
            schedule.record(0, SHAPE.min_accesses)
            taken += 1
    assert taken == 2
    for phase in (1, 2, 3):
        decision = schedule.decide(100, phase)
        assert (decision.profile, decision.delay_cpu_seconds) == (True, 0.0)
        assert schedule.is_new(phase)
        schedule.spend(SHAPE.min_accesses, cost)
        schedule.record(phase, SHAPE.min_accesses)
        assert not schedule.is_new(phase)
    assert schedule.decide(101, 4).reason == "budget"


def test_another_program_begins_with_what_is_left_of_the_budget() -> None:
    schedule = make("phase-guided", share=0.0, allowance_seconds=1.0)
    schedule.spend(1000, 0.25)
    schedule.record(0, SHAPE.min_accesses)
    schedule.restart()
    assert schedule.is_new(0)
    assert schedule.balance_seconds == 0.75


def test_a_phase_that_never_returns_does_not_stop_the_others() -> None:
    schedule = make("phase-guided", share=0.02, allowance_seconds=0.0)
    assert schedule.decide(0, 9).reason == "budget"
    schedule.elapse(0.1)
    for index in range(1, 100):
        decision = schedule.decide(index, 0)
        if decision.profile:
            return
        schedule.elapse(0.1)
    pytest.fail("held up for good by a phase that is gone")


def test_weight_times_uncertainty_goes_first() -> None:
    """Both due, budget for one shortest burst: the light one leaves it to the heavy one."""

    def reasons(bursts_heavy: Any) -> Any:
        kept = 3 * CostModel(SHAPE).predict(SHAPE.min_accesses)  # for new phases
        schedule = make("phase-guided", share=0.0, allowance_seconds=0.012 + kept)
        for index in range(100):
            phase = 0 if index % 10 else 1  # 90 windows and 10
            state = schedule._phases.get(phase)
            if state is not None:
                state.windows_left = 1e9
            else:
                schedule.spend(1000, 0.0)
                schedule.record(phase, 1000)
                schedule._phases[phase].windows_left = 1e9
            schedule.decide(index, phase)
        heavy, light = schedule._phases[0], schedule._phases[1]
        heavy.seen.bursts, light.seen.bursts = bursts_heavy, 1
        heavy.windows_left = light.windows_left = 0.0
        schedule._costs = CostModel(SHAPE)
        return schedule.decide(100, 1).reason

    assert reasons(bursts_heavy=1) == "budget"  # 90 > 10
    assert reasons(bursts_heavy=49) == "budget"  # 90/7 > 11
    assert reasons(bursts_heavy=100) == "due"  # 90/10 < 11


def test_merge_carries_over_bursts_and_weight() -> None:
    schedule = make("phase-guided", **FREE)
    run_one_phase(schedule, 300, phase=0)
    known = schedule._phases[0].seen.bursts
    run_one_phase(schedule, 1, phase=1, start=300)
    schedule.merge(0, 1)
    schedule.merge(0, 1)  # already gone
    state = schedule._phases[1]
    assert 0 not in schedule._phases
    assert state.seen.bursts == known + 1
    assert state.age == 301
    schedule.merge(1, 5)  # into one not met yet
    assert schedule._phases[5].seen.bursts == known + 1


# -- budget and costs ----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 1)), max_size=40),
    st.floats(0, 1),
)
def test_cost_model_is_a_line_that_affordable_inverts(bursts: Any, seconds: Any) -> None:
    model = CostModel(SHAPE)
    for accesses, cost in bursts:
        model.learn(accesses, cost)
    predictions = [model.predict(n) for n in (0, 1000, 50_000, 100_000)]
    assert predictions[0] >= -1e-12
    assert predictions == sorted(predictions)
    accesses = model.affordable(seconds)
    if accesses == 0:
        assert model.predict(SHAPE.min_accesses) > seconds
    else:
        assert SHAPE.min_accesses <= accesses <= SHAPE.max_accesses
        assert model.predict(accesses) <= seconds + 1e-9
        if accesses < SHAPE.max_accesses:
            assert model.predict(accesses + 2) > seconds


def test_cost_model_learns_what_bursts_really_cost() -> None:
    model = CostModel(SHAPE)
    rng = random.Random(0)
    for _ in range(200):
        accesses = rng.randrange(1000, 100_000)
        model.learn(accesses, (0.03 + 4e-6 * accesses) * rng.uniform(0.9, 1.1))
    assert model.predict(80_000) == pytest.approx(0.03 + 4e-6 * 80_000, rel=0.2)


def test_cost_model_against_least_squares() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(1000, 100_000, 12), rng.uniform(0.01, 0.2, 12) + 0.1
    model = CostModel(SHAPE)
    for accesses, cost in zip(x.tolist(), y.tolist(), strict=True):
        model.learn(accesses, cost)
    # The prior: an empty and a full burst as expected, which do not age.
    weight = np.concatenate([[1, 1], (15 / 16) ** np.arange(11, -1, -1)])
    xs = np.concatenate([[0, SHAPE.max_accesses], x])
    ys = np.concatenate([[0.01, 0.01 + 0.1], y])
    slope, stop = np.polyfit(xs, ys, 1, w=np.sqrt(weight))
    if slope > 0 and stop > 0:
        assert model.predict(0) == pytest.approx(stop)
        assert model.predict(70_000) == pytest.approx(stop + slope * 70_000)
    else:
        pytest.fail("the data do not exercise the fit")


def test_savings_are_bounded() -> None:
    bucket = TokenBucket(share=0.1, allowance_seconds=0.5)
    for _ in range(1000):
        bucket.elapse(1.0, most_needed_seconds=0.2)
    assert bucket.balance_seconds == 0.5
    bucket.spend(2.0)
    assert bucket.balance_seconds == -1.5
    bucket.elapse(1.0, most_needed_seconds=0.2)
    assert bucket.balance_seconds == pytest.approx(-1.4)


def test_refuses_senseless_options() -> None:
    senseless: list[dict[str, Any]] = [
        {"first_gap": 0},
        {"first_gap": 9, "max_gap": 3},
        {"resolution": 0},
    ]
    for options in senseless:
        with pytest.raises(ValueError, match="gaps ascend"):
            PhaseGuided(random.Random(0), **options)
    with pytest.raises(ValueError, match="share"):
        make("all", share=-1.0)
    with pytest.raises(ValueError, match="min_accesses"):
        BurstShape(min_accesses=10, usual_accesses=5)
    with pytest.raises(ValueError, match="negative"):
        BurstShape(stop_seconds=-1)
