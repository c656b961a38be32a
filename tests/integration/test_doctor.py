"""``memsampd doctor`` on this very machine."""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from groups import control_group, join
from tracees import sleeping

from memsampd import _core
from memsampd.cli.doctor import Doctor, as_table
from memsampd.machines.findings import Finding, State
from memsampd.machines.target_diagnosis import diagnose_target
from memsampd.sampler.perf.probes import busy_child, probe_breakpoint


def doctor(*words: str) -> int:
    command, parser = Doctor(), argparse.ArgumentParser()
    command.prepare_parser(parser)
    return command.run(parser.parse_args(words))


def test_json_and_exit_status_agree(capsys: pytest.CaptureFixture[str]) -> None:
    status = doctor("--json")
    report = json.loads(capsys.readouterr().out)
    assert report["works"] is (status == 0)
    states = {finding["name"]: finding["state"] for finding in report["findings"]}
    assert (states["backend"] == "ok") is (status == 0)
    assert set(states.values()) <= {"ok", "limited", "no"}
    assert len(report["machine"]["cpus"]) == os.sysconf("SC_NPROCESSORS_ONLN")


def test_the_table_names_each_check_once(capsys: pytest.CaptureFixture[str]) -> None:
    doctor()
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert len(names) == len(set(names))
    assert {"architecture", "ptrace", "branch samples", "backend"} <= set(names)


def test_the_lines_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    doctor("--json")
    findings = json.loads(capsys.readouterr().out)["findings"]
    told = {each["name"] for each in findings if not each["name"].startswith("PMU: ")}
    text = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    titles = re.findall(r"^\| ([^|]+) \|", text, re.M)
    documented = {name for title in titles[1:] for name in title.split(", ")}
    assert told == {name for name in documented if not name.startswith("target")}


def test_a_container_that_forbids_perf_events() -> None:
    folder = Path(__file__).parent.parent / "unit/sampler"
    code = (
        f"import sys; sys.path[:0] = {[str(folder), *sys.path]!r}\n"
        "from test_perf_refusal import deny_perf_event_open\n"
        "from memsampd.cli.doctor import Doctor\n"
        "import argparse\n"
        "deny_perf_event_open(1)\n"
        "sys.exit(Doctor().run(argparse.Namespace(pid=None, json=True)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert report["branch_source"] is None
    assert findings["branch samples"]["state"] == "no"
    assert "PERFMON" in findings["branch samples"]["remedy"]
    assert findings["seccomp"]["state"] == "limited"
    assert findings["backend"]["state"] == "no"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("prepare", "state", "remedy"),
    [
        ("pass", "ok", ""),
        ("rights.keep_only(6, 7, 19)()", "limited", "give memsampd CAP_KILL"),
        ("rights.become_nobody()", "limited", "run memsampd as root"),
    ],
)
def test_whose_the_replica_is(prepare: str, state: str, remedy: str) -> None:
    code = (
        "import argparse, test_replica_rights as rights\n"
        "from memsampd.cli.doctor import Doctor\n"
        "import memsampd.machines.diagnosis\n"  # another user may not read it here
        f"{prepare}\n"
        "Doctor().run(argparse.Namespace(pid=None, json=True))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["replica user"]["state"] == state
    assert findings["replica user"]["remedy"].startswith(remedy)
    assert ("keeps ours" in findings["replica user"]["detail"]) is (state == "limited")


def test_a_target_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with busy_child() as child:
        status = doctor("--json", str(child.pid))
    report = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding for finding in report["target"]}
    assert list(found) == ["target", "target: limits", "target: sampling", "target: bursts"]
    assert found["target"]["state"] == "ok"
    assert "of a CPU" in found["target: bursts"]["detail"]
    assert (status == 0) is report["works"]


@pytest.mark.parametrize(
    "pid", ["abc", "0", "99999999", str(os.getpid())], ids=["a word", "0", "none", "our own"]
)
def test_a_target_that_cannot_be(capsys: pytest.CaptureFixture[str], pid: str) -> None:
    assert doctor(pid) == 1
    assert "target" in capsys.readouterr().out


def test_looking_at_a_target_does_not_touch_it() -> None:
    with sleeping() as child:

        def status() -> list[str]:
            """All but the queued signals, which are those of all processes of the user."""
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            return [line for line in lines if not line.startswith("SigQ")]

        before: list[str] = []
        while not any("S (sleeping)" in line for line in before) or before != status():
            time.sleep(0.1)  # it may be asleep, and still on its way to its long sleep
            before = status()
        finding, _, sampling, bursts = diagnose_target(str(child.pid), 200_000, 0.005, 0.002, 0.01)
        after = status()
    assert finding.state is sampling.state is State.OK
    assert "a burst waits until it runs" in bursts.detail
    assert after == before  # context switches included


QUOTAS = {
    1: {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "4000"},
    2: {"cpu.max": "4000 20000"},
}


@pytest.mark.parametrize("version", QUOTAS)
def test_a_target_with_a_quota_is_said_to_wait_for_it(
    version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with control_group(version, "cpu") as group, busy_child() as child:
        for name, text in QUOTAS[version].items():
            (group / name).write_text(text)
        join(group, child.pid)
        while "nr_throttled 0" in (group / "cpu.stat").read_text():
            time.sleep(0.02)
        doctor("--json", str(child.pid))
    found = json.loads(capsys.readouterr().out)["target"][1]
    assert found["detail"].startswith("0.2 CPUs at most, granted every 0.02 s; it had to wait in")
    assert found["state"] == "limited"


def test_the_probes_tell_working_from_not_working() -> None:
    with busy_child() as child:
        # A counter is trusted for what it counts, not because it opens: this one never counts,
        # for the child writes its word and never runs it.
        fd = _core.perf_open_counter(
            child.pid, _core.PERF_TYPE_BREAKPOINT, 0, child.word_address, 8, bp_type=4
        )
        child.run(0.02)
        assert struct.unpack("QQQ", os.read(fd, 24))[0] == 0
        os.close(fd)
        assert probe_breakpoint(child).works


def test_a_busy_child_leaves_nothing() -> None:
    with busy_child() as child:
        pid = child.pid
        _core.probe_ptrace(pid)
    with pytest.raises(OSError, match="No such process"):
        _core.probe_ptrace(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_table_layout() -> None:
    table = as_table(
        (
            Finding("a", State.OK, "fine"),
            Finding("longer", State.NO, "bad " * 12, "do something"),
        ),
        width=60,
    )
    assert table == (
        "a       ok       fine\n"
        "longer  no       bad bad bad bad bad bad bad bad bad bad bad\n"
        "                 bad\n"
        "                 → do something\n"
    )
    assert "\x1b[31m" in as_table((Finding("a", State.NO, ""),), 60, color=True)
