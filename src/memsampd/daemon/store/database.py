"""The file: an SQLite database of profiles, bounded, and never in the way of observation."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from memsampd.daemon.store.keys import ProgramKey
from memsampd.daemon.store.profiles import (
    MOST_PHASES,
    PROFILE_BURSTS,
    Profile,
    StoredBurst,
    pack_hits,
    unpack_leader,
)
from memsampd.phases.records import Leader

logger = logging.getLogger(__name__)
T = TypeVar("T")

FILE_NAME = "profiles.sqlite"
VERSION = 2
_APPLICATION_ID = 0x6D656D73  # "mems"
_PAGE_BYTES = 4096
_BUSY_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0
_PAST_PATIENCE_SECONDS = 1.0  # it is asked for when a profile has been read
_AGAIN_SECONDS = 300.0  # after a failure that may pass
_LEAST_BYTES = 1 << 20
_FILLED = 0.8  # of its size, by profiles: the rest is for indices and pages that are half empty
_KEPT_LOG_BYTES = 1 << 20

_MOST_PASTS = 500
_PAST_SECONDS = 86_400.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS profile (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    process TEXT NOT NULL,
    uid INTEGER NOT NULL,
    command TEXT NOT NULL,
    executable TEXT NOT NULL,
    cpu TEXT NOT NULL,
    saved_unix_seconds REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS profile_by_age ON profile (saved_unix_seconds);
CREATE TABLE IF NOT EXISTS phase (
    profile INTEGER NOT NULL REFERENCES profile ON DELETE CASCADE,
    phase INTEGER NOT NULL,
    windows INTEGER NOT NULL,
    remembered REAL NOT NULL,
    hits BLOB NOT NULL,
    PRIMARY KEY (profile, phase)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS burst (
    profile INTEGER NOT NULL REFERENCES profile ON DELETE CASCADE,
    phase INTEGER NOT NULL,
    taken_unix_seconds REAL NOT NULL,
    accesses INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS burst_by_profile ON burst (profile);
CREATE TABLE IF NOT EXISTS past (
    process TEXT PRIMARY KEY,
    uid INTEGER NOT NULL,
    profile_unix_seconds REAL NOT NULL,
    saved_unix_seconds REAL NOT NULL,
    frame BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """A profile in a list.

    Attributes:
        id: its number in the file.
        command: short name of the program.
        executable: its path.
        uid: whose process it was.
        phases: how many.
        bursts: how many.
        saved_unix_seconds: when it was written last.
        size_bytes: what its bursts take.
    """

    id: int
    command: str
    executable: str
    uid: int
    phases: int
    bursts: int
    saved_unix_seconds: float
    size_bytes: int


class StoreUnusableError(Exception):
    """The file is no store of this version; the message says why."""


class ProfileStore:
    """Profiles in a file. Whatever is wrong with it is said, and observation goes on without.

    One thread of its own does all that touches the file, as a disk may take its time.

    Args:
        path: the file; its directory is made if it is not there.
        most_bytes: the file grows to this size; the profiles written longest ago go first.
        sets_aside: a file that cannot be used is renamed, and another one begun.
        now: monotonic time in seconds.

    Attributes:
        trouble: why nothing is kept, or known again; empty if all is well.
    """

    def __init__(
        self,
        path: Path,
        most_bytes: int = 64 << 20,
        *,
        sets_aside: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        self._path = path
        self._most_bytes = max(most_bytes, _LEAST_BYTES)
        self._sets_aside = sets_aside
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._again_seconds = -float("inf")
        self._worker = ThreadPoolExecutor(1, "store")

    # -- for others ----------------------------------------------------------------------------

    def find(self, key: ProgramKey, bins: int) -> Profile | None:
        """Look a program up.

        Args:
            key: the program; a profile of one process is found for that one only.
            bins: length of the branch vectors of phases.

        Returns:
            None if there is none.
        """
        asked = self._worker.submit(self._try, lambda file: _find(file, key, bins))
        try:
            return asked.result(_PATIENCE_SECONDS)
        except TimeoutError:
            logger.warning("%s takes too long to be read: nothing is known again", self._path)
            return None

    def save(self, key: ProgramKey, profile: Profile, saved_unix_seconds: float) -> None:
        """Keep a profile in place of what was known of the program; soon, and if it can be done."""
        self._worker.submit(
            self._try, lambda file: self._save(file, key, profile, saved_unix_seconds)
        )

    def find_past(self, key: ProgramKey) -> tuple[float, bytes] | None:
        """Look up what a process did.

        Returns:
            When the profile was written whose phases it names, and the past; None: there is none.
        """
        asked = self._worker.submit(self._try, lambda file: _find_past(file, key))
        try:
            return asked.result(_PAST_PATIENCE_SECONDS)
        except TimeoutError:
            logger.warning("%s takes too long to be read: what was seen is not known", self._path)
            return None

    def save_past(
        self, key: ProgramKey, profile_unix_seconds: float, frame: bytes, saved_unix_seconds: float
    ) -> None:
        """Keep what a process did; soon, and if it can be done."""
        self._worker.submit(
            self._try,
            lambda file: self._save_past(
                file, key, profile_unix_seconds, frame, saved_unix_seconds
            ),
        )

    def list(self) -> list[ProfileLine]:
        """All profiles, the latest first."""
        return self._worker.submit(self._try, _list).result() or []

    def forget(self, ids: tuple[int, ...] | None) -> int:
        """Delete some profiles, or all; returns how many there were."""
        return self._worker.submit(self._try, lambda file: _forget(file, ids)).result() or 0

    def close(self) -> None:
        """Write what is to be written, and let go of the file; may be called twice."""
        with suppress(RuntimeError):  # it was closed before
            self._worker.submit(self._close)
        self._worker.shutdown()

    # -- in the thread -------------------------------------------------------------------------

    def _try(self, what: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do something with the file; None where that fails."""
        if self.trouble and self._now() < self._again_seconds:
            return None
        try:
            try:
                done = what(self._opened())
            except StoreUnusableError as error:
                self._set_aside(str(error))
                done = what(self._opened())
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._set_aside(str(error))
                done = what(self._opened())
        except (OSError, sqlite3.Error, StoreUnusableError) as error:
            self._close()
            self._fail(f"{self._path} cannot be used: {_words(error)}")
            return None
        except Exception as error:  # of what is in it: the sampler goes on
            self._close()
            self._fail(f"{self._path} cannot be used: {error!r}")
            logger.debug("the store failed", exc_info=True)
            return None
        if self.trouble:
            logger.info("%s can be used again", self._path)
        self.trouble = ""
        return done

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_file(self._path)
            self._connection = connected(self._path)
            try:
                _prepare_patiently(self._connection, self._most_bytes)
            except BaseException:
                self._close()
                raise
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _fail(self, trouble: str) -> None:
        self._again_seconds = self._now() + _AGAIN_SECONDS
        if trouble != self.trouble:
            logger.warning("%s; profiles are not kept, nor known again", trouble)
        self.trouble = trouble

    def _set_aside(self, why: str) -> None:
        """Rename the file, with its log: another one begins.

        Raises:
            StoreUnusableError: that is not wanted.
        """
        self._close()
        if not self._sets_aside:
            raise StoreUnusableError(why)
        aside = self._path.with_name(f"{self._path.name}.unusable")
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{aside}{suffix}")
        logger.warning("%s cannot be used (%s): it is %s now", self._path, why, aside)

    def _save(
        self, file: sqlite3.Connection, key: ProgramKey, profile: Profile, saved: float
    ) -> None:
        needed = sum(len(each.frame) for each in profile.bursts)
        _shrink(file, int(self._most_bytes * _FILLED) - needed)
        with file:
            _write(file, key, profile, saved)

    def _save_past(
        self, file: sqlite3.Connection, key: ProgramKey, profile: float, frame: bytes, saved: float
    ) -> None:
        _shrink(file, int(self._most_bytes * _FILLED) - len(frame))
        with file:
            file.execute(
                "INSERT OR REPLACE INTO past VALUES (?, ?, ?, ?, ?)",
                (key.process, key.uid, profile, saved, frame),
            )
            file.execute(
                "DELETE FROM past WHERE saved_unix_seconds < ? OR process IN"
                " (SELECT process FROM past ORDER BY saved_unix_seconds DESC LIMIT -1 OFFSET ?)",
                (saved - _PAST_SECONDS, _MOST_PASTS),
            )


