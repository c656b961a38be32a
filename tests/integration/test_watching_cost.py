"""What a data breakpoint does to copies on this CPU: that it is told soundly, never how much."""

from __future__ import annotations

import errno

import pytest
from tracees import descriptors

from memsampd import _core
from memsampd.sampler.perf.watching_cost import WatchingCost


def test_it_is_measured_and_nothing_is_left_open() -> None:
    before = descriptors()
    found = WatchingCost.measure()
    assert descriptors() == before
    assert found.repeat_seconds >= 0
    assert found.times >= 1
    assert (found.repeat_seconds > 0) == (found.times > 1)
    assert _core.copy_seconds() > 0


@pytest.mark.parametrize(
    ("error", "sees_kernel"), [(errno.EACCES, False), (errno.ENOSPC, True), (errno.ENOENT, True)]
)
def test_where_breakpoints_are_refused_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, error: int, sees_kernel: bool
) -> None:
    """Where only the kernel may not be seen, copies are measured all the same."""
    real = _core.Breakpoints

    def refused(*args: object) -> _core.Breakpoints:
        if error != errno.EACCES or args[-1]:
            raise OSError(error, "refused")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(_core, "Breakpoints", refused)
    found = WatchingCost.measure()
    assert found.sees_kernel is sees_kernel
    if error != errno.EACCES:
        assert found == WatchingCost()
