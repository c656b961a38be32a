"""What people see first: attach on a terminal and as JSON, advice on live processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from commands import MEMSAMPD, memsampd
from daemons import daemon, rule
from tracees import BUSY, running, sleeping

from memsampd.cli.main import main

SCHEMA = Path(__file__).parents[2] / "docs" / "events.schema.json"
# Names itself so that a terminal that shows the name turns red, or shows a line of its own.
STRANGE = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x1b[31mred\\nline')\n" + BUSY


def on_a_terminal(*words: str) -> str:
    """Run memsampd on a terminal of its own; everything that it wrote there."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(MEMSAMPD, [MEMSAMPD, *words])
    shown = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    return shown.decode()


def test_attach_says_first_of_all_that_it_works_and_what_it_waits_for() -> None:
    with sleeping() as asleep:
        shown = on_a_terminal("attach", str(asleep.pid), "--no-listen", "--duration", "2")
    assert shown.startswith(f"memsampd: attaching to process {asleep.pid}\r\n")
    assert "step 1 of 3: waiting for the target to use CPU time" in shown


def test_attach_prints_what_its_schema_describes() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    with (
        running(sys.executable, "-c", BUSY) as busy,
        running(MEMSAMPD, "attach", str(busy.pid), "--json", "--no-listen") as attach,
    ):
        assert attach.stdout is not None
        curves = 0
        for line in attach.stdout:
            validator.validate(window := json.loads(line))
            curves += window["miss_ratio"] is not None
            if curves == 5:
                attach.terminate()
        assert attach.wait() == 0
    assert curves >= 5


def test_a_name_from_outside_does_nothing_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def observing(*words: str | Path | int) -> str:
        done = memsampd(*words)
        # A machine may be so busy that there was no burst in a second.
        assert done.returncode == 0 or "observe them for longer" in done.stderr, done.stderr
        return done.stdout + done.stderr

    def said(*words: str | Path | int) -> str:
        """What those say that observe nobody: they need no process of their own."""
        status = main([str(word) for word in words])
        told = capsys.readouterr()
        assert status == 0, told.err
        return told.out + told.err

    recording, trace = tmp_path / "recording", tmp_path / "trace"
    with running(sys.executable, "-c", STRANGE) as strange:
        pid = strange.pid
        while "red" not in Path(f"/proc/{pid}/comm").read_text():
            time.sleep(0.01)
        shown = [
            on_a_terminal("attach", str(pid), "--no-listen", "--duration", "0.3"),
            observing("attach", pid, "--no-listen", "--duration", 1, "-o", recording),
            observing("trace", "-o", trace, "--accesses", 1000, "--deadline", 100, pid),
            observing("doctor", pid),
            observing("top", "--once", "--pid", pid, "--duration", "0.3"),
            observing("advise", "--pid", pid, "--pid", pid, "--duration", 1),
        ]
        with daemon(tmp_path / "d", rule("b.x1b.31mred")) as node:
            shown += [
                said(*words, "--socket", node.socket)
                for words in (("attach", "--daemon", pid), ("list",), ("status",), ("detach", pid))
            ]
            shown.append(said("check-config", node.directory / "config.toml"))
            assert node.stop() == 0
            shown.append(node.log)
    shown += [said("report", recording), said("trace", "info", trace), said("trace", "dump", trace)]
    for words in shown:
        assert "\x1b[31m" not in words
        assert "red\nline" not in words


def test_advice_on_two_running_processes() -> None:
    told: list[int] = []
    with running(sys.executable, "-c", BUSY) as one, running(sys.executable, "-c", BUSY) as other:
        pids = [one.pid, other.pid]
        for seconds in (4, 8, 16, 32, 64, 128):  # on a busy machine few bursts come
            done = memsampd(
                *("advise", "--json", "--duration", seconds, "--cache", "4M", "--ways", 8),
                *(word for pid in pids for word in ("--pid", pid)),
            )
            if done.returncode:
                assert "no program runs of which curve and access rate are known" in done.stderr
                continue
            document = json.loads(done.stdout)
            portions = (document["division"] or {}).get("portions", [])
            told = [pid for portion in portions for pid in portion["pids"]]
            if len(told) == 2:
                break
            assert any("left out" in line for line in document["not_known"])
        assert one.poll() is None
        assert other.poll() is None
    assert sorted(told) == sorted(pids)


# It may take a while until it is attached to.
WHILE_RECORDED = """
import os, sys, time
while not os.path.exists(sys.argv[1]): sum(range(1000))
end = time.process_time() + 0.8
while time.process_time() < end: {i: str(i) for i in range(2000)}
"""


def test_a_figure_of_two_real_recordings(tmp_path: Path) -> None:
    program = (sys.executable, "-c", WHILE_RECORDED)
    paths = [tmp_path / name for name in ("before", "after")]
    for path in paths:
        subprocess.run(
            [MEMSAMPD, "run", "-o", path, "--no-listen", "--", *program, path],
            capture_output=True,
            check=True,
        )
    figure = tmp_path / "both.png"
    subprocess.run([MEMSAMPD, "report", *paths, "-o", figure], check=True)
    assert figure.read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([MEMSAMPD, "diff", *paths], capture_output=True, text=True, check=True)
    assert "not known" in done.stdout
