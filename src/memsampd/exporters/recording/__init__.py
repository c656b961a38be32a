"""Recordings: all that a session observed, in one file that survives a kill."""

from memsampd.exporters.recording.format import (
    BurstRecord,
    HeaderRecord,
    MergeRecord,
    RateRecord,
    Record,
    SummaryRecord,
    WindowRecord,
)
from memsampd.exporters.recording.reader import Recording, read_recording
from memsampd.exporters.recording.writer import RecordingWriter

__all__ = [
    "BurstRecord",
    "HeaderRecord",
    "MergeRecord",
    "RateRecord",
    "Record",
    "Recording",
    "RecordingWriter",
    "SummaryRecord",
    "WindowRecord",
    "read_recording",
]
