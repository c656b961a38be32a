"""The benchmarks of bursts count, summarise and judge what they were given."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from rowless import rowless_burst
from tracees import is_gone, observed, running
from waiting import wait_for

from memsampd.sampler.process.status import list_threads
from memsampd.sampler.records import Burst, BurstCost, BurstEnd
from programs.equality import Comparison
from programs.holding import others_held
from replica_equality import Equality, Stretches
from replica_speed import LENGTHS, Length, Speed, Taken, missed_goals, rows, summarise


def burst(accesses: int, **changes: object) -> Burst:
    return rowless_burst(accesses=accesses, **changes)


def spent(hold_seconds: float, own_seconds: float = 0.0) -> BurstCost:
    return BurstCost(
        stop_seconds=hold_seconds,
        longest_stop_seconds=hold_seconds,
        replica_cpu_seconds=own_seconds / 2,
        tracer_cpu_seconds=own_seconds / 2,
    )


# -- observing -----------------------------------------------------------------------------------


def test_who_waits_for_more_than_came_of_an_observation_is_told_so() -> None:
    with running("true") as process:
        wait_for(lambda: is_gone(process.pid))
        with (
            pytest.raises(RuntimeError, match="ended before that was enough"),
            observed(process.pid) as tally,
        ):
            tally.wait(lambda: tally.attaches > 0)


def test_what_ended_an_observation_is_told_rather_than_that_it_ended() -> None:
    with (
        running("sleep", "1000000") as process,
        pytest.raises(TypeError, match="unknown"),
        observed(process.pid, unknown=1) as tally,
    ):
        tally.wait(lambda: tally.attaches > 0)


# -- equality ------------------------------------------------------------------------------------


def stretches(compared: int, equal: int, is_plausible: bool = False) -> Stretches:
    found = Stretches()
    found.add(burst(10, calls_compared=compared, calls_equal=equal, is_plausible=is_plausible))
    return found


def test_stretches_add_up() -> None:
    found = stretches(3, 2)
    found.add(burst(5, calls_compared=1, calls_equal=0, end=BurstEnd.DIFFERED))
    assert (found.bursts, found.accesses, found.differed) == (2, 15, 1)
    assert found.equal_share == 0.5
    assert found.text() == "2/4 50%"
    assert Stretches().equal_share is None


@pytest.mark.parametrize(
    ("found", "is_bad"),
    [
        (stretches(20, 19), False),
        (stretches(20, 18), True),
        (stretches(19, 1), False),  # too few to judge
        (stretches(20, 1, is_plausible=True), False),  # a plausible future, not the one that came
        (Stretches(), False),
    ],
)
def test_stretches_are_judged_where_no_other_thread_ran(found: Stretches, is_bad: bool) -> None:
    assert found.is_bad() is is_bad


def test_a_program_is_wrong_for_a_reason() -> None:
    pairs = Comparison(pairs=1, instructions=100, accesses=50, accesses_in_code=50)
    assert Equality(pairs, Stretches(), None).problem(100) == ""
    assert Equality(pairs, Stretches(), None).problem(101).startswith("TOO FEW")
    assert Equality(pairs, stretches(20, 1), None).problem(100) == "STRETCHES DIFFER"
    held = Equality(pairs, stretches(20, 1, is_plausible=True), stretches(20, 1))
    assert held.problem(100) == "STRETCHES DIFFER"
    elsewhere = dataclasses.replace(pairs, accesses_in_code=0)
    assert Equality(elsewhere, Stretches(), None).problem(100) == "NOT IN ITS CODE"


TWO_THREADS = """
import threading, time
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
print("ready", flush=True)
time.sleep(1e6)
"""


def _state(pid: int, tid: int) -> tuple[str, int]:
    """State of a thread and who traces it."""
    lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
    told = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return told["State"][0], int(told["TracerPid"])


def test_other_threads_are_held_and_let_go() -> None:
    with running(sys.executable, "-c", TWO_THREADS) as program:
        assert program.stdout is not None
        program.stdout.readline()
        threads = list_threads(program.pid)
        for left_alone in threads:
            others = [tid for tid in threads if tid != left_alone]
            with others_held(program.pid, left_alone, asleep=True) as held:
                assert held == len(others)
                assert {_state(program.pid, tid)[0] for tid in others} == {"t"}
                assert _state(program.pid, left_alone)[1] == 0
            assert {_state(program.pid, tid)[1] for tid in threads} == {0}


# -- speed ---------------------------------------------------------------------------------------


def test_a_length_is_the_median_of_its_bursts() -> None:
    taken = [
        Taken(burst(accesses, cost=spent(hold, 4e-3), pages_missed=missed), 1e-3, 1e-3)
        for accesses, hold, missed in (
            (200_000, 0.001, 1),
            (190_000, 0.004, 2),
            (100_000, 0.002, 9),
        )
    ]
    length = summarise(taken, 200_000)
    assert (length.bursts, length.accesses, length.pages_missed) == (3, 190_000, 2)
    assert length.full_share == pytest.approx(2 / 3)
    assert length.accesses_per_second == pytest.approx(190e6)
    assert (length.hold_seconds, length.longest_hold_seconds) == (0.002, 0.004)
    assert length.own_seconds_per_access == pytest.approx(4e-3 / 190_000)
    assert length.counting_seconds_per_access == pytest.approx(1e-3 / 190_000)
    assert length.ends == {"full": 3}


def test_no_burst_is_nothing_known() -> None:
    length = summarise([], 200_000)
    assert length.bursts == 0
    known = {name for name, value in dataclasses.asdict(length).items() if value is not None}
    assert known == {"bursts", "ends"}
    lines = rows("x", Speed(None, 0, {200_000: length}))
    assert len(lines) == 1
    assert "none" in lines[0]


def speed(**changes: float) -> dict[str, Speed]:
    good = Length(9, 1.0, 1e6, 400e6, 0.004, 0.005, 10, 1, 5e-3, 5e-9, 3e-9)
    length = dataclasses.replace(good, **changes)  # type: ignore[arg-type]
    return {"x": Speed(0.5, 1, dict.fromkeys(LENGTHS, length))}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"accesses_per_second": 200e6}, ["200.0 M accesses/s < 300"]),
        ({"counting_seconds_per_access": 5e-9}, ["counting 5.0 ns > 4"]),
        ({"longest_hold_seconds": 0.0061}, ["x held for 6.1 ms > 6.0"]),
        ({"bursts": 0}, [f"x: no burst of {length:,}" for length in LENGTHS]),
    ],
)
def test_goals_are_missed_by_name(changes: dict[str, float], told: list[str]) -> None:
    assert missed_goals(speed(**changes), 0.005) == told


def test_no_rate_at_all_is_a_miss() -> None:
    assert len(missed_goals({}, 0.005)) == 1