def check_file(path: Path) -> None:
    """Whoever can write there could have us believe anything: nobody else may.

    Raises:
        OSError: the file, or its directory, is another user's, or others may write to it.
    """
    directory = path.parent.lstat() if path.parent != Path() else os.stat(".")
    is_shared = bool(directory.st_mode & 0o022) and not directory.st_mode & stat.S_ISVTX
    if directory.st_uid not in (0, os.geteuid()) or is_shared:
        raise PermissionError(1, "others may write to its directory (chmod go-w)")
    for suffix in ("", "-wal", "-shm"):
        try:
            status = os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(1, "it is no plain file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(1, "it is another user's, or others may write to it")


def connected(path: Path) -> sqlite3.Connection:
    """Open a file, for us alone to read."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    file = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    for limit, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, 16 << 20),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):
        file.setlimit(limit, most)
    return file


def prepare(file: sqlite3.Connection, most_bytes: int) -> None:
    """Make a new file a store; see that an old one is a store of this version.

    Raises:
        StoreUnusableError: it is not.
        sqlite3.Error: it cannot be read.
    """
    file.execute("BEGIN")  # another process may be making it a store: all of that is seen, or none
    (tables,) = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (version,) = file.execute("PRAGMA user_version").fetchone()
    (application,) = file.execute("PRAGMA application_id").fetchone()
    file.rollback()
    is_new = not tables and not version
    if not is_new and application != _APPLICATION_ID:
        raise StoreUnusableError("it is no store of memsampd's")
    if not is_new and version != VERSION:
        raise StoreUnusableError(f"it has version {version}, this memsampd knows {VERSION}")
    if is_new:
        file.execute("PRAGMA auto_vacuum = INCREMENTAL")
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        f"journal_size_limit = {_KEPT_LOG_BYTES}",
        f"max_page_count = {most_bytes // _PAGE_BYTES}",
        "cache_size = -512",
    ):
        file.execute(f"PRAGMA {pragma}").fetchall()
    if is_new:
        with file:
            file.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id = {_APPLICATION_ID};"
                f"PRAGMA user_version = {VERSION};COMMIT;"
            )


def _prepare_patiently(file: sqlite3.Connection, most_bytes: int) -> None:
    """Prepare it though others may do so now: SQLite does not wait to change the journal's mode."""
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            prepare(file, most_bytes)
            return
        except sqlite3.OperationalError as error:
            is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > give_up:
                raise
            file.rollback()
            time.sleep(0.05)


def _find(file: sqlite3.Connection, key: ProgramKey, bins: int) -> Profile | None:
    row = file.execute(
        "SELECT id, process, cpu, saved_unix_seconds FROM profile WHERE key = ? AND uid = ?",
        (key.digest, key.uid),
    ).fetchone()
    if row is None:
        return None
    number, process, cpu, saved = row
    if process not in ("", key.process):
        return None
    leaders = []
    for each in file.execute(
        "SELECT phase, hits, remembered, windows FROM phase WHERE profile = ? LIMIT ?",
        (number, MOST_PHASES),
    ):
        try:
            leaders.append(unpack_leader(*each, bins=bins))
        except ValueError as error:
            logger.warning("a phase in the store cannot be used: %s", error)
    bursts = [
        StoredBurst(*each)
        for each in file.execute(
            "SELECT phase, taken_unix_seconds, accesses, frame FROM burst WHERE profile = ?"
            " ORDER BY taken_unix_seconds LIMIT ?",
            (number, PROFILE_BURSTS),
        )
    ]
    return Profile(tuple(leaders), tuple(bursts), process, cpu, saved)


def _find_past(file: sqlite3.Connection, key: ProgramKey) -> tuple[float, bytes] | None:
    row: tuple[float, bytes] | None = file.execute(
        "SELECT profile_unix_seconds, frame FROM past WHERE process = ? AND uid = ?",
        (key.process, key.uid),
    ).fetchone()
    return row


def _write(file: sqlite3.Connection, key: ProgramKey, profile: Profile, saved: float) -> None:
    file.execute("DELETE FROM profile WHERE key = ?", (key.digest,))
    number = file.execute(
        "INSERT INTO profile (key, process, uid, command, executable, cpu, saved_unix_seconds)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            key.digest,
            profile.process,
            key.uid,
            key.command,
            key.executable,
            profile.cpu,
            saved,
        ),
    ).lastrowid
    file.executemany(
        "INSERT INTO phase (profile, phase, windows, remembered, hits) VALUES (?, ?, ?, ?, ?)",
        [_phase_row(number, leader) for leader in profile.leaders],
    )
    file.executemany(
        "INSERT INTO burst (profile, phase, taken_unix_seconds, accesses, frame)"
        " VALUES (?, ?, ?, ?, ?)",
        [
            (number, each.phase, each.taken_unix_seconds, each.accesses, each.frame)
            for each in profile.bursts
        ],
    )


