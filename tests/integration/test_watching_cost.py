"""What a data breakpoint does to copies on this CPU: that it is told soundly, never how much."""

from __future__ import annotations

import errno
import threading

import pytest
from tracees import descriptors

from memsampd import _core
from memsampd.daemon.attach import prepared
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.sampler.perf.probes import busy_child
from memsampd.sampler.perf.watching_cost import WatchingCost


def test_it_is_measured_and_nothing_is_left_open() -> None:
    before = descriptors()
    found = WatchingCost.measure()
    assert descriptors() == before
    assert found.repeat_seconds >= 0
    assert found.times >= 1
    assert (found.repeat_seconds > 0) == (found.times > 1)
    assert _core.copy_seconds() > 0


def test_where_only_the_kernel_may_not_be_seen_copies_are_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = _core.Breakpoints

    def refused(*args: object) -> _core.Breakpoints:
        if args[-1]:
            raise OSError(errno.EACCES, "refused")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(_core, "Breakpoints", refused)
    assert WatchingCost.measure().sees_kernel is False


def test_what_cannot_be_measured_is_not_known_and_nothing_is_watched_until_it_is() -> None:
    """Somebody has all breakpoints of this thread: the first session cannot know."""
    config = SessionConfig(accesses="watchpoints")
    *_, word = _core.run_known_loop(1)
    words = [(_core.BREAKPOINT_ACCESS, word)] * 4
    long_distances = []
    with busy_child() as child, prepared(config, OutputConfig()) as ready:
        debugger = _core.Breakpoints(threading.get_native_id(), words, 1)
        for _ in range(2):
            with ready.attached(child.pid) as session:
                long_distances.append(session.snapshot().backend["long_distances"])
            debugger.close()
    assert long_distances == ["none", "watchpoints"]
