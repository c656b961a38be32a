"""What systemd and journald are told."""

from __future__ import annotations

import io
import logging
import os
import socket
from pathlib import Path

import pytest
from tracees import no_free_descriptors

from memsampd.daemon.node.notify import LogFormat, Notifier, is_journal


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("memsampd", level, "", 0, text, (), None)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.CRITICAL, 3)],
)
def test_journald_is_told_how_serious_a_line_is(level: int, priority: int) -> None:
    assert LogFormat(True).format(record(level, "two\nlines")) == f"<{priority}>two lines"


def test_others_are_told_when() -> None:
    line = LogFormat(False).format(record(logging.WARNING, "careful"))
    assert line.endswith(" warning: careful")
    assert line[:2] == "20"


def test_names_of_processes_do_nothing_to_a_terminal() -> None:
    line = LogFormat(False).format(record(logging.INFO, "process 7 (\x1b[31mred): it is let go"))
    assert line.endswith("process 7 (\N{REPLACEMENT CHARACTER}[31mred): it is let go")


def test_the_journal_is_known_by_its_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert is_journal(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not is_journal(stream, {"JOURNAL_STREAM": "1:2"})
        assert not is_journal(stream, {})
    assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_the_manager_is_told_through_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.setblocking(False)  # what was told is there
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "s")})
        notifier.ready()
        with no_free_descriptors():
            notifier.alive("3 targets")
        assert [manager.recv(100) for _ in range(2)] == [
            b"READY=1",
            b"WATCHDOG=1\nSTATUS=3 targets",
        ]
        notifier.stopping()
        assert manager.recv(100) == b"STOPPING=1"


def test_no_manager_is_no_trouble(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).stopping()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "4000000"}, 4.0),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "77"}, 4.0),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_that_of_this_process(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert Notifier(environ, pid=77).watchdog_seconds == seconds
