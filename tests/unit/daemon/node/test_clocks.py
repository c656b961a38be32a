"""Clocks that jump: the wall clock is only told, and nothing is owed for time that nobody saw."""

from __future__ import annotations

import ast
import os
import random
from pathlib import Path

import pytest

import memsampd
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.node.budget import Candidate, NodeBudget, Rotation
from memsampd.daemon.node.discovery import ProcessReader

DAY = 86_400.0
# What decides about targets; what is kept from one day to the next has to know the date.
_DECIDING = ("sampler", "phases", "models", "estimate", "daemon")
_KEEPS_DATES = "store"
_WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}


def wall_clock_uses(source: str) -> list[str]:
    """Names that the wall clock is told under; "" for each use that is no such thing."""
    tree = ast.parse(source)
    called: dict[int, str] = {}  # the function of each call whose value has a name
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=ast.Call(func=function)):
                called[id(function)] = name
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=function)):
                called[id(function)] = name
    return [
        called.get(id(node), "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in _WALL_CLOCKS
    ]


def test_the_wall_clock_is_told_and_never_reckoned_with() -> None:
    root = Path(memsampd.__file__).parent
    paths = [path for part in _DECIDING for path in (root / part).rglob("*.py")]
    uses = [
        (path.name, use)
        for path in paths
        if _KEEPS_DATES not in path.relative_to(root).parts
        for use in wall_clock_uses(path.read_text())
    ]
    assert uses  # it is told somewhere
    assert [each for each in uses if not each[1].endswith("unix_seconds")] == []


@pytest.mark.parametrize(
    "source",
    [
        "end = time.time() + 5",
        "datetime.datetime.now()",
        "f(limit=time.time() - 1)",
        "f(time.time)",
    ],
)
def test_a_use_that_reckons_is_seen(source: str) -> None:
    assert wall_clock_uses(source) == [""]


@pytest.mark.parametrize("leap", [0.0, 3600.0, 365 * DAY])
def test_no_budget_is_saved_up_in_a_leap(leap: float) -> None:
    budget = NodeBudget(0.02, 0.02, 0.0)
    spent = 0.0
    now = 0.0
    for second in range(600):
        now += 1.0 + (leap if second == 300 else 0.0)
        spent += 0.5 if budget.allows_bursts else 0.0
        budget.tell(now, spent, spent, 0.0)
    assert spent <= 0.02 * (600 + 120 + 60) + 0.5
    assert 1.0 <= budget.pace <= 4.0


def test_turns_go_on_after_a_leap() -> None:
    rotation, rng, now = Rotation(2, 10.0), random.Random(3), 0.0
    costs = dict.fromkeys("abcde", 0.0)
    turns = dict.fromkeys("abcde", 0)
    for _ in range(2000):
        now += rng.choice([0.0, 1.0, 1.0, 1.0, 7200.0])
        candidates = {name: Candidate(0.5, 1.0, 0, costs[name], name) for name in costs}
        chosen = rotation.turn(now, candidates)
        assert len(chosen) == 2
        for name in chosen:
            costs[name] += 0.01
            turns[name] += 1
    assert min(turns.values()) > 0.5 * max(turns.values())


def test_a_ledger_grants_nothing_for_time_in_which_the_target_did_not_run() -> None:
    ledger = Ledger(0.01, 0.05, 0.0)
    ledger.tell_time(20.0, 1.0, 1.1)
    assert not ledger.allows_burst()
    ledger.tell_time(20.0 + DAY, 1.0, 1.1)
    assert not ledger.allows_burst()
    assert ledger.idle_seconds == DAY


def test_scans_at_the_same_moment_and_after_a_leap() -> None:
    now = [100.0]
    reader = ProcessReader(list_pids=lambda: [os.getpid()], now=lambda: now[0])
    shares = []
    for leap in (0.0, 0.0, DAY):
        now[0] += leap
        (facts,) = reader.scan()
        shares.append(facts.cpu_share)
    assert shares[:2] == [None, None]
    assert shares[2] is not None
    assert 0 <= shares[2] < 0.01
