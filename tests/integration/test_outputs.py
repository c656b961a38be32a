"""Outputs that cannot be written any more, and those that are not wanted: observing goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import tracees
from commands import MEMSAMPD, memsampd
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.errors import RecordingError
from memsampd.exporters.recording import Recording, read_recording

# Works until it is told to end.
UNTIL_TOLD = """
import select, sys
while not select.select([0], [], [], 0)[0]: {i: str(i) for i in range(2000)}
sys.exit(5)
"""
PROGRAM = (sys.executable, "-c", UNTIL_TOLD)
FULL = "error: nothing more is written to /dev/full: No space left on device"
no_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


def once_recorded(
    path: Path, process: subprocess.Popen[str], is_enough: Callable[[Recording], bool]
) -> Recording:
    """The recording that a process writes, once this holds of it."""

    def enough() -> Recording | None:
        assert process.poll() is None
        with suppress(RecordingError):  # there is none yet
            if is_enough(recording := read_recording(path)):
                return recording
        return None

    found: Recording = wait_for(enough)
    return found


def wait_for_windows(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until windows are recorded, and later others: the display was told of the first."""
    first = once_recorded(path, process, lambda found: bool(found.windows))
    once_recorded(path, process, lambda found: len(found.windows) > len(first.windows))


def test_run_goes_on_where_nobody_reads_what_it_says(tmp_path: Path) -> None:
    recording = tmp_path / "x.memsampd"
    reading, writing = os.pipe()
    os.close(reading)
    command = (MEMSAMPD, "run", "--no-listen", "-o", str(recording), "--", *PROGRAM)
    with tracees.running(*command, stderr=writing) as observing:
        os.close(writing)
        wait_for_windows(recording, observing)
        tracees.go_on(observing)
        assert observing.wait(PATIENCE_SECONDS) == 5
    found = read_recording(recording)
    assert found.summary is not None
    assert found.summary.exit_reason == "the target ended"
    assert found.summary.windows == len(found.windows)


