"""How long the next turn may wait."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.pace import Pause, next_pause
from memsampd.daemon.pipeline import Pipeline
from memsampd.exporters.documents import IDLE_SECONDS
from memsampd.sampler.records import BurstCost

RING_SECONDS = 2.0


def pause(
    seconds: float,
    busy_share: float = 1.0,
    config: SessionConfig | None = None,
    turn_seconds: float = 0.0,
    **told: Any,
) -> Pause:
    """The pause of a target that was attached so long ago, and has used this part of a CPU."""
    ledger = Ledger(0.01, 0.05, 0.0)
    for at in range(1, round(2 * seconds) + 1):
        ledger.tell_time(at / 2, busy_share * at / 2, at * turn_seconds)
    usual = {"hurries": False, "awaits_burst": False, "windows_left": math.inf}
    pipeline = SimpleNamespace(
        parts=SimpleNamespace(ledger=ledger),
        **{name: told.pop(name, usual[name]) for name in usual},
    )
    how = {"ring_seconds": RING_SECONDS, "waits_for_cpu": False, "is_watching": False} | told
    return next_pause(cast("Pipeline", pipeline), config or SessionConfig(), **how)


def idle_pause(idle_seconds: float, **told: Any) -> Pause:
    """The pause of a target that was busy for a while, and has slept since."""
    ledger = Ledger(0.01, 0.05, 0.0)
    for at in range(1, 31):
        ledger.tell_time(at / 2, at / 2, 0.0)
    ledger.tell_time(15 + idle_seconds, 15.0, 0.0)
    pipeline = SimpleNamespace(parts=SimpleNamespace(ledger=ledger), hurries=False)
    how = {"ring_seconds": RING_SECONDS, "waits_for_cpu": False, "is_watching": False} | told
    return next_pause(cast("Pipeline", pipeline), SessionConfig(), **how)


def test_turns_are_calmer_after_the_start() -> None:
    assert pause(5).seconds == 0.25
    assert pause(15).seconds == 0.5


def test_turns_that_take_much_are_rarer() -> None:
    # 30 % of 5 % of a CPU.
    assert pause(60, turn_seconds=0.012).seconds == pytest.approx(0.8, rel=0.05)
    assert pause(60, turn_seconds=0.024).seconds == pytest.approx(1.6, rel=0.05)
    assert pause(9, turn_seconds=0.024) == pause(9)  # phases are new, and many of them short
    assert pause(60, busy_share=0.5, turn_seconds=0.012).seconds == pytest.approx(1.6, rel=0.05)
    assert pause(60, busy_share=0.05, turn_seconds=0.024).seconds == 5.0


def test_a_turn_comes_before_a_ring_is_full() -> None:
    """Also if the target begins to use all of a CPU right after a look."""
    for ring_seconds in (RING_SECONDS, 0.9, 0.37, 0.1):
        rare = pause(60, turn_seconds=0.024, ring_seconds=ring_seconds)
        assert rare.ran_seconds > 0
        assert rare.ran_seconds + rare.look_seconds == pytest.approx(0.6 * ring_seconds)
        for often in (
            pause(15, busy_share=0.0, ring_seconds=ring_seconds),
            pause(900, busy_share=0.0, ring_seconds=ring_seconds),
            pause(5, hurries=True, ring_seconds=ring_seconds),
            pause(15, awaits_burst=True, ring_seconds=ring_seconds),
        ):
            assert often.without_looks_seconds < ring_seconds
    assert pause(15).ran_seconds == math.inf  # it is over before


def test_who_does_not_look_in_between_waits_as_long_as_is_safe() -> None:
    rare = pause(60, turn_seconds=0.024)  # of a daemon, where more frequent turns cost more still
    assert rare.without_looks_seconds == pytest.approx(0.6 * RING_SECONDS)
    assert pause(15).without_looks_seconds == 0.5
    assert pause(5, hurries=True).without_looks_seconds < 0.1
    idle = pause(15, busy_share=0.0)
    assert idle.without_looks_seconds == pytest.approx(idle.look_seconds)


def test_what_was_watched_is_followed_soon() -> None:
    assert pause(15, is_watching=True).seconds == 0.25
    assert pause(5, is_watching=True).seconds == 0.25


def test_watches_follow_each_other_at_once_where_nothing_else_tells_of_large_caches() -> None:
    walks = SessionConfig(accesses="watchpoints")
    assert pause(15, config=walks, is_watching=True).seconds == 0.1
    assert pause(15, config=walks, is_watching=True, waits_for_cpu=True).seconds == 0.25
    assert pause(15, config=walks).seconds == 0.5  # there is no line to be watched


@pytest.mark.parametrize("seconds", [5, 15])
def test_bursts_are_awaited_whenever_they_come(seconds: float) -> None:
    assert pause(seconds, awaits_burst=True).seconds < 0.2
    assert pause(seconds, windows_left=2.0).seconds == pytest.approx(0.2)  # of 0.1 s each
    assert pause(seconds, windows_left=2.0, turn_seconds=0.02).seconds == pytest.approx(0.2)
    assert pause(seconds, windows_left=1000.0) == pause(seconds)


def test_a_first_burst_is_hurried_while_the_target_runs() -> None:
    hurried = pause(5, hurries=True)
    assert hurried.look_seconds < 0.1
    assert 0 < hurried.ran_seconds < 1e-6


def test_who_uses_little_has_one_window_a_turn() -> None:
    assert pause(9, busy_share=0.3).seconds == pytest.approx(0.1 / 0.3, rel=0.1)
    assert pause(15, busy_share=0.05).seconds == 0.5


@pytest.mark.parametrize("busy_share", [0.3, 1.0])
def test_what_bursts_take_is_no_part_of_turns(busy_share: float) -> None:
    """It is told with the turn after which they are: one in two has a burst here."""
    alone, with_bursts = Ledger(0.01, 0.05, 0.0), Ledger(0.01, 0.05, 0.0)
    for at in range(1, 121):
        alone.tell_time(at / 2, busy_share * at / 2, at * 0.002)
        bursts = (at + 1) // 2
        with_bursts.tell_time(at / 2, busy_share * at / 2, at * 0.002 + bursts * 0.03)
        if at % 2:
            with_bursts.add_burst(BurstCost(tracer_cpu_seconds=0.03), is_taken=True)
    assert alone.turn_seconds == pytest.approx(0.002)
    assert with_bursts.turn_seconds == pytest.approx(0.002, abs=0.001)


def test_turns_while_the_target_sleeps_tell_nothing_of_others() -> None:
    ledger = Ledger(0.01, 0.05, 0.0)
    for at in range(1, 41):
        ledger.tell_time(at / 2, at / 2, at * 0.01)
    for at in range(41, 400):
        ledger.tell_time(at / 2, 20.0, 0.4 + (at - 40) * 0.001)
    assert ledger.turn_seconds == pytest.approx(0.01, rel=0.2)


def test_whether_a_target_is_idle_is_told_in_time() -> None:
    """That is said after two seconds; who is shown each turn is not left alone for ten."""
    resting = idle_pause(1.2)
    assert resting.seconds == pytest.approx(IDLE_SECONDS - 1.2, abs=0.1)
    assert idle_pause(2.0).seconds >= 5
    assert idle_pause(2.0, is_shown=True).seconds <= 2


def test_who_is_idle_has_a_turn_as_soon_as_it_has_run() -> None:
    idle = pause(15, busy_share=0.0)
    assert idle.seconds >= 1
    assert idle.look_seconds < 0.5  # it may begin at any moment
    assert 0 < idle.ran_seconds < 1e-6
    assert (
        idle.look_seconds
        < pause(30, busy_share=0.0).look_seconds
        < pause(90, busy_share=0.0).look_seconds
    )
    assert pause(900, busy_share=0.0).look_seconds <= 1.0
    assert pause(15, busy_share=0.0, hurries=True) == idle
