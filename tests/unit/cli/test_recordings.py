"""``report``, ``export`` and ``diff``: several recordings, and ones that lack their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invented import write_recording

from memsampd.cli.main import main


@pytest.fixture
def truncated(tmp_path: Path, recording_path: Path) -> Path:
    path = tmp_path / "truncated"
    path.write_bytes(recording_path.read_bytes()[:-200])
    return path


@pytest.mark.parametrize(
    "arguments", [("report",), ("export", "--format", "csv"), ("diff", "WHOLE")]
)
def test_a_truncated_recording_is_shown_and_is_a_failure(
    arguments: tuple[str, ...],
    truncated: Path,
    recording_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [str(recording_path) if each == "WHOLE" else each for each in arguments]
    assert main([*argv, str(truncated)]) == 1
    shown = capsys.readouterr()
    assert shown.out
    assert "truncated after" in shown.err
    assert "--partial" in shown.err
    assert main([*argv, "--partial", str(truncated)]) == 0
    assert capsys.readouterr().err == ""


def test_a_figure_of_a_truncated_recording_is_a_failure_too(
    truncated: Path, tmp_path: Path
) -> None:
    figure = tmp_path / "figure.png"
    assert main(["report", str(truncated), "-o", str(figure)]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["report", str(truncated), "-o", str(figure), "--partial"]) == 0


def test_several_recordings_one_after_the_other_and_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(write_recording(tmp_path / name, command=name)) for name in ("old", "new")]
    assert main(["report", *paths]) == 0
    shown = capsys.readouterr().out
    assert shown.index("old (pid") < shown.index("new (pid")
    assert main(["report", *paths, "-o", str(tmp_path / "both.svg")]) == 0
    assert main(["report", *paths, "-o", str(tmp_path / "both.html")]) == 2
    assert "a page shows one recording" in capsys.readouterr().err


def test_diff_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(write_recording(tmp_path / name)) for name in ("old", "new")]
    assert main(["diff", *paths]) == 0
    assert "not known to differ" in capsys.readouterr().out
    assert main(["diff", *paths, "--json", "--sizes", "32K,1M"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes_bytes"] == [32 << 10, 1 << 20]