def test_a_trace_of_a_program_goes_on_where_nobody_reads_what_it_says(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # It says at once that the program cannot be traced, or soon how the trace went.
    command = (MEMSAMPD, "trace", "-o", str(tmp_path / "x"), "--", "sh", "-c", "read line; exit 5")
    with tracees.running(*command, stderr=writing) as observing:
        os.close(writing)
        tracees.go_on(observing)
        assert observing.wait(PATIENCE_SECONDS) == 5


@no_full
def test_run_goes_on_where_events_cannot_be_written() -> None:
    command = (MEMSAMPD, "run", "--no-listen", "--events", "/dev/full", "--", *PROGRAM)
    with tracees.running(*command, stderr=subprocess.PIPE) as observing:
        assert observing.stderr is not None
        assert any(FULL in line for line in observing.stderr)
        tracees.go_on(observing)
        _, rest = observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 5
    assert "ended: the target ended" in rest
    assert "nothing more is written" not in rest


@no_full
def test_attach_goes_on_where_events_cannot_be_written_and_fails_at_last(
    busy: subprocess.Popen[str], tmp_path: Path
) -> None:
    recording = tmp_path / "x.memsampd"
    options = ("--no-listen", "--events", "/dev/full", "-o", str(recording))
    with tracees.running(
        MEMSAMPD, "attach", str(busy.pid), *options, stderr=subprocess.PIPE
    ) as observing:
        assert observing.stderr is not None
        assert any(FULL in line for line in observing.stderr)
        seen = len(read_recording(recording).windows)
        once_recorded(recording, observing, lambda found: len(found.windows) > seen)
        observing.terminate()
        _, rest = observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 1
    assert "ended: SIGTERM" in rest
    assert "nothing more is written" not in rest
    assert rest.endswith("memsampd: error: /dev/full: No space left on device\n")


def test_attach_goes_on_where_the_reader_of_events_has_gone(busy: subprocess.Popen[str]) -> None:
    reading, writing = os.pipe()
    options = ("--no-listen", "--json", "--events", f"/dev/fd/{writing}")
    with (
        open(reading) as events,
        tracees.running(
            *(MEMSAMPD, "attach", str(busy.pid), *options),
            stderr=subprocess.PIPE,
            pass_fds=[writing],
        ) as observing,
    ):
        os.close(writing)
        assert observing.stdout is not None
        assert observing.stderr is not None
        assert json.loads(events.readline())["window"] >= 0
        events.close()
        broken = f"nothing more is written to /dev/fd/{writing}: Broken pipe"
        assert any(broken in line for line in observing.stderr)
        for _ in range(20):  # windows come as before
            assert json.loads(observing.stdout.readline())["window"] >= 0
        observing.terminate()
        _, rest = observing.communicate(timeout=PATIENCE_SECONDS)
    assert observing.returncode == 128 + signal.SIGPIPE
    assert "ended: SIGTERM" in rest
    assert broken not in rest


def test_attach_ends_cleanly_when_the_reader_of_its_output_has_gone(
    busy: subprocess.Popen[str], tmp_path: Path
) -> None:
    recording = tmp_path / "x.memsampd"
    options = ("--no-listen", "--json", "-o", str(recording))
    with tracees.running(
        MEMSAMPD, "attach", str(busy.pid), *options, stderr=subprocess.PIPE
    ) as observing:
        assert observing.stdout is not None
        assert observing.stderr is not None
        assert json.loads(observing.stdout.readline())["window"] >= 0
        observing.stdout.close()
        said = observing.stderr.read()
        assert observing.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE
    assert "ended: nobody reads the output any more" in said
    assert "nothing more is written" not in said
    found = read_recording(recording)
    assert found.warnings == ()
    assert found.summary is not None
    assert found.summary.windows == len(found.windows)
    assert tracees.wait_until_clean(busy.pid) == []


@no_full
def test_run_exits_as_usual_where_it_cannot_say_what_is_wrong() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([MEMSAMPD, "run", "--", "/no/such/program"], stderr=full, check=False)
    assert done.returncode == 127


def test_quiet_run_says_nothing_but_errors(tmp_path: Path) -> None:
    recording = tmp_path / "x.memsampd"
    words = (MEMSAMPD, "run", "-q", "--listen", "127.0.0.1:0", "-o", str(recording), "--")
    with tracees.running(*words, *PROGRAM, stderr=subprocess.PIPE) as observing:
        wait_for_windows(recording, observing)
        tracees.go_on(observing)
        assert observing.communicate(timeout=PATIENCE_SECONDS) == ("", "")
    assert observing.returncode == 5
    done = memsampd("run", "--quiet", "--", "/no/such/program")
    assert done.returncode == 127
    assert done.stderr.startswith("memsampd: error: cannot run /no/such/program")


@pytest.mark.parametrize("as_json", [False, True])
def test_quiet_attach_prints_objects_if_told_to(
    as_json: bool, busy: subprocess.Popen[str], tmp_path: Path
) -> None:
    recording = tmp_path / "x.memsampd"
    words = ["attach", str(busy.pid), "-q", "--listen", "127.0.0.1:0", "-o", str(recording)]
    words += ["--json"] * as_json
    with tracees.running(MEMSAMPD, *words, stderr=subprocess.PIPE) as observing:
        if as_json:
            assert observing.stdout is not None
            assert json.loads(observing.stdout.readline())["window"] >= 0
        else:
            wait_for_windows(recording, observing)
        observing.terminate()
        output, errors = observing.communicate(timeout=PATIENCE_SECONDS)
    assert (observing.returncode, errors) == (0, "")
    assert as_json or not output


def test_quiet_attach_fails_where_what_it_learned_is_not_kept(
    busy: subprocess.Popen[str], tmp_path: Path
) -> None:
    recording, store = tmp_path / "x.memsampd", tmp_path / "file" / "store"
    store.parent.touch()
    words = ["attach", str(busy.pid), "-q", "--no-listen", "--store", str(store)]
    with tracees.running(
        MEMSAMPD, *words, "-o", str(recording), stderr=subprocess.PIPE
    ) as observing:
        wait_for_windows(recording, observing)
        observing.terminate()
        output, errors = observing.communicate(timeout=PATIENCE_SECONDS)
    assert (observing.returncode, output) == (1, "")
    why = f"memsampd: error: what was learned is not kept: {store} cannot be used: "
    assert errors.startswith(why)
    assert len(errors.splitlines()) == 1
    assert read_recording(recording).warnings == ()
