from __future__ import annotations

import os
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import burst_record, header, make_snapshot, stream, window_record, write_recording

from memsampd.errors import RecordingError
from memsampd.estimate.events import ExecRecord, MergeRecord, WindowRecord
from memsampd.exporters.frames import frame
from memsampd.exporters.recording import Record, RecordingWriter, read_recording
from memsampd.exporters.recording.format import FORMAT, encode
from memsampd.models.histogram import ReuseHistogram

finite = st.floats(allow_nan=False, allow_infinity=False)
small = st.integers(0, 2**40)
windows = st.builds(
    WindowRecord,
    index=small,
    start_seconds=finite,
    end_seconds=finite,
    cpu_seconds=finite,
    phase=small,
    samples=small,
    lost=small,
    throttled=small,
    predicted_phase=st.none() | small,
)
merges = st.builds(MergeRecord, gone=small, into=small)
execs = st.builds(ExecRecord, time_seconds=finite, command=st.text(), executable=st.text())


@settings(deadline=None, max_examples=60)
@given(st.lists(windows | merges | execs, max_size=12))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    path = tmp_path_factory.mktemp("r") / "x"
    writer = RecordingWriter(path, header())
    for record in records:
        writer.write(record)
    writer.close()
    recording = read_recording(path)
    assert recording.events == records
    assert recording.windows == [r for r in records if isinstance(r, WindowRecord)]
    assert recording.header == header()


def test_bursts_and_summary_return(recording_path: Path) -> None:
    recording = read_recording(recording_path)
    assert recording.bursts[1].histogram() == ReuseHistogram.from_lines(stream(1, 4000, 25))
    assert (recording.bursts[1].writes, recording.bursts[1].end_detail) == (1000, "read")
    assert recording.summary is not None
    assert recording.summary.overhead == make_snapshot().overhead
    assert recording.summary.tally == make_snapshot().tally
    assert recording.summary.burst_ends == {"full": 3, "syscall": 4}
    assert not recording.warnings


def test_a_file_of_an_earlier_memsampd_is_read() -> None:
    """Keys that it lacks have a default: of 8c611e98, two seconds of ``threads.cpp``."""
    recording = read_recording(Path(__file__).parent / f"version-{FORMAT.version}.mem")
    assert recording.summary is not None
    assert recording.summary.overhead.taken_cpu_seconds == 0
    assert (len(recording.windows), len(recording.bursts)) == (28, 17)
    assert not recording.warnings


def test_every_truncation_keeps_the_whole_records_before_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    records: list[Record] = [window_record(0, 0), burst_record(0, 0, 50), window_record(1, 0)]
    frames = [frame(encode(record)) for record in records]
    writer = RecordingWriter(path, header())
    for record in records:
        writer.write(record)
    writer.close()
    whole = path.read_bytes()
    first = len(whole) - sum(map(len, frames))
    ends = [first + sum(map(len, frames[:n])) for n in range(len(frames) + 1)]
    cut = tmp_path / "cut"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        if length < first:
            with pytest.raises(RecordingError):
                read_recording(cut)
            continue
        recording = read_recording(cut)
        kept = sum(end <= length for end in ends) - 1
        assert len(recording.windows) + len(recording.bursts) == kept
        assert recording.truncated == (length not in ends)
        assert recording.warnings


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = RecordingWriter(path, header())
    writer.write(window_record(0, 0))
    writer.close()
    whole = path.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(RecordingError):
            read_recording(path)


@pytest.mark.parametrize("version", [FORMAT.version - 1, FORMAT.version + 1])
def test_other_versions_are_refused(recording_path: Path, version: int) -> None:
    data = bytearray(recording_path.read_bytes())
    data[8:10] = struct.pack("<H", version)
    recording_path.write_bytes(data)
    with pytest.raises(RecordingError, match=f"format version {version}"):
        read_recording(recording_path)


