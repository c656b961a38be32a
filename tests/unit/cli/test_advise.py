"""``memsampd advise`` on recordings, and on an address."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from documents_server import served
from invented import make_snapshot, write_recording
from msgspec.structs import replace

from memsampd.cli.advise import AdviseCommand
from memsampd.cli.main import build_parser, main
from memsampd.errors import MemsampdError

MACHINE = ["--cache", "4MiB", "--ways", "8"]


def test_two_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(write_recording(tmp_path / name)) for name in ("one", "two")]
    assert main(["advise", *paths, *MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(portion["ways"] for portion in document["division"]["portions"]) == 8
    assert len(document["pairs"]) == 1
    assert main(["advise", *paths, *MACHINE, "--goal", "fairness"]) == 0
    assert "L3:0=" in capsys.readouterr().out
    assert main(["advise", *paths, *MACHINE]) == 0
    assert "-0.0" not in capsys.readouterr().out


def test_what_is_lost_of_a_recording_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = (write_recording(tmp_path / name) for name in ("whole", "torn"))
    torn.write_bytes(torn.read_bytes()[:-10])
    assert main(["advise", str(whole), str(torn), *MACHINE]) == 0
    assert capsys.readouterr().out.count("the recording is truncated") == 1
    assert main(["advise", str(whole), str(torn), *MACHINE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["not_known"]
    assert len([each for each in told if "the recording is truncated" in each]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--cache", "1M"], "only one of --cache and --ways"),
        (["x", "--cache", "1M", "--ways", "0"], "give 1 to 64"),
        (["x", "--cache", "1M", "--ways", "4", "--apply"], "--apply with another machine's cache"),
        (["--url", "file:///etc/passwd", *MACHINE], "no targets from"),
        (["--url", "http://127.0.0.1:1", *MACHINE], "Connection refused"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *arguments]) != 0
    assert said in capsys.readouterr().err


def test_live_targets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsampd.cli.advise._APART_SECONDS", 0.0)
    with served([make_snapshot(3, pid=pid) for pid in (11, 22)]) as url:
        assert main(["advise", "--url", url, *MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    pids = {pid for portion in document["division"]["portions"] for pid in portion["pids"]}
    assert pids == {11, 22}


def test_targets_that_are_told_seldom_are_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than 20 s, of the times of this clock."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr("memsampd.cli.advise.time", clock)
    busy = [make_snapshot(3, pid=pid) for pid in (11, 22)]
    with served(busy, seldom={22: 30}) as url:
        assert main(["advise", "--url", url, *MACHINE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    pids = {pid for portion in document["division"]["portions"] for pid in portion["pids"]}
    assert pids == {11, 22}
    idle = replace(make_snapshot(3, pid=33), idle_seconds=5.0)
    with served([*busy, idle], seldom={22: 1000, 33: 1000}) as url:
        assert main(["advise", "--url", url, *MACHINE]) == 0
    told = capsys.readouterr().out
    assert "(22) is left out: how much it runs was not told anew" in told
    assert "(33) is left out: it is idle" in told


def test_a_server_of_something_else_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with served([]) as url:
        assert main(["advise", "--url", f"{url}/elsewhere", *MACHINE]) == 1
        assert "does not answer as memsampd does" in capsys.readouterr().err
        assert main(["advise", "--url", url, *MACHINE]) == 1
        assert "no target runs" in capsys.readouterr().err


def test_a_target_that_has_ended_is_not_divided_for(tmp_path: Path) -> None:
    """On a machine of files, with resctrl mounted and no such process."""
    cache = tmp_path / "sys/devices/system/cpu/cpu0/cache/index3"
    cache.mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0\n")
    facts = {"level": 3, "type": "Unified", "size": "4M", "ways_of_associativity": 8, "id": 0}
    for name, value in facts.items():
        (cache / name).write_text(f"{value}\n")
    base = tmp_path / "sys/fs/resctrl"
    base.mkdir(parents=True)
    (base / "schemata").write_text("L3:0=ff\n")
    paths = [str(write_recording(tmp_path / name)) for name in ("one", "two")]
    args = build_parser().parse_args(["advise", *paths, "--apply"])
    command = AdviseCommand(tmp_path)
    with pytest.raises(MemsampdError, match="not known to save misses"):
        command.run(args)
    args.force = True
    with pytest.raises(MemsampdError, match="has ended"):
        command.run(args)
    assert not list(base.glob("memsampd-*"))
