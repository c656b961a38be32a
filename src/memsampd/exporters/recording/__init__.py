"""Recordings: all that a session observed, in one file that survives a kill."""

from memsampd.exporters.recording.format import (
    BurstRecord,
    HeaderRecord,
    MergeRecord,
    RateRecord,
    Record,
    SummaryRecord,
    WindowRecord,
    code_bytes,
    code_vector,
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
    "code_bytes",
    "code_vector",
    "read_recording",
]
