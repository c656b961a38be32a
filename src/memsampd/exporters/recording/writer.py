"""Appends what a session observes to a recording."""

from __future__ import annotations

import os
from pathlib import Path

from memsampd.errors import RecordingError
from memsampd.exporters.recording.format import (
    HeaderRecord,
    Record,
    SummaryRecord,
    encode_frame,
    prelude,
)
from memsampd.exporters.snapshot import Snapshot


class RecordingWriter:
    """An exporter that keeps everything.

    Windows, bursts, merges and rates are appended with :meth:`write` as they come; each is in the
    kernel's hands when the call returns, so that a memsampd that is killed loses nothing before.
    The last published snapshot becomes the summary when the recording is closed.

    Args:
        path: file to make.
        header: the first record.
        overwrite: replace a file that is there already.

    Raises:
        RecordingError: the file exists or cannot be written.
    """

    def __init__(self, path: Path, header: HeaderRecord, *, overwrite: bool = False) -> None:
        self.path = path
        self._last: Snapshot | None = None
        self._whole_bytes = 0
        try:
            self._file = path.open("wb" if overwrite else "xb", buffering=0)
        except FileExistsError as error:
            raise RecordingError(
                f"{path} exists already", "choose another name, or remove it"
            ) from error
        except OSError as error:
            raise RecordingError(
                f"cannot write {path}: {error.strerror}", "choose a file in a writable directory"
            ) from error
        try:
            self._append(prelude() + encode_frame(header))
        except RecordingError:
            self._file.close()
            raise

    def write(self, record: Record) -> None:
        """Append a record.

        Raises:
            RecordingError: it cannot be written; what was written before stays readable.
        """
        self._append(encode_frame(record))

    def publish(self, snapshot: Snapshot) -> None:
        """Keep the state for the summary."""
        self._last = snapshot

    def close(self, exit_reason: str = "") -> None:
        """Write the summary and close the file; a second call does nothing.

        Args:
            exit_reason: why the session ends; by default whether the target still runs.
        """
        if self._file.closed:
            return
        try:
            if self._last is not None:
                self.write(_summary(self._last, exit_reason))
        finally:
            self._file.close()

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            self._drop_torn_frame()
            raise RecordingError(
                f"cannot write {self.path}: {error.strerror}",
                "free space, or record to another file system",
            ) from error
        self._whole_bytes += len(data)

    def _drop_torn_frame(self) -> None:
        """Cut what half a write left: later records must not follow half a frame."""
        try:
            os.ftruncate(self._file.fileno(), self._whole_bytes)
            self._file.seek(self._whole_bytes)
        except OSError:  # a pipe or the like: nothing to cut
            self._file.close()


def _summary(last: Snapshot, exit_reason: str) -> SummaryRecord:
    return SummaryRecord(
        alive=last.alive,
        exit_reason=exit_reason or ("memsampd detached" if last.alive else "the target ended"),
        overhead=last.overhead,
        tally=last.tally,
        windows=last.estimate.windows,
        samples=last.samples,
        lost=last.lost,
        throttled=last.throttled,
        burst_ends=dict(last.burst_ends),
        errors=dict(last.errors),
        prediction_accuracy=last.prediction_accuracy,
    )
