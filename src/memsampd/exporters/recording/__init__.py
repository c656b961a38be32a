"""Recordings: all that a session observed, in one file that survives a kill."""

from memsampd.exporters.recording.format import HeaderRecord, Record, StopRecord, SummaryRecord
from memsampd.exporters.recording.reader import Recording, read_recording
from memsampd.exporters.recording.writer import RecordingWriter

__all__ = [
    "HeaderRecord",
    "Record",
    "Recording",
    "RecordingWriter",
    "StopRecord",
    "SummaryRecord",
    "read_recording",
]
