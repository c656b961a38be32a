"""``memsampd store``, on a store with some profiles."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from memsampd.cli.main import main
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.store.file import VERSION
from memsampd.daemon.store.keys import ProgramKey
from memsampd.daemon.store.profiles import Profile, StoredBurst
from memsampd.phases.records import Leader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    store = ProfileStore(tmp_path / "store")
    for number in range(3):
        key = ProgramKey(bytes([number]) * 20, "boot/1/2", 1000, f"job\x1b{number}", "/bin/job")
        bursts = (StoredBurst(0, 1e9, 10, b"x" * 2048),) * (number + 1)
        store.save(key, Profile((Leader(0, np.ones(4), 1.0, 1),), bursts), 1e9 + number)
    store.close()
    return tmp_path / "store"


def test_profiles_are_listed_the_latest_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "list", "--file", str(file)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "ID",
        "COMMAND",
        "USER",
        "PHASES",
        "BURSTS",
        "SIZE",
        "SAVED",
        "EXECUTABLE",
    ]
    assert [line.split()[:7] for line in lines] == [
        [str(number + 1), f"job�{number}", "1000", "1", str(number + 1), str(2 * number + 2), "KiB"]
        for number in (2, 1, 0)
    ]
    assert main(["store", "list", "--json", "--file", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["saved_unix_seconds"] for each in found] == [1e9 + 2, 1e9 + 1, 1e9]


def test_profiles_are_forgotten(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = "what is observed now is written again: detach it first"
    assert main(["store", "forget", "--id", "1", "3", "--file", str(file)]) == 0
    assert capsys.readouterr().out == f"2 profiles are forgotten; {again}\n"
    assert main(["store", "forget", "--all", "--file", str(file)]) == 0
    assert capsys.readouterr().out == f"1 profile is forgotten; {again}\n"
    assert main(["store", "list", "--file", str(file)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_who_names_a_profile_that_is_not_there_is_told_so(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "forget", "--id", "9", "1", "7", "--file", str(file)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("1 profile is forgotten;")
    assert "there is no profile 7, 9; see memsampd store list" in told.err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["forget"], 2, "say which profiles to forget; give --id or --all"),
        (["forget", "--all", "--id", "1"], 2, "say which profiles to forget"),
        (["list", "--all"], 2, "store list takes no profiles"),
        (["list", "--file", "/not/there"], 1, "there is no store at /not/there"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", *words]) == status
    assert message in capsys.readouterr().err


def test_a_newer_store_is_left_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    assert main(["store", "forget", "--all", "--file", str(file)]) == 1
    assert f"it has version 99, this memsampd knows {VERSION}" in capsys.readouterr().err
    assert file.exists()
