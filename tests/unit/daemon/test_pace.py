"""How long the next turn may wait."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.ledger import Ledger
from memsampd.daemon.pace import pause_seconds
from memsampd.daemon.pipeline import Pipeline


def pause(
    seconds: float,
    busy_share: float = 1.0,
    period_seconds: float = 0.002,
    config: SessionConfig | None = None,
    **told: Any,
) -> float:
    """The pause of a target that was attached so long ago, and has used this part of a CPU."""
    ledger = Ledger(0.01, 0.05, 0.0)
    for at in range(1, round(2 * seconds) + 1):
        ledger.tell_time(at / 2, busy_share * at / 2, 0.0)
    usual = {"hurries": False, "awaits_burst": False, "windows_left": math.inf}
    pipeline = SimpleNamespace(
        parts=SimpleNamespace(ledger=ledger),
        **{name: told.pop(name, usual[name]) for name in usual},
    )
    how = {"waits_for_cpu": False, "is_watching": False} | told
    config = config or SessionConfig()
    return pause_seconds(cast("Pipeline", pipeline), config, period_seconds, **how)


def test_turns_are_calmer_after_the_start() -> None:
    assert pause(5) == 0.25
    assert pause(15) == 0.5
    assert pause(15, period_seconds=0.0012) == pytest.approx(0.3)  # rings have no more room
    assert pause(15, period_seconds=0.0002) == 0.25


def test_what_was_watched_is_followed_soon() -> None:
    assert pause(15, is_watching=True) == 0.25
    assert pause(5, is_watching=True) == 0.25


def test_watches_follow_each_other_at_once_where_nothing_else_tells_of_large_caches() -> None:
    walks = SessionConfig(accesses="watchpoints")
    assert pause(15, config=walks, is_watching=True) == 0.1
    assert pause(15, config=walks, is_watching=True, waits_for_cpu=True) == 0.25
    assert pause(15, config=walks) == 0.5  # there is no line to be watched


@pytest.mark.parametrize("seconds", [5, 15])
def test_bursts_are_awaited_whenever_they_come(seconds: float) -> None:
    assert pause(seconds, hurries=True) < 0.1
    assert pause(seconds, awaits_burst=True) < 0.2
    assert pause(seconds, windows_left=2.0) == pytest.approx(0.2)  # two windows of 0.1 s
    assert pause(seconds, windows_left=1000.0) == pause(seconds)


def test_who_uses_little_has_one_window_a_turn() -> None:
    assert pause(9, busy_share=0.3) == pytest.approx(0.1 / 0.3, rel=0.1)
    assert pause(15, busy_share=0.05) == 0.5
    assert pause(15, busy_share=0.0) == 0.25  # idle: it may begin at any moment
