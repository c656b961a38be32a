from __future__ import annotations

import numpy as np
import pytest

from memsampd.daemon.closed import ClosedWindows
from memsampd.phases.records import Window


def window(index: int, start_seconds: float, end_seconds: float) -> Window:
    return Window(index, start_seconds, end_seconds, 0.1, np.zeros(8), 10, 0, 0, {1: 10})


@pytest.fixture
def closed() -> ClosedWindows:
    """The target slept for a second within the third."""
    windows = ClosedWindows()
    windows.add(window(0, 10.0, 10.1), 0)
    windows.add(window(1, 10.1, 10.2), 1)
    windows.add(window(2, 10.2, 11.3), 0)
    windows.add(window(3, 11.3, 11.4), 2)
    return windows


@pytest.mark.parametrize(
    ("time_seconds", "index"),
    [(9.0, 0), (10.05, 0), (10.1, 0), (10.15, 1), (11.0, 2), (11.4, 3)],
)
def test_the_window_of_a_moment(time_seconds: float, index: int, closed: ClosedWindows) -> None:
    found = closed.find(time_seconds)
    assert found is not None
    assert (found.index, found.phase) == (index, [0, 1, 0, 2][index])


def test_what_has_not_ended_is_not_found(closed: ClosedWindows) -> None:
    assert closed.find(11.45) is None
    closed.add(window(4, 11.4, 11.5), 0)
    found = closed.find(11.45)
    assert found is not None
    assert found.index == 4
    assert ClosedWindows().find(1.0) is None


def test_merged_phases(closed: ClosedWindows) -> None:
    closed.merge(0, 7)
    phases = [closed.find(seconds) for seconds in (10.05, 10.15, 11.0)]
    assert [each.phase for each in phases if each is not None] == [7, 1, 7]
