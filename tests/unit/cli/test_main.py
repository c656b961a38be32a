from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memsampd.cli import main as entry
from memsampd.cli.command import COMMANDS
from memsampd.cli.main import main
from memsampd.errors import CapabilityError

MEMSAMPD = [sys.executable, "-m", "memsampd.cli.main"]


class Raising:
    """A command that fails as it is told to."""

    name = "report"
    help = "fail"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        pass

    def run(self, args: argparse.Namespace) -> int:
        raise self.error


class Entry:
    name = "report"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def load(self) -> Raising:
        return Raising(self.error)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CapabilityError("no PMU", "use a\nreplica"), 1, "no PMU; use a replica"),
        (CapabilityError("process 7 (\x1b[31mred)"), 1, "process 7 (\ufffd[31mred)"),
        (MemoryError(), 1, "out of memory; free some or choose fewer sizes"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device"),
        (ZeroDivisionError("oh"), 1, "internal error: ZeroDivisionError: oh; please report it"),
    ],
)
def test_every_failure_is_one_line(
    error: Exception,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MEMSAMPD_DEBUG", raising=False)
    monkeypatch.setattr(entry, "COMMANDS", (Entry(error),))
    assert main(["report"]) == status
    shown = capsys.readouterr().err
    assert shown.startswith(f"memsampd: error: {line}")
    assert shown.count("\n") == 1
    monkeypatch.setenv("MEMSAMPD_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["report"])


def test_interrupt_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "COMMANDS", (Entry(KeyboardInterrupt()),))
    assert main(["report"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "argv", [[], ["nonsense"], ["report"], ["export", "x"], ["export", "x", "--format", "xml"]]
)
def test_wrong_usage_is_one_line_and_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("memsampd: error: ")
    assert shown.count("\n") == 1
    assert "--help" in shown


def test_a_page_needs_somewhere_to_listen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", "1", "--page", "--no-listen"]) == 2
    assert "--page and --no-listen exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("attach 1 --linger 3 --no-listen", "--linger and --no-listen exclude each other"),
        ("run --linger 3 --no-listen -- true", "--linger and --no-listen exclude each other"),
        ("attach 1 -f --no-listen", "--force without a recording"),
        ("run -f --no-listen -- true", "--force without a recording"),
        ("run -o x --events ./x -- true", "-o and --events name the same file, x"),
        ("attach 1 -f -o x --store x", "-o and --store name the same file, x"),
        ("top --duration 3", "--duration goes with --once and --pid"),
        ("top --duration 3 --once --url http://127.0.0.1:1", "--duration goes with --once"),
        ("top --duration 3 --pid 1", "--duration goes with --once and --pid"),
        ("top --once --socket x --url http://127.0.0.1:1", "both --url and --socket"),
        ("top --once --socket x --pid 1", "both --socket and --pid"),
        ("advise x --duration 3", "--duration goes with --pid"),
        ("advise x --force", "--force goes with --apply"),
        ("advise --pid 1 --cache 1M --ways 8 --duration nan", "--duration nan is out of range"),
        ("machine --seconds 3", "go with --measure"),
        ("daemon --duration nan", "--duration nan is out of range"),
        ("daemon --duration -5", "--duration -5.0 is out of range"),
    ],
)
def test_options_that_nothing_would_come_of_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_no_output_replaces_its_own_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recording_path: Path
) -> None:
    linked = tmp_path / "linked.svg"
    linked.hardlink_to(recording_path)
    before = recording_path.read_bytes()
    for words in (
        ("export", "--format", "csv", recording_path, "-o", recording_path),
        ("export", "--format", "json", recording_path, "-o", linked),
        ("report", recording_path, "-o", linked),
    ):
        assert main([str(word) for word in words]) == 2
        assert "would overwrite itself; choose another name" in capsys.readouterr().err
    assert recording_path.read_bytes() == before


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("memsampd 0.")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(entry.load().help in shown for entry in COMMANDS)
    assert all(entry.load().name == entry.name for entry in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from memsampd.cli.main import main; main(['--help']);"
        "sys.exit(sorted({'numpy', 'matplotlib', 'msgspec', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_reader_that_goes_away_is_no_error(recording_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*MEMSAMPD, "report", str(recording_path)],
        stdout=write,
        check=False,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("name", ["absent", "other"])
def test_unreadable_recordings_are_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_bytes(b"\x7fELF")
    for argv in (["report"], ["export", "--format", "json"]):
        assert main([*argv, str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_commands_on_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recording_path: Path
) -> None:
    assert main(["report", str(recording_path)]) == 0
    assert "whole run" in capsys.readouterr().out
    export = ["export", str(recording_path), "--format", "json", "--sizes", "32K,1M"]
    assert main(export) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["sizes_bytes"] == [32 << 10, 1 << 20]
    out = tmp_path / "out.json"
    assert main([*export, "-o", str(out)]) == 0
    assert out.read_text() == shown
    assert main([*export, "-o", str(tmp_path / "no" / "x")]) == 1
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype")):
        figure = tmp_path / f"figure{ending}"
        assert main(["report", str(recording_path), "-o", str(figure)]) == 0
        assert figure.read_bytes().startswith(start)
    assert main(["report", str(recording_path), "-o", "x.gif"]) == 2
    assert main([*export[:-1], "12Q"]) == 2
