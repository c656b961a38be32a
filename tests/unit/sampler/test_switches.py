"""What samples cost at switches, and for which part of the time a target is sampled therefore."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracees import descriptors, running, sleeping

from memsampd import _core
from memsampd.sampler.perf import costs
from memsampd.sampler.perf.costs import SwitchCost, SwitchCostMeter, measure_switch_cost
from memsampd.sampler.perf.switches import LEAST_SHARE, SwitchCounter, planned_share, shortened
from memsampd.sampler.process.identity import program_mark

COST = SwitchCost(13e-6, 1e-6, 0.004)
PERIOD_SECONDS, ALLOWED = 0.002, 0.01
POWERS = [0.5**power for power in range(7)]


@pytest.mark.parametrize("period_seconds", [1e-4, 1e-3, 2e-3, 4e-3, 1e-2, 0.1])
def test_a_timer_that_is_due_after_the_tick_is_not_programmed(period_seconds: float) -> None:
    """What is left of both is even: as often the timer is sooner as the formula has it."""
    rng = random.Random(1)
    rounds = 20_000
    sooner = sum(
        rng.uniform(0, period_seconds) < rng.uniform(0, COST.tick_seconds) for _ in range(rounds)
    )
    simulated = 1e-6 + 12e-6 * sooner / rounds
    assert COST.sampled_seconds(period_seconds) == pytest.approx(simulated, abs=0.2e-6)


def taken(share: float, often: float) -> float:
    return share * often * COST.sampled_seconds(shortened(PERIOD_SECONDS, share))


@given(st.floats(0, 1e7))
def test_the_share_is_the_largest_that_is_allowed(often: float) -> None:
    allowed = [share for share in POWERS if taken(share, often) <= ALLOWED] or [LEAST_SHARE]
    assert planned_share(often, COST, PERIOD_SECONDS, ALLOWED) == max(allowed)


@given(st.floats(0, 1e7), st.sampled_from(POWERS))
def test_a_share_is_not_changed_for_little(often: float, present: float) -> None:
    share = planned_share(often, COST, PERIOD_SECONDS, ALLOWED, present)
    assert share in POWERS
    if share > present:
        assert taken(share, often) <= 0.7 * ALLOWED
    if share < present:
        assert taken(2 * share, often) > ALLOWED
    if share == present < 1 and taken(share, often) <= ALLOWED:
        assert taken(2 * share, often) > 0.7 * ALLOWED
    # What is planned once stays so.
    assert planned_share(often, COST, PERIOD_SECONDS, ALLOWED, share) == share


def test_who_computes_is_sampled_all_the_time() -> None:
    """Two loops on a CPU take turns of 3 ms; servers sleep after some requests."""
    assert planned_share(1 / 0.003, COST, PERIOD_SECONDS, ALLOWED) == 1
    assert planned_share(20_000, COST, PERIOD_SECONDS, ALLOWED) == 1 / 32


def test_where_switches_take_nothing_nothing_is_left_out() -> None:
    assert planned_share(1e6, SwitchCost(), PERIOD_SECONDS, ALLOWED) == 1


@pytest.mark.parametrize(
    ("period", "share", "expected"),
    [(0.002, 1, 0.002), (0.002, 1 / 4, 0.0005), (0.002, 1 / 64, 1e-4), (5e-5, 1 / 4, 5e-5)],
)
def test_samples_come_closer_as_far_as_is_sensible(
    period: float, share: float, expected: float
) -> None:
    assert shortened(period, share) == pytest.approx(expected)


def write_times(proc: Path, threads: dict[int, tuple[float, int]]) -> None:
    """Threads with CPU time in seconds, and how often they were switched to."""
    task = proc / "7" / "task"
    for gone in task.glob("*"):
        (gone / "schedstat").unlink()
        gone.rmdir()
    for tid, (seconds, times) in threads.items():
        (task / str(tid)).mkdir(parents=True)
        (task / str(tid) / "schedstat").write_text(f"{round(seconds * 1e9)} 0 {times}\n")


def test_switches_are_counted_from_the_first_look_on(tmp_path: Path) -> None:
    write_times(tmp_path, {7: (1000.0, 5_000_000), 8: (1000.0, 1_000_000)})
    counter = SwitchCounter(7, tmp_path)
    assert counter.look(50.0)
    assert counter.switches == 0
    assert counter.per_cpu_second == pytest.approx(3000)  # in its life so far
    write_times(tmp_path, {7: (1001.0, 5_010_000), 9: (0.5, 500)})  # 8 has ended, 9 was born
    assert not counter.look(50.5)
    assert counter.switches == 0
    assert counter.look(51.0)
    assert counter.switches == 10_500
    assert 3000 < counter.per_cpu_second < 7000  # the last second was 7000
    for second in range(60):
        write_times(tmp_path, {7: (1002.0 + second, 5_010_100 + 100 * second)})
        assert counter.look(52.0 + second)
    assert counter.switches == 10_500 + 60 * 100
    assert counter.per_cpu_second == pytest.approx(100, rel=0.2)  # what was is forgotten


def test_many_threads_are_asked_less_often(tmp_path: Path) -> None:
    write_times(tmp_path, {7 + each: (1.0, 10) for each in range(300)})
    counter = SwitchCounter(7, tmp_path)
    assert [counter.look(now) for now in (0.0, 1.0, 2.9, 3.1)] == [True, False, False, True]


def test_a_program_that_has_just_begun_tells_little(tmp_path: Path) -> None:
    write_times(tmp_path, {7: (0.001, 4)})
    counter = SwitchCounter(7, tmp_path)
    counter.look(0.0)
    assert counter.per_cpu_second == pytest.approx(40)


def test_one_that_is_gone_switches_no_more(tmp_path: Path) -> None:
    counter = SwitchCounter(7, tmp_path)
    assert counter.look(0.0)
    assert (counter.switches, counter.per_cpu_second) == (0, 0)


def test_measuring_leaves_nothing_behind() -> None:
    before, threads = (descriptors(), os.sched_getaffinity(0)), set(threading.enumerate())
    cost = measure_switch_cost()
    assert 0 <= cost.open_seconds <= cost.timer_seconds
    assert cost.tick_seconds > 0
    assert (descriptors(), os.sched_getaffinity(0)) == before
    assert set(threading.enumerate()) <= threads


@pytest.mark.usefixtures("perf_events")
def test_the_cost_is_the_difference_by_the_number_of_switches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round takes 1 ms alone, 1.06 with an event that is disabled, 1.6 with one that samples."""
    told = count()

    @contextmanager
    def partner() -> Iterator[Callable[[], int]]:
        yield lambda: (1_000_000, 1_060_000, 1_600_000)[next(told) % 3]

    monkeypatch.setattr(costs, "_partner", partner)
    cost = measure_switch_cost()
    assert cost.timer_seconds == pytest.approx(600_000e-9 / 60)
    assert cost.open_seconds == pytest.approx(60_000e-9 / 60)
    assert next(told) % 3 == 0


