"""Reads a recording, as far as it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from memsampd.errors import RecordingError
from memsampd.exporters.recording.format import (
    FORMAT_VERSION,
    FRAME_HEADER,
    MAGIC,
    PRELUDE,
    BurstRecord,
    HeaderRecord,
    MergeRecord,
    RateRecord,
    Record,
    SummaryRecord,
    WindowRecord,
    decode_payload,
    frame_length,
)


@dataclass(frozen=True, slots=True)
class Recording:
    """All records of a file, by kind and in the order written.

    Attributes:
        header: what was observed.
        windows: the windows.
        bursts: the bursts.
        merges: the merges of phases.
        rates: the access rates, later ones replacing earlier ones.
        summary: how it went; None if memsampd was killed.
        truncated: the file ends inside a record, which is left out.
    """

    header: HeaderRecord
    windows: list[WindowRecord] = field(default_factory=list)
    bursts: list[BurstRecord] = field(default_factory=list)
    merges: list[MergeRecord] = field(default_factory=list)
    rates: list[RateRecord] = field(default_factory=list)
    summary: SummaryRecord | None = None
    truncated: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the results has to know about the file."""
        if self.truncated:
            return ("the recording is truncated: what follows its last whole record is lost",)
        if self.summary is None:
            return ("the recording has no summary: memsampd was still running, or was killed",)
        return ()


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Returns:
        Everything before the end of the file; ``truncated`` if that is inside a record.

    Raises:
        RecordingError: no such file, not a recording, another version, or damaged inside.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except FileNotFoundError as error:
        raise RecordingError(f"no recording at {path}", "check the path") from error
    except OSError as error:
        raise RecordingError(
            f"cannot read {path}: {error.strerror}", "name a file that you may read"
        ) from error


def _read(file: BinaryIO, path: Path) -> Recording:
    _check_prelude(file.read(PRELUDE.size), path)
    truncated = False
    header: HeaderRecord | None = None
    summary: SummaryRecord | None = None
    windows: list[WindowRecord] = []
    bursts: list[BurstRecord] = []
    merges: list[MergeRecord] = []
    rates: list[RateRecord] = []
    for record in _frames(file, path):
        if header is None and not isinstance(record, HeaderRecord | None):
            raise _corrupt(path, PRELUDE.size, "the first record is no header")
        match record:
            case HeaderRecord():
                header = record
            case WindowRecord():
                windows.append(record)
            case BurstRecord():
                bursts.append(record)
            case MergeRecord():
                merges.append(record)
            case RateRecord():
                rates.append(record)
            case SummaryRecord():
                summary = record
            case None:
                truncated = True
    if header is None:
        raise RecordingError(
            f"{path} ends before its first record", "memsampd was stopped at once: record again"
        )
    return Recording(header, windows, bursts, merges, rates, summary, truncated)


def _check_prelude(start: bytes, path: Path) -> None:
    if not start.startswith(MAGIC):
        cause = f"{path} is empty" if not start else f"{path} is not a memsampd recording"
        raise RecordingError(cause, "name a file that 'memsampd attach' or 'memsampd run' wrote")
    if len(start) < PRELUDE.size:
        raise RecordingError(
            f"{path} ends before its first record", "memsampd was stopped at once: record again"
        )
    _, version = PRELUDE.unpack(start)
    if version != FORMAT_VERSION:
        raise RecordingError(
            f"{path} has format version {version}, this memsampd reads version {FORMAT_VERSION}",
            "read it with the memsampd that wrote it",
        )


def _frames(file: BinaryIO, path: Path) -> Iterator[Record | None]:
    """Yield the records, and None at last if the file ends inside one."""
    while True:
        offset = file.tell()
        header = file.read(FRAME_HEADER.size)
        if not header:
            return
        if len(header) < FRAME_HEADER.size:
            yield None
            return
        try:
            length, check = frame_length(header)
            payload = file.read(length)
            if len(payload) < length:
                yield None
                return
            record = decode_payload(payload, check)
            if isinstance(record, BurstRecord):
                record.histogram()  # checks its arrays
        except (ValueError, RecursionError) as error:
            raise _corrupt(path, offset, str(error)) from error
        yield record


def _corrupt(path: Path, offset: int, detail: str) -> RecordingError:
    return RecordingError(
        f"{path} is corrupt at byte {offset}: {detail}", "restore it from a copy, or record again"
    )
