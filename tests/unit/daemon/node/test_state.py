"""What outlives the daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memsampd.daemon.node.state import AskedFor, StateFile

LIST = (AskedFor(7, 123, 1000, 1000), AskedFor(9, 456, 0, 0, "watchpoints", is_wish=True))


def test_what_is_kept_is_read_again_in_the_same_boot(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    assert StateFile(directory, "boot").read() == ()
    StateFile(directory, "boot").write(LIST)
    assert StateFile(directory, "boot").read() == LIST
    assert StateFile(directory, "another boot").read() == ()
    assert StateFile(directory).read() == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "\udcff\udcfe", '{"version":1,"boot_id":"boot","asked_for":[]}', "[]"],
)
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "targets.json").write_bytes(os.fsencode(text))
    state = StateFile(tmp_path, "boot")
    assert state.read() == ()
    assert (tmp_path / "targets.unusable").read_bytes() == os.fsencode(text)
    state.write(LIST)
    assert state.read() == LIST


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_nothing_is_read_where_others_may_write(tmp_path: Path, mode: int) -> None:
    StateFile(tmp_path, "boot").write(LIST)
    tmp_path.chmod(mode)
    state = StateFile(tmp_path, "boot")
    assert state.read() == ()
    assert "others may write" in state.trouble
    state.write(LIST[:1])
    tmp_path.chmod(0o700)
    assert state.read() == LIST


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_nothing_is_read_from_a_directory_of_others(tmp_path: Path) -> None:
    StateFile(tmp_path, "boot").write(LIST)
    os.chown(tmp_path, 65534, 65534)
    state = StateFile(tmp_path, "boot")
    assert state.read() == ()
    assert "another user's" in state.trouble


def test_links_are_not_followed(tmp_path: Path) -> None:
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    kept.mkdir()
    elsewhere.write_text("as it was")
    (kept / "targets.new").symlink_to(elsewhere)
    StateFile(kept, "boot").write(LIST)
    assert elsewhere.read_text() == "as it was"
    os.replace(kept / "targets.json", elsewhere)
    (kept / "targets.json").symlink_to(elsewhere)
    assert StateFile(kept, "boot").read() == ()


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
