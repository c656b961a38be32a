"""Own CPU time by part: each part without those that it calls."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from session_cost import PARTS, Account, Accounts, Costs, rows, since


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_part_is_charged_without_those_that_it_calls() -> None:
    accounts = Accounts()
    inner = accounts._timed("inner", lambda: work(0.02))

    def both() -> None:
        work(0.01)
        inner()
        inner()

    whole = accounts._timed("outer", both)
    before = time.thread_time()
    whole()
    passed = time.thread_time() - before
    parts = accounts.parts
    assert (parts["outer"].calls, parts["inner"].calls) == (1, 2)
    assert parts["inner"].seconds >= 0.04
    assert 0.01 <= parts["outer"].seconds <= passed - parts["inner"].seconds


def test_what_a_thread_of_the_core_took_is_charged_and_so_are_failures() -> None:
    accounts = Accounts()
    accounts._timed("burst", lambda: SimpleNamespace(tracer_cpu_seconds=3.0))()
    assert accounts.parts["burst"].seconds >= 3.0
    with pytest.raises(ZeroDivisionError):
        accounts._timed("failing", lambda: 1 / 0)()
    assert accounts.parts["failing"].calls == 1


def test_the_table_adds_up() -> None:
    parts = {name: Account(10, 0.05) for name in PARTS}
    costs = Costs(0.2, 20.0, 2.0, 0.1, 7, 40, 0.25, parts)
    lines = rows(costs)
    assert lines[1].split() == ["start", "200.0"]
    assert lines[-2].split() == ["other", f"{1e3 * (2.0 - 0.2 - 0.1 - 0.05 * len(PARTS)):.1f}"]
    assert "10.0 % of the target's" in lines[-1]
    assert "7 bursts, 40 turns" in lines[-1]


def test_what_was_before_is_taken_off() -> None:
    before = Costs(0.0, 5.0, 0.5, 0.1, 2, 10, 0.5, {name: Account(1, 0.01) for name in PARTS})
    costs = Costs(0.2, 20.0, 2.0, 0.3, 7, 40, 0.25, {name: Account(10, 0.05) for name in PARTS})
    later = since(before, costs)
    assert (later.start, later.target, later.total, later.bursts) == (0.0, 15.0, 1.5, 5)
    assert (later.turns, later.without_curve) == (30, 0.25)
    assert later.replica == pytest.approx(0.2)
    assert all(each.calls == 9 for each in later.parts.values())
    assert later.a_turn == pytest.approx(0.04 * sum(map(_is_turn, PARTS)) / 30)


def _is_turn(part: str) -> bool:
    return part.startswith("turns")
