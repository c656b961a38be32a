"""Targets that mean harm: they write over all that they can reach in the replica, and jump about.

In the target each of these programs comes to an end of its own making, or goes on: it lives where
there is no translator. A burst of it must come to some end, and memsampd must live.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tracees import children, running

from memsampd.errors import CaptureError
from memsampd.sampler.records import BurstRequest
from memsampd.sampler.replica.source import ReplicaSource
from programs.hostility import ALL_WAYS, WAYS, area_of, compiled_hostile, harm

ROUNDS = int(os.environ.get("MEMSAMPD_HOSTILE_BURSTS", "40"))
# The system calls that a replica may make: it is told to make each once a burst. Of madvise it may
# use one advice only.
PAUSE, MADVISE = 34, 28
DONTNEED = 4


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The program, and where its replica has the translator's area."""
    program = compiled_hostile(tmp_path_factory.mktemp("hostile"))
    return program, area_of(program)


@pytest.mark.parametrize("way", [*range(WAYS), ALL_WAYS])
def test_memsampd_and_the_target_live(way: int, hostile: tuple[Path, int]) -> None:
    _, problems = harm(*hostile, way, ROUNDS)
    assert problems == []


def _is_counting(perf: int) -> bool:
    folder = Path(f"/proc/{perf}/fd")
    links = []
    for each in folder.iterdir():
        with suppress(OSError):
            links.append(os.readlink(each))
    return any("perf_event" in link for link in links)


def _calls_of_a_replica(pid: int) -> tuple[int, int, int]:
    """Take bursts of a process: how often its replica paused, made other calls, took other advice.

    Counted by the kernel's own trace points, from when the replica is ready.
    """
    with closing(ReplicaSource(pid)) as source:
        (replica,) = (pid for pid, _, name in children(os.getpid()) if name == "memsampd-replic")
        command = ["perf", "stat", "-x,", "-p", str(replica), "-e", "syscalls:sys_enter_pause"]
        command += [
            "-e",
            "raw_syscalls:sys_enter",
            "--filter",
            f"id != {PAUSE} && id != {MADVISE}",
            *("-e", "syscalls:sys_enter_madvise", "--filter", f"behavior != {DONTNEED}"),
        ]
        with running(*command, stderr=subprocess.PIPE) as perf:
            while not _is_counting(perf.pid):
                if perf.poll() is not None:
                    pytest.skip("the kernel's trace points cannot be read")
                time.sleep(0.01)
            for number in range(ROUNDS):
                with suppress(CaptureError):
                    source.capture(BurstRequest(pid, (2000, 100_000)[number % 2], 0.02))
            perf.send_signal(signal.SIGINT)
            assert perf.stderr is not None
            lines = [line.split(",") for line in perf.stderr.read().splitlines() if "," in line]
    pauses, others, advised = (int(line[0]) for line in lines)
    return pauses, others, advised


@pytest.mark.parametrize("way", [8, ALL_WAYS], ids=["calls", "all"])
def test_its_replica_makes_no_call(way: int, hostile: tuple[Path, int]) -> None:
    """One that ended in its first burst has made none at all, so that of another one is asked."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    program, area = hostile
    with running(program, hex(area), str(way)) as target:
        pauses = 0
        while not pauses:
            pauses, others, advised = _calls_of_a_replica(target.pid)
            assert (others, advised) == (0, 0)
