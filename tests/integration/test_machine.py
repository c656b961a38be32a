"""``memsampd machine`` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import MEMSAMPD
from tracees import running

from memsampd.sampler.process.cgroup import read_limits


def machine(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    return subprocess.run(
        [MEMSAMPD, "machine", *words], env=environment, capture_output=True, text=True, check=False
    )


def test_what_is_known_before_and_after_measuring(tmp_path: Path) -> None:
    before = machine(tmp_path)
    assert before.returncode == 0
    assert "processor" in before.stdout
    done = machine(tmp_path, "--measure", "--even-if-busy", "--seconds", "0.6")
    assert done.returncode == 0, done.stderr
    assert "read  by 1 thread" in done.stdout
    report = json.loads(machine(tmp_path, "--json").stdout)
    assert report["file"] == str(tmp_path / "memsampd/machine.json")
    assert report["machine"]["cpus"]
    assert ("L3 access" in before.stdout) == ("L3" in report["cache_seconds"])
    measured = report["measured"]
    assert measured["is_of_this_machine"]
    cpus = len(os.sched_getaffinity(0))
    found = {(each["operation"], each["threads"]) for each in measured["bandwidths"]}
    assert found == {(name, n) for name in ("read", "write", "copy") for n in (1, cpus)}
    assert all(each["bytes_per_second"] > 1e6 for each in measured["bandwidths"])


def test_a_busy_machine_is_not_measured(tmp_path: Path) -> None:
    is_all_ours = len(os.sched_getaffinity(0)) == os.sysconf("SC_NPROCESSORS_ONLN")
    if not is_all_ours or read_limits(os.getpid()).cpus is not None:
        pytest.skip("we may not make all CPUs of this machine busy")
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.enter_context(running(sys.executable, "-c", "while True: pass"))
        refused = machine(tmp_path, "--measure", "--seconds", "0.6")
        assert refused.returncode == 1
        assert "is busy" in refused.stderr
        assert "--even-if-busy" in refused.stderr
        assert not list(tmp_path.iterdir())
        done = machine(tmp_path, "--measure", "--even-if-busy", "--seconds", "0.6")
    assert done.returncode == 0
    assert "may be too low" in done.stderr or "would be too low" in done.stderr


def test_wrong_words(tmp_path: Path) -> None:
    for words in (("--even-if-busy",), ("--measure", "--seconds", "0"), ("-o", "x")):
        assert machine(tmp_path, *words).returncode == 2
