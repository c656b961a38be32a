"""Own CPU time by part: each part without those that it calls."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import session_cost
from session_cost import PARTS, Account, Accounts, Costs, rows, since
from targets import endless


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


# Tells the figures of the first program, and fails with all others.
ONCE = """#!/bin/sh
[ -e {told} ] && exit 1
: > {told}
for word; do case $word in --json=*) echo '{{"total": 1}}' > "${{word#--json=}}";; esac; done
"""


def test_a_program_that_failed_has_not_the_figures_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python, figures = tmp_path / "python", tmp_path / "figures.json"
    python.write_text(ONCE.format(told=tmp_path / "told"))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    args = argparse.Namespace(after=1.0, json=figures, small_pages=False)
    assert session_cost._each_later(args, 1.0) == 1
    first, *others = endless.WORK
    assert json.loads(figures.read_text()) == {first: {"total": 1}}
    assert capsys.readouterr().out.count("goal missed: of ") == len(others)


def _is_turn(part: str) -> bool:
    return part.startswith("turns")