def test_the_most_that_was_measured_counts() -> None:
    """Who measures beside short sleeps measures too little."""
    measured = iter([1e-6, 12e-6, 3e-6])
    meter = SwitchCostMeter(lambda: SwitchCost(next(measured), 0.5e-6, 0.004))
    assert meter(5.0).timer_seconds == 1e-6
    assert meter(6.9).timer_seconds == 1e-6
    assert meter(7.0).timer_seconds == 12e-6
    assert meter(10.9).timer_seconds == 12e-6
    assert meter(11.0).timer_seconds == 12e-6
    assert next(measured, None) is None  # it was measured three times, twice as late each time
    assert meter(18.9).timer_seconds == 12e-6


def test_a_refusal_is_no_cost_of_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: int, period: int) -> int:
        raise PermissionError

    monkeypatch.setattr(_core, "perf_open_counter", refuse)
    assert measure_switch_cost() == SwitchCost()


def test_two_threads_pass_a_byte() -> None:
    (from_it, to_me), (from_me, to_it) = os.pipe(), os.pipe()
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(_core.pass_bytes(from_me, to_me, 50, False))
    )
    thread.start()
    assert _core.pass_bytes(from_it, to_it, 50, True) > 0
    thread.join()
    assert answers[0] > 0
    os.close(to_it)
    with pytest.raises(BrokenPipeError):  # nobody is there
        _core.pass_bytes(from_me, to_me, 1, False)
    for each in (from_it, to_me, from_me):
        os.close(each)


def test_a_process_that_has_exited_has_no_mark() -> None:
    """It is no exec, though all that the mark is made of is gone."""
    with sleeping() as process:
        assert program_mark(process.pid) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert program_mark(process.pid) is None


def test_the_mark_changes_at_an_exec() -> None:
    """One that goes on to sleep: it is looked at until it is another program."""
    code = "import os; print(1, flush=True); input(); os.execv('/bin/cat', ['cat'])"
    with running("python3", "-c", code) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = program_mark(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        marks = (program_mark(process.pid) for _ in count())
        next(mark for mark in marks if mark not in (None, before))  # in between it has none
    assert program_mark(process.pid) is None
