"""When a session's state is shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from invented import make_snapshot

from memsampd.daemon import showing
from memsampd.daemon.showing import Publisher
from memsampd.exporters.snapshot import Snapshot


class Exporter:
    """Counts what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []

    def publish(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)

    def close(self) -> None: ...


class Asking(Exporter):
    """Asks before it is read."""

    ask: Callable[[], None]
    is_unread = True

    def __init__(self) -> None:
        super().__init__()
        self.ask = lambda: None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(showing, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def times_shown(
    clock: SimpleNamespace, exporter: Exporter, asked_every: int | None = None
) -> list[float]:
    """When it is shown the state in 20 s of short turns; it asks after so many of them."""
    parts: Any = SimpleNamespace(keeper=None, past=None, started_seconds=clock.seconds)
    publisher, times = Publisher([exporter], [], parts), []
    for turn in range(200):
        clock.seconds += 0.1
        is_asked = asked_every is not None and turn % asked_every == 0
        if publisher.is_due(is_asked=is_asked):
            times.append(clock.seconds - parts.started_seconds)
            publisher.publish(make_snapshot().target, lambda **_: make_snapshot())
    assert len(exporter.shown) == len(times)
    return times


def test_a_state_is_old_while_nobody_asks(clock: SimpleNamespace) -> None:
    times = times_shown(clock, Asking())
    assert times[0] == pytest.approx(0.3)
    assert times[-1] > 10
    assert all(each - before < 5.2 for before, each in pairwise(times))
    assert len(times) < 10


def test_who_asks_is_shown_the_present_state_once_a_second_at_most(clock: SimpleNamespace) -> None:
    often, now_and_then = (times_shown(clock, Asking(), every) for every in (1, 30))
    assert 20 <= len(often) <= 24
    for asked in (0.1 + 3 * number for number in range(1, 7)):
        assert any(asked - 1.01 < each < asked + 0.01 for each in now_and_then)
    assert len(now_and_then) < 15


def test_who_cannot_ask_is_shown_the_state_every_second(clock: SimpleNamespace) -> None:
    assert 20 <= len(times_shown(clock, Exporter())) <= 24
