"""Which snapshots are shown, and for how long those of targets that have ended."""

from __future__ import annotations

from invented import make_snapshot

from memsampd.exporters.shown import ShownSnapshots


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def pids(shown: ShownSnapshots) -> list[tuple[int, bool]]:
    return [(each.target.pid, each.alive) for each in shown.read()]


def test_the_last_state_of_each_target_is_shown_again_and_again() -> None:
    shown = ShownSnapshots()
    for pid in (5, 3, 5):
        shown.show(make_snapshot(pid=pid))
    assert pids(shown) == pids(shown) == [(3, True), (5, True)]


def test_what_ended_is_shown_once() -> None:
    shown = ShownSnapshots()
    shown.show(make_snapshot(pid=3))
    shown.show(make_snapshot(pid=5, alive=False))  # nobody ever saw it alive
    shown.show(make_snapshot(pid=3, alive=False))
    assert pids(shown) == [(3, False), (5, False)]
    assert pids(shown) == []


def test_what_ended_waits_a_minute_for_a_reader() -> None:
    clock = Clock()
    shown = ShownSnapshots(clock)
    shown.show(make_snapshot(pid=3, alive=False))
    clock.seconds += 59
    shown.show(make_snapshot(pid=4, alive=False))
    clock.seconds += 2
    shown.show(make_snapshot(pid=5))
    assert pids(shown) == [(4, False), (5, True)]


def test_what_ended_waits_for_as_long_as_it_is_to() -> None:
    clock = Clock()
    shown = ShownSnapshots(clock, kept_seconds=130)
    shown.show(make_snapshot(pid=3, alive=False))
    clock.seconds += 129
    assert pids(shown) == [(3, False)]


def test_another_process_of_the_same_number_is_another_target() -> None:
    shown = ShownSnapshots()
    shown.show(make_snapshot(pid=3, alive=False))
    shown.show(make_snapshot(pid=3))
    assert pids(shown) == pids(shown) == [(3, True)]


def test_it_knows_whether_the_last_state_was_read() -> None:
    shown = ShownSnapshots()
    assert not shown.is_unread
    shown.show(make_snapshot())
    assert shown.is_unread
    shown.read()
    assert not shown.is_unread
    shown.show(make_snapshot(alive=False))
    assert shown.is_unread
    shown.clear()
    assert not shown.is_unread
    assert pids(shown) == []
