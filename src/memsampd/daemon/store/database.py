"""Profiles that last: kept in a file, in a thread of its own, never in the way of observation."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from memsampd.daemon.store.file import (
    StoreUnusableError,
    check_file,
    connected,
    is_damage,
    is_store,
    prepare_patiently,
)
from memsampd.daemon.store.keys import ProgramKey
from memsampd.daemon.store.profiles import Profile
from memsampd.daemon.store.tables import (
    ProfileLine,
    find,
    find_past,
    forget,
    list_profiles,
    save,
    save_past,
)
from memsampd.daemon.store.worker import Worker

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_WAITING = 64  # writes: a disk that hangs is not to fill the memory
_PATIENCE_SECONDS = 5.0
_PAST_PATIENCE_SECONDS = 1.0  # it is asked for when a profile has been read
_CLOSE_SECONDS = 10.0
_AGAIN_SECONDS = 300.0  # after a failure that may pass
_LEAST_BYTES = 1 << 20


class ProfileStore:
    """Profiles in a file. Whatever is wrong with it is said, and observation goes on without.

    One thread of its own does all that touches the file, as a disk may take its time.

    Args:
        path: the file; its directory is made if it is not there.
        most_bytes: the file grows to this size; the profiles written longest ago go first.
        sets_aside: a store that cannot be used is renamed, and another one begun.
        owns_path: no file of that name is anybody else's: what is no store is renamed, too.
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
        owns_path: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        self._path = path
        self._most_bytes = max(most_bytes, _LEAST_BYTES)
        self._sets_aside = sets_aside
        self._owns_path = owns_path
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._again_seconds = -float("inf")
        self._worker = Worker()
        self._answers: Future[int] = Future()  # done unless the disk hangs
        self._answers.set_result(0)
        self._room = threading.BoundedSemaphore(_MOST_WAITING)

    # -- for others ----------------------------------------------------------------------------

    def find(self, key: ProgramKey, bins: int) -> Profile | None:
        """Look a program up.

        Args:
            key: the program; a profile of one process is found for that one only.
            bins: length of the branch vectors of phases.

        Returns:
            None if there is none.
        """
        return self._read(
            lambda file: find(file, key, bins), _PATIENCE_SECONDS, "nothing is known again"
        )

    def save(self, key: ProgramKey, profile: Profile, saved_unix_seconds: float) -> Future[bool]:
        """Keep a profile in place of what was known of the program; soon, and if it can be done.

        Returns:
            Tells whether it was done, once that is known.
        """
        return self._write(
            lambda file: save(file, key, profile, saved_unix_seconds, self._most_bytes)
        )

    def find_past(self, key: ProgramKey) -> tuple[float, bytes] | None:
        """Look up what a process did.

        Returns:
            When the profile was written whose phases it names, and the past; None: there is none.
        """
        return self._read(
            lambda file: find_past(file, key), _PAST_PATIENCE_SECONDS, "what was seen is not known"
        )

    def _read(
        self, what: Callable[[sqlite3.Connection], T | None], seconds: float, loss: str
    ) -> T | None:
        """Read something; None at once while the disk hangs, after so long if it begins to."""
        if not self._answers.done():
            return None
        asked = self._worker.submit(self._try, what)
        try:
            return asked.result(seconds)
        except TimeoutError:
            asked.cancel()
            self._answers = self._worker.submit(int)
            logger.warning("%s takes too long to be read: %s", self._path, loss)
            return None

    def save_past(
        self, key: ProgramKey, profile_unix_seconds: float, frame: bytes, saved_unix_seconds: float
    ) -> Future[bool]:
        """Keep what a process did; soon, and if it can be done.

        Returns:
            Tells whether it was done, once that is known.
        """
        return self._write(
            lambda file: save_past(
                file, key, profile_unix_seconds, frame, saved_unix_seconds, self._most_bytes
            )
        )

    def _write(self, what: Callable[[sqlite3.Connection], object]) -> Future[bool]:
        """Write something soon; not where a disk takes so long that much waits already."""
        if not self._room.acquire(blocking=False):
            self._tell(f"{self._path} takes too long to be written")
            refused: Future[bool] = Future()
            refused.set_result(False)
            return refused

        def written(file: sqlite3.Connection) -> bool:
            what(file)
            return True

        def write() -> bool:
            try:
                return bool(self._try(written))
            finally:
                self._room.release()

        return self._worker.submit(write)

    def list(self) -> list[ProfileLine]:
        """All profiles, the latest first."""
        return self._worker.submit(self._try, list_profiles).result() or []

    def forget(self, ids: tuple[int, ...] | None) -> int:
        """Delete some profiles, or all; returns how many there were."""
        return self._worker.submit(self._try, lambda file: forget(file, ids)).result() or 0

    def close(self) -> None:
        """Write what is to be written, if that can be done, and let go of the file.

        May be called twice.
        """
        with suppress(RuntimeError):  # it was closed before
            self._worker.submit(self._close)
        if not self._worker.close(_CLOSE_SECONDS):
            self.trouble = f"{self._path} takes too long to be written"
            logger.warning("%s: what was learned last is not kept", self.trouble)

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
                if not is_damage(error):
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
                prepare_patiently(self._connection, self._most_bytes)
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
        self._tell(trouble)

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.warning("%s; profiles are not kept, nor known again", trouble)
        self.trouble = trouble

    def _set_aside(self, why: str) -> None:
        """Rename the file, with its log: another one begins.

        Raises:
            StoreUnusableError: that is not wanted, or would move or replace a file of others.
        """
        self._close()
        if not self._sets_aside or self._is_foreign(self._path):
            raise StoreUnusableError(why)
        aside = self._path.with_name(f"{self._path.name}.unusable")
        if self._is_foreign(aside):
            raise StoreUnusableError(f"{why}, and {aside} is in the way")
        for suffix in ("-wal", "-shm", "-journal", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{aside}{suffix}")
        logger.warning("%s cannot be used (%s): it is %s now", self._path, why, aside)

    def _is_foreign(self, path: Path) -> bool:
        """Whether there is a file that may be somebody else's."""
        return not self._owns_path and os.path.lexists(path) and not is_store(path)


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
