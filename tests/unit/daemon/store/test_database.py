"""The file: what is kept is found again, and whatever happens to it, nothing else stops."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from invented import burst_record
from waiting import PATIENCE_SECONDS

from memsampd.daemon.store import database
from memsampd.daemon.store.database import ProfileStore
from memsampd.daemon.store.file import VERSION, check_named, connected, is_store, prepare
from memsampd.daemon.store.keys import ProgramKey
from memsampd.daemon.store.profiles import Profile, StoredBurst, pack_burst, unpack_burst
from memsampd.errors import MemsampdError
from memsampd.phases.records import Leader

BINS = 8
KEY = ProgramKey(b"k" * 20, "boot/7/1", 1000, "sort", "/usr/bin/sort")
BURSTS = tuple(
    StoredBurst(at % 2, 1e9 + at, 3000, pack_burst(burst_record(at % 2, at, 3000)))
    for at in range(4)
)
LEADERS = tuple(
    Leader(phase, np.arange(BINS, dtype=np.float64) + phase, 2.5, 40) for phase in range(2)
)
PROFILE = Profile(LEADERS, BURSTS, "", "a processor")


def key_of(number: int) -> ProgramKey:
    return msgspec.structs.replace(KEY, digest=number.to_bytes(20, "little"))


def same(one: Profile, other: Profile) -> bool:
    leaders = all(
        (mine.phase, mine.remembered, mine.windows) == (its.phase, its.remembered, its.windows)
        and np.array_equal(mine.hits, its.hits)
        for mine, its in zip(one.leaders, other.leaders, strict=True)
    )
    return leaders and replace(one, leaders=()) == replace(other, leaders=())


def saved(
    path: Path, profile: Profile = PROFILE, key: ProgramKey = KEY, *, owns_path: bool = False
) -> None:
    store = ProfileStore(path, owns_path=owns_path)
    store.save(key, profile, 5.0)
    store.close()
    assert store.trouble == ""


def found(path: Path, key: ProgramKey = KEY, *, owns_path: bool = False) -> Profile | None:
    store = ProfileStore(path, owns_path=owns_path)
    told = store.find(key, BINS)
    store.close()
    return told


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "store"
    assert found(path) is None
    saved(path)
    profile = found(path)
    assert profile is not None
    assert same(profile, PROFILE)
    assert path.stat().st_mode & 0o077 == 0
    later = replace(PROFILE, bursts=BURSTS[:1], leaders=LEADERS[:1], cpu="another")
    saved(path, later)
    profile = found(path)
    assert profile is not None
    assert same(profile, later)
    store = ProfileStore(path)
    (line,) = store.list()
    assert (line.command, line.uid, line.phases, line.bursts) == ("sort", 1000, 1, 1)
    assert store.forget((line.id + 1,)) == 0
    assert store.forget((line.id,)) == 1
    assert store.list() == []
    store.close()


def test_nobody_is_told_what_another_s_program_does(tmp_path: Path) -> None:
    saved(tmp_path / "store")
    assert found(tmp_path / "store", msgspec.structs.replace(KEY, uid=1001)) is None
    assert found(tmp_path / "store", msgspec.structs.replace(KEY, digest=b"j" * 20)) is None
    assert found(tmp_path / "store", msgspec.structs.replace(KEY, process="boot/8/1")) is not None


def test_a_profile_of_one_process_is_known_to_that_one_only(tmp_path: Path) -> None:
    saved(tmp_path / "store", replace(PROFILE, process=KEY.process))
    assert found(tmp_path / "store", msgspec.structs.replace(KEY, process="boot/8/1")) is None
    assert found(tmp_path / "store") is not None


def spoil(path: Path, how: str) -> None:
    """Make a store what cannot be used."""
    data = bytearray(path.read_bytes())
    if how == "nonsense":
        path.write_bytes(b"what is this?" * 1000)
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "overwritten":
        data[4096:] = os.urandom(len(data) - 4096)
        path.write_bytes(data)
    else:
        path.unlink(missing_ok=how == "another's")
        with sqlite3.connect(path) as file:
            file.execute("CREATE TABLE profile (id)")
            if how == "newer":
                file.execute("PRAGMA application_id = 0x6D656D73")
                file.execute(f"PRAGMA user_version = {VERSION + 1}")
        file.close()


@pytest.mark.parametrize(
    ("how", "owns_path"),
    [
        ("cut", False),
        ("overwritten", False),
        ("newer", False),
        ("nonsense", True),
        ("another's", True),
    ],
)
def test_a_store_that_cannot_be_used_is_set_aside(
    tmp_path: Path, how: str, owns_path: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    saved(path)
    spoil(path, how)
    before = path.read_bytes()
    assert found(path, owns_path=owns_path) is None
    saved(path, owns_path=owns_path)
    assert found(path, owns_path=owns_path) is not None
    assert (tmp_path / "store.unusable").read_bytes() == before
    (message,) = {each.getMessage() for each in caplog.records if each.levelname == "WARNING"}
    assert "cannot be used" in message
    assert message.endswith("store.unusable now")
    if how == "newer":
        assert f"it has version {VERSION + 1}, this memsampd knows {VERSION}" in message


@pytest.mark.parametrize("how", ["nonsense", "another's"])
def test_a_file_that_may_be_somebody_else_s_stays_where_it_is(tmp_path: Path, how: str) -> None:
    path = tmp_path / "notes.txt"
    saved(path)
    spoil(path, how)
    before = path.read_bytes()
    store = ProfileStore(path)
    store.save(KEY, PROFILE, 5.0)
    assert store.find(KEY, BINS) is None
    assert f"{path} cannot be used" in store.trouble
    store.close()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["notes.txt"]
    with pytest.raises(MemsampdError, match="is no store of memsampd's; name another file"):
        check_named(path)


def test_what_is_in_the_way_of_a_store_that_is_set_aside_is_not_replaced(tmp_path: Path) -> None:
    path, aside = tmp_path / "store", tmp_path / "store.unusable"
    aside.write_text("not at all")
    saved(path)
    spoil(path, "newer")
    before = path.read_bytes()
    store = ProfileStore(path)
    assert store.find(KEY, BINS) is None
    assert f"it has version {VERSION + 1}" in store.trouble
    assert store.trouble.endswith(f"{aside} is in the way")
    store.close()
    assert (path.read_bytes(), aside.read_text()) == (before, "not at all")
    aside.unlink()
    for _ in range(2):  # a store of ours is replaced
        assert found(path) is None
        assert aside.read_bytes() == before
        spoil(path, "newer")


def test_a_file_that_a_user_names_is_a_store_or_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    check_named(path)
    path.touch()
    check_named(path)
    saved(path)
    check_named(path)
    for other in (tmp_path, Path(__file__)):
        with pytest.raises(MemsampdError, match="is no store"):
            check_named(other)


def test_a_store_is_one_before_it_has_been_closed(tmp_path: Path) -> None:
    """What was written last is in its log: whoever is killed leaves no file that is nobody's."""
    path = tmp_path / "store"
    store = ProfileStore(path)
    assert store.find(KEY, BINS) is None
    assert is_store(path)
    store.close()