@pytest.mark.parametrize("payload", [b"\x80", b"\x00" * (65 << 20), b"\x91" * 100_000])
def test_valid_frames_of_nonsense_are_refused(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(FORMAT.prelude() + frame(zlib.compress(payload)))
    with pytest.raises(RecordingError, match="corrupt at byte 10"):
        read_recording(path)


def test_burst_outside_the_bins_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = RecordingWriter(path, header())
    burst = burst_record(0, 0)
    bins = np.frombuffer(burst.bins, "<i4").copy()
    bins[-1] = 2**30
    fields = {name: getattr(burst, name) for name in burst.__struct_fields__}
    writer.write(type(burst)(**{**fields, "bins": bins.tobytes()}))
    writer.close()
    with pytest.raises(RecordingError, match="corrupt"):
        read_recording(path)


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(100), b"MEMS"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(RecordingError):
        read_recording(path)


def test_paths_that_cannot_be_read_or_written(tmp_path: Path, recording_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(RecordingError) as caught:
            read_recording(path)
        assert caught.value.remedy
    for path in (tmp_path / "no" / "where", tmp_path, recording_path):
        with pytest.raises(RecordingError) as caught:
            RecordingWriter(path, header())
        assert caught.value.remedy
    RecordingWriter(recording_path, header(), overwrite=True).close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk_is_one_error() -> None:
    with pytest.raises(RecordingError, match="No space left"):
        RecordingWriter(Path("/dev/full"), header(), overwrite=True)


def _written_up_to(limit_bytes: int, path: Path) -> bool:
    """Write many records, in a child whose files have a limit; whether it says that it fails."""
    child = os.fork()
    if child == 0:
        try:
            writer = RecordingWriter(path, header())
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            for index in range(200):
                writer.write(window_record(index, index % 3))
            writer.publish(make_snapshot())
            writer.close()
        except RecordingError as error:
            os._exit(3 if "File too large" in error.cause else 4)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 3)
    return os.waitstatus_to_exitcode(status) == 3


def test_where_no_more_can_be_written_the_recording_says_so(tmp_path: Path) -> None:
    assert not _written_up_to(1 << 20, tmp_path / "whole")
    whole = read_recording(tmp_path / "whole")
    assert whole.warnings == ()
    first_bytes = len(FORMAT.prelude()) + len(frame(encode(header()))) + 200
    for limit_bytes in range(first_bytes, first_bytes + 400, 23):
        path = tmp_path / f"{limit_bytes}"
        assert _written_up_to(limit_bytes, path)
        assert path.stat().st_size <= limit_bytes
        recording = read_recording(path)
        assert recording.summary is None
        assert "File too large" in recording.stopped
        assert recording.windows == whole.windows[: len(recording.windows)]
        (warning,) = recording.warnings
        assert f"after {len(recording.windows)} windows" in warning
        assert "what was observed later is not in it" in warning


def test_where_observing_broke_off_the_recording_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writer = RecordingWriter(path, header())
    writer.write(window_record(0, 0))
    writer.publish(make_snapshot())
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError("oh")
    recording = read_recording(path)
    assert recording.summary is None
    assert len(recording.windows) == 1
    (warning,) = recording.warnings
    assert warning.endswith(" after the attach, observing broke off: ZeroDivisionError('oh')")


def test_the_reason_is_told_though_the_recording_has_no_room_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    child = os.fork()
    if child == 0:
        try:
            with RecordingWriter(path, header()):
                resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size,) * 2)
                raise ZeroDivisionError("oh")
        except ZeroDivisionError:
            os._exit(3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3


def test_killed_writer_leaves_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x"
    child = os.fork()
    if child == 0:
        writer = RecordingWriter(path, header())
        writer.write(window_record(0, 0))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    recording = read_recording(path)
    assert len(recording.windows) == 1
    assert "killed" in recording.warnings[0]


def test_size_is_small(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "x", accesses=100_000)
    assert path.stat().st_size < 100_000
