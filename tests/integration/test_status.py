"""``memsampd status``: what an operator is told of a real daemon."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from commands import memsampd
from daemons import GENEROUS, daemon
from tracees import BUSY, running, traced
from waiting import wait_for

from memsampd.cli.main import main

NOBODY = 65534


def line_of(text: str, pid: int) -> str:
    """The line of a target in the table."""
    (found,) = (line for line in text.splitlines() if line.startswith(f"{pid} "))
    return found


def test_status_tells_how_the_daemon_and_its_targets_fare(tmp_path: Path) -> None:
    seconds = f"1{os.getpid()}"  # as nobody else sleeps
    rule = f"[[rules]]\nname = 'traced'\ncommand_line = '^sleep {seconds}$'\n"
    with (
        running(sys.executable, "-c", BUSY) as busy,
        running("sleep", seconds) as other,
        traced(other.pid) as tracer,
        daemon(tmp_path / "d", GENEROUS + rule) as running_daemon,
    ):
        running_daemon.ask("attach", pid=busy.pid)
        running_daemon.wait_for(lambda targets: targets.get(other.pid, {}).get("state") == "failed")
        known = running_daemon.wait_for(
            lambda targets: (each := targets[busy.pid]) and each.get("bursts") and each
        )
        where = ("--socket", running_daemon.socket)
        told = wait_for(  # its present phase may be one without a curve as yet
            lambda: (
                (done := memsampd("status", *where))
                and "?" not in line_of(done.stdout, busy.pid)
                and done
            )
        )
        document = json.loads(memsampd("status", "--json", *where).stdout)
        (running_daemon.directory / "config.toml").write_text("[[rules]]\n")
        running_daemon.ask("reload")
        troubled = wait_for(
            lambda: "reload: " in (text := memsampd("status", *where).stdout) and text
        )
    assert told.returncode == 0, told.stderr
    assert f"process {running_daemon.process.pid} at {running_daemon.socket}" in told.stdout
    assert "1 failed" in told.stdout
    assert "reload: " not in told.stdout
    assert "config.toml" in troubled
    row = line_of(told.stdout, busy.pid)
    for name in (cache["name"] for cache in known["caches_now"]):
        assert f"{name} %" in told.stdout
    assert f"{known['backend']['accesses']}, {known['backend']['branches']}" in row
    assert float(row.split(" s  ")[0].split()[-1]) > 0  # own CPU time
    failed = line_of(told.stdout, other.pid)
    assert "failed" in failed
    assert f"{other.pid}: failed: " in told.stdout
    assert f"is traced by process {tracer.pid} (" in told.stdout
    assert (document["version"], document["pid"]) == (1, running_daemon.process.pid)
    targets = {each["pid"]: each for each in document["targets"]}
    assert set(targets) == {busy.pid, other.pid}
    assert targets[busy.pid]["target"] == known["target"]
    assert targets[busy.pid]["own_cpu_seconds"] > 0
    assert targets[other.pid]["remedy"]


def test_a_daemon_without_targets_is_told_of(tmp_path: Path) -> None:
    with daemon(tmp_path / "d") as running_daemon:
        told = memsampd("status", "--socket", running_daemon.socket)
    assert told.returncode == 0, told.stderr
    assert "targets: none" in told.stdout
    assert "PID" not in told.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_who_may_not_connect_is_told_who_may(capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(tempfile.mkdtemp())  # one that only its owner may search
    try:
        with daemon(directory) as running_daemon:
            where = ["status", "--socket", str(running_daemon.socket)]
            assert main(where) == 0
            capsys.readouterr()
            os.seteuid(NOBODY)
            try:
                assert main(where) == 1
            finally:
                os.seteuid(0)
    finally:
        shutil.rmtree(directory)
    said = capsys.readouterr()
    assert said.out == ""
    assert "may not be connected to; ask as root" in said.err
