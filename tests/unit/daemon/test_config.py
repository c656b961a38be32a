"""Settings that contradict each other, or depend on the machine."""

from __future__ import annotations

import pytest

from memsampd.daemon.config import SessionConfig
from memsampd.errors import UsageError
from memsampd.sampler.perf.costs import SamplingCost


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


def test_who_asks_for_no_period_gets_that_of_the_machine() -> None:
    dear = SamplingCost(interrupt_seconds=15e-6)
    assert SessionConfig().sampling_period_seconds(dear) == pytest.approx(0.003)
    assert SessionConfig(period_seconds=0.001).sampling_period_seconds(dear) == 0.001


def test_windows_have_some_samples_on_any_machine() -> None:
    dear = SamplingCost(interrupt_seconds=1.0)
    short = SessionConfig(window_seconds=0.015)
    assert short.sampling_period_seconds(dear) == pytest.approx(0.003)
    assert short.sampling_period_seconds(SamplingCost()) == 0.002
    with pytest.raises(UsageError, match="--window"):
        SessionConfig(window_seconds=0.009)
    SessionConfig(window_seconds=0.015, period_seconds=0.003)
    with pytest.raises(UsageError, match="--window"):
        SessionConfig(window_seconds=0.015, period_seconds=0.0031)
    with pytest.raises(UsageError, match="--period"):
        SessionConfig(period_seconds=1e-5)