def _phase_row(number: int | None, leader: Leader) -> tuple[object, ...]:
    return number, leader.phase, leader.windows, leader.remembered, pack_hits(leader)


def _list(file: sqlite3.Connection) -> list[ProfileLine]:
    rows = file.execute(
        "SELECT id, command, executable, uid,"
        " (SELECT count(*) FROM phase WHERE profile = profile.id),"
        " count(burst.phase), saved_unix_seconds, coalesce(sum(length(frame)), 0)"
        " FROM profile LEFT JOIN burst ON burst.profile = profile.id"
        " GROUP BY profile.id ORDER BY saved_unix_seconds DESC"
    )
    return [ProfileLine(*row) for row in rows]


def _forget(file: sqlite3.Connection, ids: tuple[int, ...] | None) -> int:
    with file:
        if ids is None:
            count = file.execute("DELETE FROM profile").rowcount
            file.execute("DELETE FROM past")
        else:
            count = sum(_forget_one(file, each) for each in ids)
    _give_back(file)
    return count


def _forget_one(file: sqlite3.Connection, id: int) -> int:
    """Delete a profile, and what processes did whose phases it names."""
    file.execute(
        "DELETE FROM past WHERE profile_unix_seconds IN"
        " (SELECT saved_unix_seconds FROM profile WHERE id = ?)",
        (id,),
    )
    return file.execute("DELETE FROM profile WHERE id = ?", (id,)).rowcount