def test_who_only_looks_renames_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    saved(path)
    spoil(path, "newer")
    store = ProfileStore(path, sets_aside=False)
    assert store.list() == []
    assert "it has version" in store.trouble
    store.close()
    assert os.listdir(tmp_path) == ["store"]


def test_what_is_damaged_inside_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "store"
    saved(path)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE phase SET hits = zeroblob(64) WHERE phase = 1")
    file.close()
    profile = found(path)
    assert profile is not None
    assert [each.phase for each in profile.leaders] == [0]


def test_the_file_is_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = ProfileStore(path, 1 << 20)
    large = replace(PROFILE, bursts=(replace(BURSTS[0], frame=os.urandom(60_000)),))
    for number in range(60):
        store.save(key_of(number), large, float(number))
    kept = [number for number in range(60) if store.find(key_of(number), BINS) is not None]
    store.close()
    assert store.trouble == ""
    assert len(kept) > 5
    assert kept == list(range(60 - len(kept), 60))
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 1 << 20
    store = ProfileStore(path, 1 << 20)
    assert store.forget(None) == len(kept)
    store.close()
    assert path.stat().st_size < 100_000


def test_a_profile_too_large_for_the_file_is_not_kept(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "store", 1 << 20)
    store.save(KEY, PROFILE, 1.0)
    huge = replace(PROFILE, bursts=(replace(BURSTS[0], frame=os.urandom(3 << 20)),))
    store.save(key_of(1), huge, 2.0)
    assert store.find(key_of(1), BINS) is None
    store.close()
    assert "full" in store.trouble
    assert found(tmp_path / "store", key_of(1)) is None


