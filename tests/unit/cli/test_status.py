"""What is shown while a session runs, and how seldom that asks for its whole state."""

from __future__ import annotations

import io
import json
from collections.abc import Collection

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import make_snapshot, nothing_known
from msgspec.structs import replace

from memsampd.cli.status import (
    JsonStatus,
    LiveStatus,
    PlainStatus,
    cache_ratios,
    own_cpu_line,
    ratio_text,
    status_lines,
    waiting_line,
    wrapped,
)
from memsampd.exporters.curves import CurvePoint
from memsampd.exporters.event_schema import event_schema
from memsampd.exporters.snapshot import Snapshot
from memsampd.phases.records import Assignment, Window

STATE = make_snapshot()


class Asked:
    """A session's state, with a count of who wanted it."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, *, only: Collection[int] | None = None) -> Snapshot:
        self.times += 1
        return STATE


def window(index: int) -> Window:
    return Window(index, 0.1 * index, 0.1 * index + 0.1, 0.1, np.zeros(4), 50, 0, 0, {1: 50})


def phase(number: int) -> Assignment:
    return Assignment(number, 0.1)


def test_a_terminal_is_redrawn_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream, state = io.StringIO(), Asked()
    stream.fileno = lambda: -1  # type: ignore[method-assign]
    live = LiveStatus(stream)
    for index in range(20):
        live.window(window(index), phase(1), state)
        live.turn(state)
    assert state.times == 1
    drawn = stream.getvalue()
    assert "sqlite3 (4242)  CPU time 6.0 s, of it user 6.0 s" in drawn
    now += 1
    live.turn(state)
    assert len(stream.getvalue()) > len(drawn)
    assert state.times == 2


def lines_of(stream: io.StringIO) -> list[str]:
    return [line.split("  ")[0] for line in stream.getvalue().splitlines()]


def test_lines_tell_changes_of_phase_and_its_first_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream, state = io.StringIO(), Asked()
    plain = PlainStatus(stream)
    without = replace(STATE, phase=2)
    for index, (number, snapshot) in enumerate(
        [(1, STATE), (1, STATE), (2, without), (2, without), (1, STATE)]
    ):
        now += 1
        plain.window(window(index), phase(number), lambda told=snapshot, **_: told)
    assert lines_of(stream) == ["window 0: phase 1", "window 2: phase 2", "window 4: phase 1"]
    assert "no burst of it yet" in stream.getvalue()
    plain.window(window(5), phase(1), state)
    assert state.times == 0


def test_lines_tell_the_curve_of_their_own_phase() -> None:
    """Though it may not be the present one any more; no other phase is worked out."""
    stream, asked = io.StringIO(), []

    def state(*, only: Collection[int] | None = None) -> Snapshot:
        asked.append(only)
        phases = tuple(each for each in STATE.estimate.phases if only is None or each.id in only)
        return replace(STATE, phase=1, estimate=replace(STATE.estimate, phases=phases))

    PlainStatus(stream).window(window(0), phase(0), state)
    curve = STATE.estimate.phases[0].curves["lru"]
    assert cache_ratios(curve, STATE.cache_sizes_bytes) in stream.getvalue()
    assert asked == [(0,)]


def test_the_state_is_worked_out_once_in_two_seconds_however_often_phases_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream, state = io.StringIO(), Asked()
    plain = PlainStatus(stream)
    for index in range(80):
        plain.window(window(index), phase(1 + index % 2), state)
        now += 0.1
    assert state.times == len(lines_of(stream)) == 4


def test_lines_tell_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream = io.StringIO()
    plain = PlainStatus(stream)
    trouble = replace(STATE, trouble="too large")
    idle = replace(STATE, idle_seconds=7.4)
    overhead = replace(STATE.overhead, waits_for_own_cpu=True, own_cpu_waited_seconds=2.0)
    waiting = replace(STATE, overhead=overhead)
    for state in (STATE, trouble, trouble, STATE, idle, idle, STATE, waiting, STATE, waiting):
        now += 2
        plain.turn(lambda told=state, **_: told)
    assert stream.getvalue().splitlines() == [
        "no bursts: too large",
        "bursts again",
        "idle: the target has used no CPU time for 7 s",
        "the target runs again",
        "own CPU 0.40 s (limit 5 % of the target's, 1 s in any case): bursts wait for it, "
        "so far 2.0 s",
    ]


def test_bursts_that_wait_for_own_cpu_time_are_told_of() -> None:
    overhead = replace(STATE.overhead, waits_for_own_cpu=True, own_cpu_waited_seconds=2.0)
    used = "own CPU 0.40 s (limit 5 % of the target's, 1 s in any case)"
    assert [own_cpu_line(each) for each in (STATE.overhead, overhead)] == [
        used,
        f"{used}: bursts wait for it, so far 2.0 s",
    ]
    waited = replace(overhead, waits_for_own_cpu=False)
    assert own_cpu_line(waited) == f"{used}: bursts waited 2.0 s for it"


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (CurvePoint(0.0013, 0.0, 0.0026), "0.00..0.26 %"),
        (CurvePoint(0.0013, 0.0012, 0.0014), "0.13 %"),
        (CurvePoint(0.50, 0.48, 0.52), "50.0 %"),
        (CurvePoint(0.50, 0.46, 0.54), "46.0..54.0 %"),
    ],
)
def test_a_band_is_shown_where_it_matters_to_the_value(point: CurvePoint, text: str) -> None:
    assert ratio_text(point) == text


def test_the_summary_is_of_the_whole_run_and_names_what_was_refused() -> None:
    errors, refusals = {"not-running": 26}, {"not-running": "the thread sleeps; it is tried again"}
    idle = replace(STATE, idle_seconds=3.0, errors=errors, refusals=refusals, trouble="no room")
    lines = status_lines(idle)
    whole = STATE.estimate.curves["lru"]
    assert cache_ratios(whole, STATE.cache_sizes_bytes) in lines[1]
    assert lines[1].startswith("LRU miss ratio, whole run:")
    assert "(25 % of the time without a curve)" in lines[1]
    assert lines[2].startswith("now, phase 1 (predicted 90 %):")
    assert lines[-3:] == [
        "26 bursts refused (not-running): the thread sleeps; it is tried again",
        "idle: the target has used no CPU time for 3 s",
        "no bursts: no room",
    ]
    assert not [line for line in status_lines(replace(idle, alive=False)) if "idle" in line]
    (once,) = replace(idle, errors={"not-running": 1}).refused()
    assert once.startswith("1 burst refused (not-running): the thread sleeps")


def test_the_summary_says_that_children_have_no_burst() -> None:
    children = "child processes used 50 % of the CPU time: bursts are taken of the process itself"
    told = status_lines(replace(STATE, child_share=0.5))
    assert [line for line in told if line.startswith(children)]
    assert not [line for line in status_lines(STATE) if "child" in line]


def test_json_has_an_object_a_window() -> None:
    stream = io.StringIO()
    shown = JsonStatus(stream)
    for index in range(3):
        shown.window(window(index), phase(index), Asked())
        shown.turn(Asked())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["window"], line["phase"]) for line in lines] == [(0, 0), (1, 1), (2, 2)]
    assert len(lines[0]["whole_run"]["low"]) == len(lines[0]["sizes_bytes"])


def test_json_is_as_its_schema_says_before_and_after_the_first_curve() -> None:
    validator = jsonschema.Draft202012Validator(event_schema())
    bare = replace(STATE, estimate=nothing_known(STATE.estimate.sizes_bytes), phase=None)
    for state in (STATE, bare):
        stream = io.StringIO()
        JsonStatus(stream).window(window(0), phase(1), lambda told=state, **_: told)
        told = json.loads(stream.getvalue())
        validator.validate(told)
        assert set(told) == set(event_schema()["properties"])


def test_what_the_first_curve_waits_for_is_told() -> None:
    nothing = nothing_known(STATE.estimate.sizes_bytes)
    asleep = replace(STATE, estimate=nothing, samples=0)
    begun = replace(asleep, samples=20)
    seen = replace(begun, estimate=replace(nothing, windows=3))
    tried = replace(seen, burst_ends={}, errors={"not-running": 4})
    assert waiting_line(asleep) == "step 1 of 3: waiting for the target to use CPU time"
    assert waiting_line(begun).startswith("step 2 of 3: 20 samples, waiting for a window to end")
    assert "3 windows, waiting for a burst" in waiting_line(replace(seen, burst_ends={}, errors={}))
    assert "4 tried" in waiting_line(tried)
    assert "waits for too large" in waiting_line(replace(tried, trouble="too large"))
    for of_children in (seen, replace(seen, idle_seconds=9.0)):
        told = waiting_line(replace(of_children, child_share=1.0))
        assert told == (
            "step 1 of 3: waiting for the process itself to run: its children have no bursts"
        )
    assert waiting_line(STATE) == ""
    assert waiting_line(replace(asleep, alive=False)) == ""


def test_a_terminal_shows_that_it_works_until_there_is_a_curve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("memsampd.cli.status.time.monotonic", lambda: now)
    stream = io.StringIO()
    stream.fileno = lambda: -1  # type: ignore[method-assign]
    live = LiveStatus(stream)
    waiting = replace(STATE, estimate=nothing_known(STATE.estimate.sizes_bytes), samples=0)
    for state in (waiting, waiting, STATE):
        now += 1
        live.turn(lambda told=state, **_: told)
    drawn = stream.getvalue()
    assert "1 s, step 1 of 3" in drawn
    assert "2 s, step 1 of 3" in drawn
    assert "3 s, step" not in drawn


@given(st.text("ab ,:.", min_size=1, max_size=300), st.integers(12, 100))
def test_a_broken_line_fits_and_says_the_same(line: str, columns: int) -> None:
    broken = wrapped(line, columns)
    assert all(len(each) <= columns for each in broken)
    assert "".join("".join(broken).split()) == "".join(line.split())


def test_on_80_columns_all_caches_are_told() -> None:
    lines = [part for line in status_lines(STATE) for part in wrapped(line, 79)]
    whole = STATE.estimate.curves["lru"]
    told = cache_ratios(whole, STATE.cache_sizes_bytes).split("  ")
    assert all(any(each in line for line in lines) for each in told)
    assert max(map(len, lines)) <= 79
