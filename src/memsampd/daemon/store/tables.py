"""What is in the store's file: profiles with their phases and bursts, and pasts of processes."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass

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

PAGE_BYTES = 4096
_MOST_PASTS = 500
_PAST_SECONDS = 86_400.0
_FILLED = 0.8  # of its size, by profiles: the rest is for indices and pages that are half empty
SCHEMA = """
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


def find(file: sqlite3.Connection, key: ProgramKey, bins: int) -> Profile | None:
    """Look a program up: :meth:`ProfileStore.find`."""
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


def find_past(file: sqlite3.Connection, key: ProgramKey) -> tuple[float, bytes] | None:
    """Look up what a process did: :meth:`ProfileStore.find_past`."""
    row: tuple[float, bytes] | None = file.execute(
        "SELECT profile_unix_seconds, frame FROM past WHERE process = ? AND uid = ?",
        (key.process, key.uid),
    ).fetchone()
    return row


def save(
    file: sqlite3.Connection, key: ProgramKey, profile: Profile, saved: float, most_bytes: int
) -> None:
    """Keep a profile in place of what was known of the program.

    Args:
        file: the store.
        key: the program.
        profile: what is known of it.
        saved: when, unix seconds.
        most_bytes: size of the file, at the most.
    """
    needed = sum(len(each.frame) for each in profile.bursts)
    _shrink(file, int(most_bytes * _FILLED) - needed)
    with file:
        _write(file, key, profile, saved)


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


def save_past(
    file: sqlite3.Connection,
    key: ProgramKey,
    profile: float,
    frame: bytes,
    saved: float,
    most_bytes: int,
) -> None:
    """Keep what a process did.

    Args:
        file: the store.
        key: the program, and the process.
        profile: when the profile was written whose phases it names, unix seconds.
        frame: the past.
        saved: when, unix seconds.
        most_bytes: size of the file, at the most.
    """
    _shrink(file, int(most_bytes * _FILLED) - len(frame))
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


def list_profiles(file: sqlite3.Connection) -> list[ProfileLine]:
    """All profiles, the latest first."""
    rows = file.execute(
        "SELECT id, command, executable, uid,"
        " (SELECT count(*) FROM phase WHERE profile = profile.id),"
        " count(burst.phase), saved_unix_seconds, coalesce(sum(length(frame)), 0)"
        " FROM profile LEFT JOIN burst ON burst.profile = profile.id"
        " GROUP BY profile.id ORDER BY saved_unix_seconds DESC"
    )
    return [ProfileLine(*row) for row in rows]


def forget(file: sqlite3.Connection, ids: tuple[int, ...] | None) -> int:
    """Delete some profiles, or all; returns how many there were."""
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
        return int(pages - free) * PAGE_BYTES

    is_full = used_bytes() > most_bytes
    while used_bytes() > most_bytes and _forget_oldest(file):
        pass
    if is_full:
        _give_back(file)


def _give_back(file: sqlite3.Connection) -> None:
    """Return pages that are free to the file system."""
    file.executescript("PRAGMA incremental_vacuum")  # execute() would return one of them
