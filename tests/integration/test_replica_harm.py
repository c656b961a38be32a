"""The target must not notice: what the shadow source must never break, on real programs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import shadowing
from memsampd.sampler.shadow.source import ShadowSource
from memsampd.sampler.shadow.stepping import SteppingExecutor

from memsampd.sampler.process.identity import read_stat
from programs.preparing import SOURCES

KILL_ROUNDS = int(os.environ.get("MEMSAMPD_KILL_ROUNDS", "12"))
KILL_WITHIN_SECONDS = 0.3


@pytest.fixture(scope="module")
def checksum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shadowing.compile_c(
        tmp_path_factory.mktemp("checksum"), (SOURCES / "checksum.c").read_text()
    )


def _result(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    answer = process.stdout.read()
    assert process.wait() == 0
    return answer.strip()


def test_registers_and_vectors_survive(checksum: Path) -> None:
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with shadowing.observed(process.pid) as tally:
            tally.wait(lambda: tally.bursts >= 100)
        assert tally.accesses > 1000
        assert shadowing.traces_left(process.pid) == []
        assert shadowing.orphans() == []
        assert _result(process) == "right"


def test_killing_the_observer_at_any_moment_leaves_nothing(checksum: Path) -> None:
    delays = random.Random(20260)
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for round_number in range(KILL_ROUNDS):
            attacker = shadowing.attacker(process.pid)
            assert attacker.stdout is not None
            attacker.stdout.readline()
            time.sleep(delays.uniform(0, KILL_WITHIN_SECONDS))
            attacker.kill()
            attacker.wait()
            attacker.stdout.close()
            left = shadowing.wait_until_clean(process.pid)
            assert left == [], f"round {round_number}"
            assert process.poll() is None, f"round {round_number}"
        assert shadowing.orphans() == []
        assert _result(process) == "right"


# Attaches, takes a shadow and keeps it.
HOLDER = """
import signal, sys
from memsampd.sampler.shadow.snapshots import Snapshots
pid = int(sys.argv[1])
snapshots = Snapshots(pid)
print(snapshots.take(pid, 1, 60.0).shadows[0].pid, flush=True)
signal.pause()
"""


def test_a_later_attach_collects_what_a_killed_guardian_could_not(checksum: Path) -> None:
    with shadowing.running(checksum) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with shadowing.running(sys.executable, "-c", HOLDER, str(process.pid)) as holder:
            assert holder.stdout is not None
            shadow = int(holder.stdout.readline())
            for child, _, _ in shadowing.children(holder.pid):
                os.kill(child, signal.SIGKILL)
        while not read_stat(shadow).is_dead:
            time.sleep(0.01)
        assert [pid for pid, *_ in shadowing.children(process.pid)] == [shadow]
        ShadowSource(process.pid, SteppingExecutor()).close()
        assert shadowing.traces_left(process.pid) == []
        assert _result(process) == "right"
