"""Settings that contradict each other."""

from __future__ import annotations

import pytest

from memsampd.daemon.config import SessionConfig
from memsampd.errors import UsageError


def test_nothing_is_stopped_where_that_is_wanted() -> None:
    assert SessionConfig(max_stop_seconds=0.0).accesses == "auto"
    SessionConfig(max_stop_seconds=0.0, accesses="watchpoints")
    with pytest.raises(UsageError, match="exclude each other"):
        SessionConfig(max_stop_seconds=0.0, accesses="bursts")
    with pytest.raises(UsageError, match="exclude each other"):
        SessionConfig(watches=False, accesses="watchpoints")
    with pytest.raises(UsageError, match="--max-stop"):
        SessionConfig(max_stop_seconds=-0.001)
    with pytest.raises(UsageError, match="--accesses"):
        SessionConfig(accesses="hopes")  # type: ignore[arg-type]
