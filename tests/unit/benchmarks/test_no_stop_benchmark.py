"""Benchmarks of what observing without a stop costs: who observes nothing misses a goal."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest

from no_stop import Served, judge_redis, traced_calls
from targets.launching import LaunchError
from watch_cost import Lost

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")


def answers(bursts: int, p999_seconds: float = 0.001) -> Served:
    return Served(1000.0, 0.0001, 0.0005, p999_seconds, 0.01, bursts)


def test_a_server_of_which_nothing_was_observed_misses_a_goal() -> None:
    seen = {"alone": answers(0), "watchpoints": answers(3), "bursts": answers(2)}
    assert judge_redis([seen]) == []
    told = judge_redis([seen | {"watchpoints": answers(0)}])
    assert told == ["watchpoints: nothing was observed"]
    assert judge_redis([seen | {"watchpoints": answers(3, 0.5)}]) == ["p99.9"]


@needs_strace
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("sh", "-c", "echo refused >&2; exit 3"), "status 3 of sh: refused"),
        (("true",), "true observed nothing"),
    ],
)
def test_a_command_that_observed_nothing_is_no_command_without_ptrace(
    command: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match=told):
        traced_calls(command, tmp_path, lambda: time.sleep(0.01))


SAMPLES = """
import ctypes, os, sys
from memsampd.sampler.perf.source import TaskClockSource
TaskClockSource(os.getpid(), period_seconds=0.1).close()
for _ in sys.argv[1:]:
    ctypes.CDLL(None).ptrace(0x4206, 0, 0, 0)  # seizes nobody
"""


@needs_strace
@pytest.mark.usefixtures("perf_events")
@pytest.mark.parametrize("calls", [0, 2])
def test_calls_of_ptrace_by_who_observes_are_counted(calls: int, tmp_path: Path) -> None:
    command = (sys.executable, "-c", SAMPLES, *("again",) * calls)
    assert traced_calls(command, tmp_path, lambda: time.sleep(0.01)) == calls


def test_who_takes_no_burst_while_memory_is_copied_misses_a_goal() -> None:
    lost = Lost("memcpy", 0.3, {"memsampd": 0.01}, {"memsampd": 0.0}, {"memsampd": 2.0})
    assert lost.missed() == []
    nothing = Lost("memcpy", 0.3, {"memsampd": 0.06}, {"memsampd": 0.0}, {"memsampd": 0.0})
    assert nothing.missed() == ["memcpy: 6.0 % slower", "memcpy: nothing was observed"]
