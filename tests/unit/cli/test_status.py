"""What is shown while a session runs, and how seldom that asks for its whole state."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from invented import make_snapshot

from memsampd.cli.status import JsonStatus, LiveStatus, PlainStatus, status_lines
from memsampd.exporters.snapshot import Snapshot
from memsampd.phases.records import Assignment, Window

STATE = make_snapshot()


class Asked:
    """A session's state, with a count of who wanted it."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Snapshot:
        self.times += 1
        return STATE


def window(index: int) -> Window:
    return Window(index, 0.1 * index, 0.1 * index + 0.1, 0.1, np.zeros(4), 50, 0, 0, {1: 50})


def phase(number: int) -> Assignment:
    return Assignment(number, 0.1, 0.2)


def test_a_terminal_is_redrawn_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream, state = io.StringIO(), Asked()
    stream.fileno = lambda: -1  # type: ignore[method-assign]
    live = LiveStatus(stream)
    for index in range(20):
        live.window(window(index), phase(1), state)
    assert state.times == 1
    drawn = stream.getvalue()
    assert "sqlite3 (4242)  phase 1 of 3" in drawn
    live.idle(STATE)
    assert stream.getvalue() == drawn
    now += 1
    live.idle(STATE)
    assert len(stream.getvalue()) > len(drawn)
    live.window(window(20), phase(1), state)
    assert state.times == 1


def test_lines_tell_changes_of_phase_and_trouble() -> None:
    stream, state = io.StringIO(), Asked()
    plain = PlainStatus(stream)
    for index, number in enumerate((1, 1, 1, 2, 2)):
        plain.window(window(index), phase(number), state)
    plain.idle(STATE)
    for trouble in ("too large", "too large", ""):
        plain.idle(replace(STATE, trouble=trouble))
    assert state.times == 2
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "window 0: phase 1",
        "window 3: phase 2",
        "no bursts: too large",
        "bursts again",
    ]


def test_bursts_that_wait_for_own_cpu_time_are_told_of() -> None:
    overhead = replace(STATE.overhead, waits_for_own_cpu=True, own_cpu_waited_seconds=2.0)
    waiting = replace(STATE, overhead=overhead)
    waited = replace(STATE, overhead=replace(overhead, waits_for_own_cpu=False))
    lines = [status_lines(state)[4] for state in (STATE, waiting, waited)]
    used = "own CPU 0.4 s (limit 5 % of the target's)"
    assert lines == [
        used,
        f"{used}: bursts wait for it, so far 2.0 s",
        f"{used}: bursts waited 2.0 s for it",
    ]
    stream = io.StringIO()
    plain = PlainStatus(stream)
    for state in (STATE, waiting, waited, waiting):
        plain.idle(state)
    assert stream.getvalue() == f"{lines[1]}\n"


def test_json_has_an_object_a_window() -> None:
    stream = io.StringIO()
    shown = JsonStatus(stream)
    for index in range(3):
        shown.window(window(index), phase(index), Asked())
        shown.idle(STATE)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["window"], line["phase"]) for line in lines] == [(0, 0), (1, 1), (2, 2)]