def _forget_oldest(file: sqlite3.Connection) -> bool:
    """Delete a past, or where there is none a profile: the one that was written longest ago.

    Returns:
        Whether there was one.
    """
    with file:
        past = file.execute(
            "DELETE FROM past WHERE process ="
            " (SELECT process FROM past ORDER BY saved_unix_seconds LIMIT 1)"
        )
        if past.rowcount > 0:
            return True
        done = file.execute(
            "DELETE FROM profile WHERE id ="
            " (SELECT id FROM profile ORDER BY saved_unix_seconds LIMIT 1)"
        )
    return done.rowcount > 0


def _shrink(file: sqlite3.Connection, most_bytes: int) -> None:
    """Delete the oldest profiles until the others need no more than that."""

    def used_bytes() -> int:
        (pages,) = file.execute("PRAGMA page_count").fetchone()
        (free,) = file.execute("PRAGMA freelist_count").fetchone()
        return int(pages - free) * _PAGE_BYTES

    is_full = used_bytes() > most_bytes
    while used_bytes() > most_bytes and _forget_oldest(file):
        pass
    if is_full:
        _give_back(file)


def _give_back(file: sqlite3.Connection) -> None:
    """Return pages that are free to the file system."""
    file.executescript("PRAGMA incremental_vacuum")  # execute() would return one of them


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is no database, or a damaged one."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
