"""When bursts wait for memsampd's own CPU time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from memsampd.daemon.own_cpu import OwnCpu


@dataclass
class Clocks:
    """Times that pass when they are told to."""

    now_seconds: float = 100.0
    used_seconds: float = 3.0

    def account(self, share: float = 0.05) -> OwnCpu:
        return OwnCpu(share, lambda: self.now_seconds, lambda: self.used_seconds)


def test_a_second_is_granted_and_no_more_in_the_first_ten() -> None:
    clocks = Clocks()
    own = clocks.account()
    clocks.used_seconds += 0.7
    own.replica_seconds += 0.29
    assert own.used_seconds == pytest.approx(0.99)
    assert own.allows_burst(0.5)
    clocks.used_seconds += 0.02
    assert not own.allows_burst(5.0)
    assert not own.allows_burst(300.0)  # of many threads
    clocks.now_seconds += 10
    assert not own.allows_burst(19.0)
    assert own.allows_burst(300.0)


def test_the_share_holds_from_then_on() -> None:
    clocks = Clocks()
    own = clocks.account(0.1)
    clocks.now_seconds += 60
    clocks.used_seconds += 5.0
    assert not own.allows_burst(49.0)
    assert own.allows_burst(51.0)


def test_how_long_bursts_wait_is_counted() -> None:
    clocks = Clocks()
    own = clocks.account()
    assert own.allows_burst(0.0)
    assert (own.is_waited_for, own.waited_seconds) == (False, 0.0)
    clocks.used_seconds += 2.0
    for _ in range(3):
        assert not own.allows_burst(10.0)
        clocks.now_seconds += 10.0
    assert (own.is_waited_for, own.waited_seconds) == (True, 30.0)
    assert own.allows_burst(50.0)
    clocks.now_seconds += 100.0
    assert (own.is_waited_for, own.waited_seconds) == (False, 30.0)