def test_what_cannot_be_written_is_said_once_and_tried_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    seconds = 0.0
    store = ProfileStore(tmp_path / "file" / "store", now=lambda: seconds)
    for _ in range(5):
        is_written = store.save(KEY, PROFILE, 1.0)
        assert store.find(KEY, BINS) is None
        assert is_written.result() is False
    assert "cannot be used" in store.trouble
    assert sum(each.levelname == "WARNING" for each in caplog.records) == 1
    (tmp_path / "file").unlink()
    assert store.find(KEY, BINS) is None
    assert store.trouble
    seconds = 1000.0
    assert store.save(KEY, PROFILE, 1.0).result() is True
    assert store.find(KEY, BINS) is not None
    assert store.trouble == ""
    store.close()
    store.close()


@pytest.mark.parametrize(("place", "mode"), [("directory", 0o770), ("directory", 0o707)])
def test_nothing_is_believed_where_others_may_write(tmp_path: Path, place: str, mode: int) -> None:
    directory = tmp_path / place
    directory.mkdir(mode=0o700)
    saved(directory / "store")
    directory.chmod(mode)
    assert found(directory / "store") is None
    directory.chmod(0o700)
    (directory / "store").chmod(0o666)
    assert found(directory / "store") is None
    (directory / "store").chmod(0o600)
    assert found(directory / "store") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_nothing_is_believed_that_is_another_s(tmp_path: Path) -> None:
    saved(tmp_path / "store")
    os.chown(tmp_path / "store", 65534, 65534)
    assert found(tmp_path / "store") is None
    os.chown(tmp_path / "store", 0, 0)
    os.chown(tmp_path, 65534, 65534)
    assert found(tmp_path / "store") is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    saved(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    assert found(tmp_path / "link") is None


WRITER = """
import sys
import threading
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_database import PROFILE, ProfileStore, key_of
store = ProfileStore(Path(sys.argv[1]))
for number in range(10**6):
    store.save(key_of(number % 7), PROFILE, float(number))
    if store.find(key_of(number % 7), 8) is None:
        sys.exit(store.trouble)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_profiles(tmp_path: Path) -> None:
    path = tmp_path / "store"
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path, Path(__file__).parent, *sys.path],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(int(rng.integers(3, 40))):
            assert process.stdout.readline().strip().isdigit()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with sqlite3.connect(path) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        file.close()
        assert found(path, key_of(0)) is not None
        for number in range(7):
            profile = found(path, key_of(number))
            if profile is not None:
                assert same(profile, PROFILE)
                for burst in profile.bursts:
                    unpack_burst(burst.frame, 0, is_same_cpu=True)
    assert not (tmp_path / "store.unusable").exists()


def test_a_disk_that_takes_its_time_does_not_keep_anybody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PATIENCE_SECONDS", 0.05)
    saved(tmp_path / "store")
    store, over = ProfileStore(tmp_path / "store"), threading.Event()
    store._worker.submit(over.wait)
    for _ in range(3):  # once it is waited for it
        assert store.find(KEY, BINS) is None
        assert store.find_past(KEY) is None
    assert caplog.text.count("takes too long to be read") == 1
    over.set()
    store.list()  # what was asked before is answered
    monkeypatch.undo()
    assert store.find(KEY, BINS) is not None
    store.close()


def test_a_disk_that_hangs_does_not_fill_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, over = ProfileStore(tmp_path / "store"), threading.Event()
    store._worker.submit(over.wait)
    for number in range(database._MOST_WAITING):
        store.save(key_of(number), PROFILE, 5.0)
    assert store.trouble == ""
    assert store.save(KEY, PROFILE, 5.0).result() is False
    assert "takes too long to be written" in store.trouble
    assert store.trouble in caplog.text
    over.set()
    assert len(store.list()) == database._MOST_WAITING  # what was asked before is done
    assert store.trouble == ""
    store.save(KEY, PROFILE, 5.0)
    assert store.find(KEY, BINS) is not None
    store.close()


HANGING = """
import sys, threading
from pathlib import Path
from memsampd.daemon.store import database
database._CLOSE_SECONDS = 0.05
store = database.ProfileStore(Path(sys.argv[1]))
store._worker.submit(threading.Event().wait)
for _ in range(2):
    store.close()
print("closed:", store.trouble)
"""


def test_a_disk_that_hangs_keeps_nobody_from_ending(tmp_path: Path) -> None:
    words = (sys.executable, "-c", HANGING, tmp_path / "store")
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    told = f"closed: {tmp_path / 'store'} takes too long to be written\n"
    assert (done.returncode, done.stdout) == (0, told)


def test_two_of_them_write_to_one_file(tmp_path: Path) -> None:
    one, other = (ProfileStore(tmp_path / "store") for _ in range(2))
    for number in range(10):
        (one, other)[number % 2].save(key_of(number), PROFILE, float(number))
    for number in range(10):
        one.list()  # what was to be written is
        other.list()
        assert one.find(key_of(number), BINS) is not None
    for store in (one, other):
        store.close()
        assert store.trouble == ""


def test_one_looks_at_the_file_while_the_other_makes_it_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    one, other = connected(path), connected(path)
    other.execute("PRAGMA busy_timeout = 0")
    asked: list[str] = []

    def makes(statement: str) -> None:
        asked.append(statement)
        if len(asked) in (2, 3, 4):
            with suppress(sqlite3.OperationalError):  # the first one is looking
                prepare(other, 1 << 20)

    one.set_trace_callback(makes)
    prepare(one, 1 << 20)
    assert len(asked) > 4
    prepare(other, 1 << 20)
    for each in (one, other):
        assert each.execute("PRAGMA user_version").fetchone() == (VERSION,)
        each.close()


# -- what processes did --------------------------------------------------------------------------


def test_what_a_process_did_is_found_by_that_process_of_that_user_only(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "store")
    store.save_past(KEY, 4.0, b"frame", 5.0)
    store.save_past(KEY, 5.0, b"later", 6.0)
    assert store.find_past(KEY) == (5.0, b"later")
    after_exec = msgspec.structs.replace(KEY, digest=bytes(20))
    assert store.find_past(after_exec) == (5.0, b"later")
    assert store.find_past(msgspec.structs.replace(KEY, process="boot/7/2")) is None
    assert store.find_past(msgspec.structs.replace(KEY, uid=1001)) is None
    store.forget(None)
    assert store.find_past(KEY) is None
    store.close()


def test_what_is_forgotten_of_a_program_is_what_its_processes_did_too(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "store")
    other = msgspec.structs.replace(KEY, digest=bytes(20), process="boot/8/1")
    for key, saved_seconds in ((KEY, 5.0), (other, 6.0)):
        store.save(key, PROFILE, saved_seconds)
        store.save_past(key, saved_seconds, b"frame", 7.0)
    (id,) = (each.id for each in store.list() if each.saved_unix_seconds == 5.0)
    assert store.forget((id,)) == 1
    assert store.find_past(KEY) is None
    assert store.find_past(other) == (6.0, b"frame")
    store.close()


def test_pasts_go_after_a_day_and_before_profiles(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "store", 1 << 20)
    store.save(KEY, PROFILE, 5.0)
    keys = [msgspec.structs.replace(KEY, process=f"boot/7/{number}") for number in range(40)]
    for number, key in enumerate(keys):
        store.save_past(key, 5.0, bytes(40_000), 10.0 + number)
    assert store.find(KEY, BINS) is not None
    found = [store.find_past(key) is not None for key in keys]
    assert found[-1]
    assert not found[0]
    store.save_past(KEY, 5.0, b"frame", 1e6)
    assert store.find_past(keys[-1]) is None
    store.close()
    assert (tmp_path / "store").stat().st_size <= 1 << 20
