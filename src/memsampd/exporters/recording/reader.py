"""Reads a recording, as far as it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from memsampd.errors import RecordingError
from memsampd.estimate.events import BurstRecord, EstimatorEvent, ExecRecord, WindowRecord
from memsampd.exporters.frames import PRELUDE, FrameReader
from memsampd.exporters.recording.format import (
    FORMAT,
    HeaderRecord,
    Record,
    StopRecord,
    SummaryRecord,
    decode,
)
from memsampd.exporters.snapshot import TargetInfo


@dataclass(frozen=True, slots=True)
class Recording:
    """All records of a file.

    Attributes:
        header: what was observed.
        events: what happened, in the order written: what the estimator was told.
        summary: how it went; None if memsampd was killed, or the recording stops early.
        truncated: the file ends inside a record, which is left out.
        stopped: why the recording stops early, for people; empty if it does not.
    """

    header: HeaderRecord
    events: list[EstimatorEvent] = field(default_factory=list)
    summary: SummaryRecord | None = None
    truncated: bool = False
    stopped: str = ""

    @property
    def windows(self) -> list[WindowRecord]:
        """The windows, of all programs that the process ran."""
        return [event for event in self.events if isinstance(event, WindowRecord)]

    @property
    def bursts(self) -> list[BurstRecord]:
        """The bursts, those from before the attach included (``is_stored``)."""
        return [event for event in self.events if isinstance(event, BurstRecord)]

    @property
    def last_program(self) -> list[EstimatorEvent]:
        """What happened since the process began to run the program that it ran last."""
        execs = [at for at, event in enumerate(self.events) if isinstance(event, ExecRecord)]
        return self.events[execs[-1] + 1 :] if execs else self.events

    @property
    def target(self) -> TargetInfo:
        """The process, with the names of the program that it ran last."""
        execs = [event for event in self.events if isinstance(event, ExecRecord)]
        if not execs:
            return self.header.target
        last = execs[-1]
        return replace(self.header.target, command=last.command, executable=last.executable)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the results has to know about the file."""
        if self.truncated:
            return (f"the recording is truncated {self._end}: what followed is lost",)
        if self.stopped:
            return (f"the recording stops {self._end}, {self.stopped}",)
        if self.summary is None:
            return (
                f"the recording has no summary, it ends {self._end}: memsampd was still running, "
                "or was killed",
            )
        return ()

    @property
    def _end(self) -> str:
        """Where it ends, for people."""
        windows = self.windows
        seconds = windows[-1].end_seconds if windows else 0.0
        return f"after {len(windows)} windows, {seconds:.1f} s after the attach"


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Returns:
        Everything before the end of the file; ``truncated`` if that is inside a record.

    Raises:
        RecordingError: no such file, not a recording, another version, or damaged inside.
    """
    with FrameReader(path, FORMAT) as frames:
        return _read(frames)


def _read(frames: FrameReader) -> Recording:
    truncated, stopped = False, ""
    header: HeaderRecord | None = None
    summary: SummaryRecord | None = None
    events: list[EstimatorEvent] = []
    for record in _records(frames):
        if header is None and not isinstance(record, HeaderRecord | None):
            raise _corrupt(frames.path, PRELUDE.size, "the first record is no header")
        match record:
            case HeaderRecord():
                header = record
            case SummaryRecord():
                summary = record
            case StopRecord():
                later = "" if record.observing_ended else "what was observed later is not in it: "
                stopped = later + record.reason
            case None:
                truncated = True
            case _:
                events.append(record)
    if header is None:
        raise RecordingError(
            f"{frames.path} ends early, before its first record",
            "memsampd was stopped at once: record again",
        )
    return Recording(header, events, summary, truncated, stopped)


def _records(frames: FrameReader) -> Iterator[Record | None]:
    """Yield the records, and None at last if the file ends inside one."""
    while True:
        offset = frames.bytes_read
        try:
            payload = frames.next()
            if payload is None:
                return
            record = decode(payload)
            if isinstance(record, BurstRecord):
                record.histogram()  # checks its arrays
        except EOFError:
            yield None
            return
        except (ValueError, RecursionError) as error:
            raise _corrupt(frames.path, offset, str(error)) from error
        yield record


def _corrupt(path: Path, offset: int, detail: str) -> RecordingError:
    return RecordingError(
        f"{path} is corrupt at byte {offset}: {detail}", "restore it from a copy, or record again"
    )
