"""The file of the store: whose it has to be, and that it is an SQLite database of this version."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import Path

from memsampd.daemon.store.tables import PAGE_BYTES, SCHEMA
from memsampd.errors import MemsampdError

FILE_NAME = "profiles.sqlite"
VERSION = 2
_APPLICATION_ID = 0x6D656D73  # "mems"
_SQLITE_HEAD, _ID_BYTES = b"SQLite format 3\0", slice(68, 72)  # of its file format, section 1.3
_BUSY_SECONDS = 2.0
_KEPT_LOG_BYTES = 1 << 20


class StoreUnusableError(Exception):
    """The file is no store of this version; the message says why."""


def is_store(path: Path) -> bool:
    """Whether a file's header says that it is a store of memsampd's, of whatever version.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_ID_BYTES.stop)
    is_ours = head[_ID_BYTES] == _APPLICATION_ID.to_bytes(4, "big")
    return is_ours and head.startswith(_SQLITE_HEAD)


def check_named(path: Path) -> None:
    """See beforehand that a file which a user names is a store, or still to be made one.

    Raises:
        MemsampdError: it is something else.
    """
    try:
        is_other = path.stat().st_size > 0 and not is_store(path)
    except OSError:  # who opens it says why
        return
    if is_other:
        raise MemsampdError(f"{path} is no store of memsampd's", "name another file")


def check_file(path: Path) -> None:
    """Whoever can write there could have us believe anything: nobody else may.

    Raises:
        OSError: the file, or its directory, is another user's, or others may write to it.
    """
    directory = path.parent.lstat() if path.parent != Path() else os.stat(".")
    is_shared = bool(directory.st_mode & 0o022) and not directory.st_mode & stat.S_ISVTX
    if directory.st_uid not in (0, os.geteuid()) or is_shared:
        raise PermissionError(1, "others may write to its directory (chmod go-w)")
    for suffix in ("", "-wal", "-shm", "-journal"):  # all that SQLite would believe
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
        # Before it has a log: whatever happens, the file's header says what it is (is_store).
        with file:
            file.executescript(
                f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA application_id = {_APPLICATION_ID};"
                f"PRAGMA user_version = {VERSION};COMMIT;"
            )
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        f"journal_size_limit = {_KEPT_LOG_BYTES}",
        f"max_page_count = {most_bytes // PAGE_BYTES}",
        "cache_size = -512",
    ):
        file.execute(f"PRAGMA {pragma}").fetchall()


def prepare_patiently(file: sqlite3.Connection, most_bytes: int) -> None:
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


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is no database, or a damaged one."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
