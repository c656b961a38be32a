"""What outlives the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from memsampd.daemon.node.state import AskedFor, StateFile

LIST = (AskedFor(7, 123, 1000, 1000), AskedFor(9, 456, 0, 0))


def test_what_is_kept_is_read_again_in_the_same_boot(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    assert StateFile(directory, "boot").read() == ()
    StateFile(directory, "boot").write(LIST)
    assert StateFile(directory, "boot").read() == LIST
    assert StateFile(directory, "another boot").read() == ()
    assert StateFile(directory).read() == ()


@pytest.mark.parametrize("text", ["", "{", '{"version":1,"boot_id":"boot","asked_for":[]}', "[]"])
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "targets.json").write_text(text)
    state = StateFile(tmp_path, "boot")
    assert state.read() == ()
    assert (tmp_path / "targets.unusable").read_text() == text
    state.write(LIST)
    assert state.read() == LIST


def test_a_directory_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    state = StateFile(tmp_path / "file", "boot")
    assert state.read() == ()
    state.write(LIST)
    state.write(LIST)
    assert "cannot be written: File exists" in state.trouble
    assert sum("cannot be written" in each.getMessage() for each in caplog.records) == 1
