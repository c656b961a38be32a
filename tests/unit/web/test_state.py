from __future__ import annotations

import numpy as np
import pytest
from invented import make_snapshot
from msgspec.structs import replace

from memsampd.exporters.documents import target_document, target_id
from memsampd.exporters.history import History
from memsampd.exporters.past import EMPTY
from memsampd.exporters.snapshot import Snapshot
from memsampd.web.state import KEPT_ENDED, KEPT_EVENTS, State
from memsampd.web.wire import Detached, Restored


def kinds(state: State) -> list[str]:
    return [event.kind for event in state.events_after(0)]


def in_phase(phase: int | None, time_seconds: float = 1.0) -> Snapshot:
    return replace(make_snapshot(), phase=phase, time_seconds=time_seconds)


def test_a_target_its_phases_and_its_end_are_told_once_each() -> None:
    state, told = State(monotonic=lambda: 50.0, unix=lambda: 1050.0), []
    unlisten = state.listen(lambda: told.append(state.last_event))
    for number, phase in enumerate([None, 0, 0, 2, 0]):
        state.receive(in_phase(phase, float(number)))
    state.receive(replace(in_phase(0, 9.0), alive=False))
    assert kinds(state) == ["target", "phase", "phase", "phase", "end"]
    assert told == [1, 2, 3, 4, 5]
    (changed,) = (event for event in state.events_after(2) if event.number == 3)
    assert changed.document["phase"] == 2
    assert changed.document["previous_phase"] == 0
    assert changed.document["time_unix_seconds"] == 1003.0
    unlisten()
    state.receive(make_snapshot(pid=77))
    assert told == [1, 2, 3, 4, 5]


def test_a_wall_clock_that_jumps_shifts_what_is_told_and_loses_nothing() -> None:
    wall = [1e9]
    state = State(monotonic=lambda: 50.0, unix=lambda: wall[0])
    for number in range(5):
        state.receive(in_phase(0, 10.0 * number))
        wall[0] += (-1) ** number * 1e6
    (observed,) = state.targets.values()
    assert (observed.history.first_seconds, observed.history.last_seconds) == (0.0, 40.0)
    assert state.age_seconds(40.0) == 10.0
    assert observed.snapshot.time_seconds + state.unix_offset_seconds == wall[0] - 10.0
    assert kinds(state) == ["target", "phase"]


def test_a_target_that_is_let_go_of_is_kept_but_has_no_series() -> None:
    state = State()
    state.receive(make_snapshot())
    assert b'pid="4242"' in state.prometheus.text(open_metrics=False)
    state.receive(Detached("4242-99"))
    state.receive(Detached("4242-99"))
    state.receive(Detached("1-1"))
    last = state.prometheus.text(open_metrics=False)
    assert b'memsampd_target_up{command="sqlite3",pid="4242"} 0' in last
    assert b'pid="4242"' not in state.prometheus.text(open_metrics=False)
    assert not state.targets["4242-99"].attached
    assert state.targets["4242-99"].snapshot.lives
    assert kinds(state) == ["target", "phase", "end"]


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("is_told_at_length", [False, True])
def test_what_has_ended_and_what_is_let_go_of_are_told_apart(
    lives: bool, is_told_at_length: bool
) -> None:
    state, last = State(), replace(make_snapshot(alive=False), is_let_go=lives)
    state.receive(make_snapshot())
    state.receive(last if is_told_at_length else Detached("4242-99", is_let_go=lives))
    observed, (*_, end) = state.targets["4242-99"], state.events_after(0)
    assert not observed.attached
    assert target_document(observed.snapshot)["alive"] is lives
    assert (end.kind, end.document["alive"]) == ("end", lives)
    assert b'pid="4242"} 0' in state.prometheus.text(open_metrics=False)
    assert b'pid="4242"' not in state.prometheus.text(open_metrics=False)


