"""Files that are to be made: what refuses them, and when."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from memsampd.errors import TraceError
from memsampd.exporters.files import TRACE, check_new, open_new


def test_a_look_beforehand_leaves_all_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("of yesterday")
    before = old.stat()
    check_new(tmp_path / "new", TRACE, overwrite=False)
    check_new(old, TRACE, overwrite=True)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "of yesterday"
    assert old.stat().st_mtime_ns == before.st_mtime_ns


def test_a_look_beforehand_follows_a_link_to_nothing_and_makes_nothing(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nothing")
    check_new(link, TRACE, overwrite=True)
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_look_beforehand_leaves_what_others_make_meanwhile(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = tmp_path / "file", os.open

    def open_after_others(*words: Any) -> int:
        path.write_text("of others")
        return really_open(*words)

    monkeypatch.setattr(os, "open", open_after_others)
    with nullcontext() if overwrite else pytest.raises(TraceError, match="exists already"):
        check_new(path, TRACE, overwrite)
    assert path.read_text() == "of others"


def test_a_look_beforehand_does_not_wait_for_the_reader_of_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_new(pipe, TRACE, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_look_beforehand_refuses_what_opening_refuses(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "where", tmp_path / "file" / "x", tmp_path):
        causes = []
        for use in (check_new, open_new):
            with pytest.raises(TraceError) as caught:
                use(path, TRACE, overwrite)
            causes.append(caught.value.cause)
        assert causes[0] == causes[1]
