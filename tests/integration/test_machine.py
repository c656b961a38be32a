"""``memsampd machine`` on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import MEMSAMPD
from groups import control_group
from tracees import running
from waiting import wait_for

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


def test_not_all_cpus_are_no_peak_of_the_machine(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU only")
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(own)})  # what is started from here has it, too
        refused = machine(tmp_path, "--measure", "--seconds", "0.6")
        assert refused.returncode == 1
        assert "memsampd may use 1 of" in refused.stderr
        assert not list(tmp_path.iterdir())
        done = machine(tmp_path, "--measure", "--even-if-busy", "--seconds", "0.6")
    finally:
        os.sched_setaffinity(0, own)
    assert done.returncode == 0
    assert "memsampd: warning: memsampd may use 1 of" in done.stderr
    assert "only 1 of the CPUs could be used" in done.stdout
    assert json.loads(machine(tmp_path, "--json").stdout)["measured"]["allowed_cpus"] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_memory_limit_is_kept_to(version: int, tmp_path: Path) -> None:
    files = ("memory.limit_in_bytes", "memory.max")
    with control_group(version, "memory") as group:
        (group / files[version - 1]).write_text(f"{200 << 20}")
        asked = (
            f"echo $$ > {group}/cgroup.procs && exec {MEMSAMPD} machine --measure --even-if-busy"
        )
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
        refused = subprocess.run(
            ["sh", "-c", asked], env=environment, capture_output=True, text=True, check=False
        )
    assert refused.returncode == 1, refused.stderr
    assert "of what the control group has left" in refused.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_threads_that_may_not_be_started_do_not_leave_the_others_waiting(
    version: int, tmp_path: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU only")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with control_group(version, "pids") as group:
        (group / "pids.max").write_text("2")  # itself and one thread
        asked = (
            f"echo $$ > {group}/cgroup.procs && exec {MEMSAMPD} machine --measure --even-if-busy "
            "--seconds 0.6"
        )
        refused = subprocess.run(
            ["sh", "-c", asked], env=environment, capture_output=True, text=True, check=False
        )
    assert refused.returncode == 1, refused.stderr
    assert "there cannot be a thread on each CPU: can't start new thread" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_it_measures(tmp_path: Path) -> None:
    words = [MEMSAMPD, "machine", "--measure", "--even-if-busy", "--seconds", "600"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with running(*words, env=environment, stderr=subprocess.PIPE) as process:
        threads = Path(f"/proc/{process.pid}/task")
        wait_for(lambda: len(list(threads.iterdir())) > 1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert (process.returncode, "error" in told) == (130, False), told
    assert not list(tmp_path.iterdir())


def test_wrong_words(tmp_path: Path) -> None:
    for words in (("--even-if-busy",), ("--measure", "--seconds", "0"), ("-o", "x")):
        assert machine(tmp_path, *words).returncode == 2