def test_a_target_that_is_attached_again_has_its_history_and_series_again() -> None:
    state = State()
    state.receive(make_snapshot())
    state.receive(Detached("4242-99"))
    state.receive(make_snapshot())
    assert state.targets["4242-99"].attached
    assert b'pid="4242"' in state.prometheus.text(open_metrics=False)
    assert kinds(state)[-2:] == ["target", "phase"]


def of_phases(time_seconds: float, used: dict[int, float]) -> Snapshot:
    """A snapshot in which phases have used so much CPU time since the attach."""
    snapshot = in_phase(0, time_seconds)
    first = snapshot.estimate.phases[0]
    phases = tuple(replace(first, id=id, cpu_seconds=each) for id, each in used.items())
    return replace(snapshot, estimate=replace(snapshot.estimate, phases=phases))


def test_phases_of_an_attach_are_not_taken_for_those_of_the_one_before() -> None:
    """Ids begin anew; what ran before keeps its curves."""
    state = State()
    state.receive(of_phases(0.0, {0: 0.0, 1: 0.0}))
    state.receive(of_phases(10.0, {0: 4.0, 1: 2.0}))
    history = state.targets["4242-99"].history
    curve = history.curves(history.read(0.0, 10.0, 1))[0]
    for second in (100.0, 200.0):
        state.receive(Detached("4242-99", is_let_go=True))
        state.receive(of_phases(second, {0: 0.5}))
        part = history.read(0.0, second, 100)
        assert sorted(part.cpu_seconds.sum(axis=0).tolist()) == pytest.approx([2.0, 4.0])
        assert np.all(part.phases < EMPTY)
    later = of_phases(201.0, {0: 1.0})
    phase = replace(later.estimate.phases[0], curves={})
    state.receive(replace(later, estimate=replace(later.estimate, phases=(phase,))))
    part = history.read(0.0, 201.0, 300)
    assert part.cpu_seconds.sum() == pytest.approx(6.5)
    assert sorted(part.phases.tolist())[-1] == 0
    same = history.curves(history.read(0.0, 10.0, 1))[0]
    assert curve is not None
    assert same is not None
    assert same.miss_ratio == pytest.approx(curve.miss_ratio)


def test_what_has_ended_is_forgotten_in_the_end_and_events_too() -> None:
    state = State()
    for pid in range(1, 400):
        state.receive(make_snapshot(1, alive=False, pid=pid))
    assert len(state.targets) == KEPT_ENDED
    assert "399-99" in state.targets
    events = list(state.events_after(0))
    assert len(events) == KEPT_EVENTS
    assert events[-1].number == state.last_event == 3 * 399


def test_the_last_to_end_are_kept_however_long_they_ran() -> None:
    state = State()
    state.receive(make_snapshot(1, pid=7))
    for pid in range(100, 100 + 2 * KEPT_ENDED):
        state.receive(make_snapshot(1, alive=False, pid=pid))
    state.receive(make_snapshot(1, alive=False, pid=7))
    assert "7-99" in state.targets
    assert len(state.targets) == KEPT_ENDED


def test_what_was_kept_comes_before_what_is_seen_and_replaces_nothing() -> None:
    before, state = History(), State(monotonic=lambda: 50.0, unix=lambda: 1050.0)
    for second in range(5):
        before.add(in_phase(0, float(second)))
    past = before.past()
    assert past is not None
    id = target_id(make_snapshot().target)
    state.receive(Restored(id, past))
    assert id not in state.targets  # nothing is known of what it does
    state.receive(in_phase(0, 10.0))
    history = state.targets[id].history
    assert (history.first_seconds, history.stored_until_seconds) == (0.0, 4.0)
    state.receive(Restored(id, past))
    state.receive(in_phase(0, 11.0))
    assert state.targets[id].history is history
    assert history.last_seconds == 11.0


def test_what_was_kept_of_a_target_that_never_comes_is_forgotten() -> None:
    before, state = History(), State()
    before.add(in_phase(0))
    past = before.past()
    assert past is not None
    state.receive(Restored("7-1", past))
    state.receive(Detached("7-1"))
    assert not state._pasts
